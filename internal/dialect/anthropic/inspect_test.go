package anthropic

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/wire/sse"
)

// events writes events as the API does, by their data.
func events(data ...string) string {
	var b strings.Builder
	for _, d := range data {
		kind, _, _ := strings.Cut(strings.TrimPrefix(d, `{"type":"`), `"`)
		b.WriteString("event: " + kind + "\ndata: " + d + "\n\n")
	}
	return b.String()
}

const (
	msgStart   = `{"type":"message_start","message":{"id":"a","content":[],"stop_reason":null,"usage":{"input_tokens":7,"cache_read_input_tokens":3,"cache_creation_input_tokens":2,"output_tokens":1}}}`
	blockStart = `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	blockDelta = `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"a \"b\\"}}`
	blockStop  = `{"type":"content_block_stop","index":0}`
	msgDelta   = `{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}`
	msgStop    = `{"type":"message_stop"}`
)

var inspected = []struct{ name, good, rest, fault string }{
	{"plain", events(msgStart, `{"type":"ping"}`, blockStart, blockDelta, blockDelta, blockStop, msgDelta, msgStop), "", ""},
	{"no content", events(msgStart, msgDelta, msgStop), "", ""},
	{"as vLLM writes it", strings.ReplaceAll(events(msgStart, `{"type":"content_block_start","content_block":{"type":"text","text":""},"index":0}`,
		`{"type":"content_block_delta","delta":{"type":"text_delta","text":"{\"index\":7}"},"index": 0 }`, blockStop, msgDelta, msgStop), "event: ", "event:") + "data: [DONE]\n\n", "", ""},
	{"two blocks", events(msgStart, blockStart, blockStop, strings.Replace(blockStart, "0", "1", 1), strings.Replace(blockStop, "0", "1", 1), msgDelta, msgStop), "", ""},
	{"new kinds of events", events(msgStart, `{"type":"later","index":4}`, msgDelta, msgStop, `{"type":"ping"}`) + ": comment\n\n", "", ""},
	{"CRLF", strings.ReplaceAll(events(msgStart, blockStart, blockDelta, blockStop, msgDelta, msgStop), "\n", "\r\n"), "", ""},
	{"the engine's own error", events(msgStart, blockStart, `{"type":"error","error":{"type":"overloaded_error"}}`), "", ""},
	{"no start", "", events(blockStart), `is "content_block_start", before message_start`},
	{"two starts", events(msgStart), events(msgStart), "second message_start"},
	{"not JSON", events(msgStart), "event: ping\ndata: {oops\n\n", "neither JSON"},
	{"no object", events(msgStart), "data: 7\n\n", "a number where an object belongs"},
	{"no type", events(msgStart), events(`{"a":{"type":"ping"}}`), "has no type"},
	{"type that is none", events(msgStart), events(`{"type":7}`), "a number for type"},
	{"delta outside", events(msgStart), events(blockDelta), "a content_block_delta of block 0, which is not open"},
	{"delta of another", events(msgStart, blockStart), events(strings.Replace(blockDelta, "0", "1", 1)), "block 1, which is not open"},
	{"delta after its stop", events(msgStart, blockStart, blockStop), events(blockDelta), "which is not open"},
	{"stop twice", events(msgStart, blockStart, blockStop), events(blockStop), "which is not open"},
	{"block in a block", events(msgStart, blockStart), events(strings.Replace(blockStart, "0", "1", 1)), "while block 0 is open"},
	{"block twice", events(msgStart, blockStart, blockStop), events(blockStart), "block 0 has been"},
	{"odd index", events(msgStart), events(strings.Replace(blockStart, "0", "-1", 1)), "no number of a content block"},
	{"open block at the end", events(msgStart, blockStart, msgDelta), events(msgStop), "content block 0 is open"},
	{"no stop reason", events(msgStart, strings.Replace(msgDelta, `"end_turn"`, "null", 1)), events(msgStop), "no stop_reason"},
	{"after the end", events(msgStart, msgDelta, msgStop), events(msgDelta), "comes after message_stop"},
	{"marker alone", events(msgStart, msgDelta), "data: [DONE]\n\n", "no message_stop"},
	{"odd usage", events(msgStart), events(strings.Replace(msgDelta, "5", "-5", 1)), "output_tokens is no count"},
}

type verdict struct {
	good         int
	fault        string
	done, failed bool
	usage        infer.Usage
}

// inspect shows a stream to an inspector as a relay does, in chunks.
func inspect(t interface{ Fatalf(string, ...any) }, chunks ...string) (v verdict) {
	in := Messages.NewInspector(nil)
	s := sse.Splitter{}
	var held []byte
	for _, chunk := range chunks {
		held = append(held, chunk...)
		r := s.Feed(held[len(held)-len(chunk):])
		n := r.Len
		good, err := in.Events(held[:n])
		v.good += good
		if err != nil {
			var e *infer.Error
			var f infer.Fault
			if !errors.As(err, &e) || e.Code != infer.CodeIntegrity || !errors.As(err, &f) {
				t.Fatalf("%#v", err)
			}
			v.fault = e.Message
			break
		}
		held = held[n:]
	}
	v.done, v.failed = in.Done(), in.Failed()
	v.usage, _ = in.Usage()
	return v
}

func TestInspector(t *testing.T) {
	for _, c := range inspected {
		v := inspect(t, c.good+c.rest)
		if v.good != len(c.good) || (v.fault == "") != (c.fault == "") || !strings.Contains(v.fault, c.fault) {
			t.Errorf("%s: %q good, fault %q", c.name, (c.good + c.rest)[:v.good], v.fault)
		}
		if c.fault == "" && !v.done {
			t.Errorf("%s: not done", c.name)
		}
		if v.failed != strings.Contains(c.name, "error") {
			t.Errorf("%s: failed %v", c.name, v.failed)
		}
	}
	v := inspect(t, inspected[0].good)
	if want := (infer.Usage{PromptTokens: 12, CompletionTokens: 5, CachedTokens: 3}); v.usage != want {
		t.Errorf("usage %+v, want %+v", v.usage, want)
	}
	if CountTokens.NewInspector(nil) != nil {
		t.Error("count_tokens is judged")
	}
	if v := inspect(t, events(msgStart, blockStart, blockDelta)); v.done || v.fault != "" {
		t.Errorf("a part of a stream: %+v", v)
	}
}

// However the network cuts a stream, the verdict is the same.
func TestInspectorAtEveryCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := rapid.SampledFrom(inspected).Draw(t, "stream")
		stream := c.good + c.rest
		want := inspect(t, stream)
		var chunks []string
		for rest := stream; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			chunks, rest = append(chunks, rest[:n]), rest[n:]
		}
		if got := inspect(t, chunks...); got != want {
			t.Fatalf("%+v, whole %+v", got, want)
		}
	})
}

// The inspector accepts the output of weir's own encoder.
func TestInspectorAgreesWithStream(t *testing.T) {
	parts := []said{{kind: thinking, text: "hm"}, {kind: text, text: "I look."}, {kind: toolUse, id: "t", name: "f", text: `{"a":"}\\\""}`}, {kind: toolUse, id: "u", name: "g"}}
	o := dialect.AnswerOptions{ID: "1", Model: "m", PromptIDs: []uint32{1, 2}}
	stream := string(say(newEncoder(true, false)(o), parts, inOnePiece, dialect.Finish{Reason: infer.ReasonStop}, infer.Usage{PromptTokens: 2, CompletionTokens: 4}))
	if v := inspect(t, stream); v.fault != "" || !v.done || v.usage.CompletionTokens != 4 {
		t.Errorf("%+v", v)
	}
}

func TestInspectorAllocatesNothing(t *testing.T) {
	in := Messages.NewInspector(nil)
	if _, err := in.Events([]byte(events(msgStart, blockStart))); err != nil {
		t.Fatal(err)
	}
	region := []byte(strings.Repeat(events(blockDelta), 8))
	if n := testing.AllocsPerRun(100, func() {
		if good, err := in.Events(region); err != nil || good != len(region) {
			t.Fatal(good, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzInspector: nothing panics, and what is refused is coded.
func FuzzInspector(f *testing.F) {
	for _, c := range inspected {
		f.Add([]byte(c.good+c.rest), 5)
	}
	f.Fuzz(func(t *testing.T, stream []byte, cut int) {
		cut = min(max(cut, 0), len(stream))
		whole := inspect(t, string(stream))
		if got := inspect(t, string(stream[:cut]), string(stream[cut:])); got != whole {
			t.Fatalf("%+v, whole %+v", got, whole)
		}
	})
}
