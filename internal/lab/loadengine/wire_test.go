//go:build linux

package loadengine

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http/httputil"
	"slices"
	"strings"
	"testing"

	"weir/internal/lab/cell"
	"weir/internal/wire/sse"
)

// The engines over HTTP send what the engines that they stand for send: every event is JSON in
// its own chunk, with the ids of the form and the count so far, up to the end.
func TestWiresOfIDs(t *testing.T) {
	const stream, tokens = 1, 3
	words, err := cell.LoadWords()
	if err != nil {
		t.Fatal(err)
	}
	var all []uint32
	for n := range tokens {
		all = append(all, words.ID(stream, n))
	}
	for name, c := range map[string]struct{ path, body string }{
		cell.SGLangIncremental: {"/generate", `{"rid":"x","stream":true,"input_ids":[7,8,9],"sampling_params":{"max_new_tokens":3,"sampling_seed":1}}`},
		cell.SGLangCumulative:  {"/generate", `{"rid":"x","stream":true,"input_ids":[7,8,9],"sampling_params":{"max_new_tokens":3,"sampling_seed":1}}`},
		cell.VLLM:              {"/inference/v1/generate", `{"request_id":"x","stream":true,"token_ids":[7,8,9],"sampling_params":{"max_tokens":3,"seed":1}}`},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := wireOf(&cell.Cell{Wire: name, Load: cell.Load{Streams: 2}})
			if err != nil {
				t.Fatal(err)
			}
			if w.document([]byte("get /v1/models http/1.1\r\n"), nil) == nil {
				t.Error("it has no list of models")
			}
			if d := w.document([]byte("post "+c.path+" http/1.1\r\n"), []byte(c.body)); d != nil {
				t.Fatalf("a stream is answered with %s", d)
			}
			if n, limit := w.asked([]byte(c.body)); n != stream || limit != tokens {
				t.Fatalf("stream %d of %d tokens", n, limit)
			}
			var out strings.Builder
			for n := range tokens {
				out.Write(w.token(stream, n))
			}
			out.Write(w.ending(stream, tokens))
			body, err := io.ReadAll(httputil.NewChunkedReader(strings.NewReader(out.String())))
			if err != nil {
				t.Fatalf("%v: %s", err, &out)
			}
			var events sse.Parser
			events.Feed(body)
			seen, ended := 0, ""
			for ev, ok := events.Next(); ok; ev, ok = events.Next() {
				if string(ev.Data) == sse.DoneMarker {
					ended += " done"
					continue
				}
				ids, prompt, count, finish := readEvent(t, ev.Data)
				if prompt != 3 {
					t.Errorf("a prompt of %d ids: %s", prompt, ev.Data)
				}
				from := min(seen, tokens)
				if name == cell.SGLangCumulative {
					from = 0
				}
				if seen++; finish == "" && ended == "" && (count != seen || !slices.Equal(ids, all[from:seen])) || count > tokens {
					t.Errorf("event %d: %s", seen, ev.Data)
				}
				ended += finish
			}
			if ended != "length done" {
				t.Errorf("ends with %q: %s", ended, body)
			}
		})
	}
	if _, err := wireOf(&cell.Cell{Wire: "sgalng"}); err == nil {
		t.Error("a wire that nobody knows was taken")
	}
}

// readEvent reads an event of either API.
func readEvent(t *testing.T, data []byte) (ids []uint32, prompt, count int, finish string) {
	t.Helper()
	type counts struct {
		Prompt int             `json:"prompt_tokens"`
		Count  int             `json:"completion_tokens"`
		Finish json.RawMessage `json:"finish_reason"`
	}
	var e struct {
		IDs     []uint32 `json:"output_ids"`
		Meta    *counts  `json:"meta_info"`
		Usage   counts   `json:"usage"`
		Choices []struct {
			IDs    []uint32        `json:"token_ids"`
			Finish json.RawMessage `json:"finish_reason"`
		} `json:"choices"`
	}
	if err := json.Unmarshal(data, &e); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	if e.Meta == nil {
		e.Meta = &e.Usage
		for _, c := range e.Choices {
			e.IDs, e.Meta.Finish = c.IDs, c.Finish
		}
		if len(e.Choices) == 0 {
			return nil, e.Meta.Prompt, e.Meta.Count, ""
		}
	}
	if f := string(e.Meta.Finish); f != "null" {
		finish = "length"
		if !strings.Contains(f, `"length"`) {
			finish = fmt.Sprintf("wrongly by %s", f)
		}
	}
	return e.IDs, e.Meta.Prompt, e.Meta.Count, finish
}
