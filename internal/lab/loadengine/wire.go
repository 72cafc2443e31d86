//go:build linux

package loadengine

import (
	"bytes"
	"fmt"
	"strconv"

	"weir/internal/lab/cell"
)

// wire is the API of an engine over HTTP.
type wire interface {
	// asked returns the stream and the limit of tokens that a request's body names.
	asked(body []byte) (stream, limit int)
	// document answers a request that asks for no stream; nil if it asks for one.
	document(head, body []byte) []byte
	// token returns a stream's next token as a chunk of its response, valid until the next call.
	token(stream, number int) []byte
	// ending returns the bytes behind the last token.
	ending(stream, tokens int) []byte
}

// wireOf returns the API that a cell's engine has.
func wireOf(c *cell.Cell) (wire, error) {
	if c.Relayed {
		return chats{cell.NewEventTemplate()}, nil
	}
	words, err := cell.LoadWords()
	if err != nil {
		return nil, err
	}
	i := &idsWire{words: words, streams: make([]said, c.Capacity()), out: make([]byte, headRoom, 4<<10)}
	switch c.Wire {
	case cell.SGLangIncremental:
		return &sglangWire{idsWire: i}, nil
	case cell.SGLangCumulative:
		return &sglangWire{idsWire: i, cumulative: true}, nil
	case cell.VLLM:
		return &vllmWire{idsWire: i}, nil
	}
	return nil, fmt.Errorf("no wire %q is known", c.Wire)
}

// chats is the OpenAI API of the engine that is relayed. Its events carry their stamps.
type chats struct{ template *cell.EventTemplate }

func (chats) asked(body []byte) (stream, limit int) {
	return member(body, `"seed":`), member(body, `"max_tokens":`)
}

func (chats) document(head, _ []byte) []byte {
	if bytes.HasPrefix(head, []byte("get ")) {
		return models("bench")
	}
	return nil
}

func (w chats) token(stream, number int) []byte {
	return w.template.Fill(stream, number, cell.Now())
}

func (chats) ending(stream, tokens int) []byte { return cell.Ending(stream, tokens, true) }

// idsWire is what the APIs by ids have in common. The events have the members that the
// engines' own have.
type idsWire struct {
	words   *cell.Words
	streams []said
	out     []byte
}

// said is what a stream has said so far.
type said struct {
	prompt    int // its ids
	ids, text []byte
}

// modelLength is the context length that the engines report.
const modelLength = 1 << 20

// promptOf notes the length of a stream's prompt, which stands behind a key as an array.
func (w *idsWire) promptOf(stream int, body []byte, key string) {
	_, rest, ok := bytes.Cut(body, []byte(key))
	if !ok || stream < 0 || stream >= len(w.streams) {
		return
	}
	array, _, _ := bytes.Cut(rest, []byte("]"))
	w.streams[stream].prompt = bytes.Count(array, []byte(",")) + 1
}

// headRoom is room for a chunk's size line.
const headRoom = 16

// begin begins an event.
func (w *idsWire) begin() []byte { return append(w.out[:headRoom], "data: "...) }

// chunk ends an event and returns it as a chunk.
func (w *idsWire) chunk(event []byte) []byte {
	event = append(event, "\n\n"...)
	var room [headRoom]byte
	size := append(strconv.AppendInt(room[:0], int64(len(event)-headRoom), 16), "\r\n"...)
	event = append(event, "\r\n"...)
	w.out = event
	return event[headRoom-copy(event[headRoom-len(size):], size):]
}

// documented is a whole answer of JSON.
func documented(status string, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", status, len(body), body)
}

// cards is a list of the one model.
func cards(owner string) []byte {
	return documented("200 OK", fmt.Sprintf(`{"object":"list","data":[{"id":"weir-sim","object":"model","created":1767225600,"owned_by":%q,"max_model_len":%d}]}`, owner, modelLength))
}

// sglangWire is SGLang's POST /generate.
type sglangWire struct {
	*idsWire
	cumulative bool
}

func (w *sglangWire) asked(body []byte) (stream, limit int) {
	stream, limit = member(body, `"sampling_seed":`), member(body, `"max_new_tokens":`)
	w.promptOf(stream, body, `"input_ids":[`)
	return stream, limit
}

func (w *sglangWire) document(head, _ []byte) []byte {
	switch {
	case bytes.HasPrefix(head, []byte("post /generate ")):
		return nil
	case bytes.HasPrefix(head, []byte("get /v1/models ")):
		return cards("sglang")
	case bytes.HasPrefix(head, []byte("get /server_info ")):
		return documented("200 OK", fmt.Sprintf(`{"version":"0.5.23","skip_tokenizer_init":false,"enable_deterministic_inference":true,"incremental_streaming_output":%t}`, !w.cumulative))
	}
	return documented("404 Not Found", "{}")
}

func (w *sglangWire) token(stream, number int) []byte {
	s := &w.streams[stream]
	if number == 0 || !w.cumulative {
		s.ids, s.text = s.ids[:0], s.text[:0]
	} else {
		s.ids = append(s.ids, ',')
	}
	s.ids = strconv.AppendUint(s.ids, uint64(w.words.ID(stream, number)), 10)
	s.text = append(s.text, w.words.Text(stream, number)...)
	return w.event(stream, s, "null", number+1)
}

func (w *sglangWire) ending(stream, tokens int) []byte {
	s := &w.streams[stream]
	if !w.cumulative {
		s.ids, s.text = s.ids[:0], s.text[:0]
	}
	b := bytes.Clone(w.event(stream, s, fmt.Sprintf(`{"type":"length","length":%d}`, tokens), tokens))
	return append(append(b, w.chunk(append(w.begin(), "[DONE]"...))...), "0\r\n\r\n"...)
}

func (w *sglangWire) event(stream int, s *said, finish string, completion int) []byte {
	b := append(w.begin(), `{"text":"`...)
	b = append(append(b, s.text...), `","output_ids":[`...)
	b = append(append(b, s.ids...), `],"meta_info":{"id":"bench-`...)
	b = append(strconv.AppendInt(b, int64(stream), 10), `","finish_reason":`...)
	b = append(append(b, finish...), `,"prompt_tokens":`...)
	b = append(strconv.AppendInt(b, int64(s.prompt), 10), `,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"completion_tokens":`...)
	b = append(strconv.AppendInt(b, int64(completion), 10), `,"cached_tokens":0}}`...)
	return w.chunk(b)
}

// vllmWire is vLLM's POST /inference/v1/generate.
type vllmWire struct{ *idsWire }

const generatePath = "post /inference/v1/generate "

func (w *vllmWire) asked(body []byte) (stream, limit int) {
	stream, limit = member(body, `"seed":`), member(body, `"max_tokens":`)
	w.promptOf(stream, body, `"token_ids":[`)
	return stream, limit
}

func (w *vllmWire) document(head, body []byte) []byte {
	switch {
	case bytes.HasPrefix(head, []byte(generatePath)) && string(body) != "{}":
		return nil
	case bytes.HasPrefix(head, []byte("post ")):
		return documented("400 Bad Request", `{"error":{"message":"no prompt"}}`)
	case bytes.HasPrefix(head, []byte("get /v1/models ")):
		return cards("vllm")
	case bytes.HasPrefix(head, []byte("get /version ")):
		return documented("200 OK", `{"version":"0.33.0"}`)
	}
	return documented("404 Not Found", "{}")
}

func (w *vllmWire) token(stream, number int) []byte {
	b := w.counts(stream, number+1)
	b = append(b, `{"index":0,"finish_reason":null,"stop_reason":null,"token_ids":[`...)
	b = strconv.AppendUint(b, uint64(w.words.ID(stream, number)), 10)
	b = append(b, `],"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}]}`...)
	return w.chunk(b)
}

func (w *vllmWire) ending(stream, tokens int) []byte {
	b := append(w.counts(stream, tokens), `{"index":0,"finish_reason":"length","stop_reason":null,"token_ids":[],"routed_experts":null,"sampling_mask":null,"weight_versions":null,"logprobs":null}]}`...)
	out := bytes.Clone(w.chunk(b))
	out = append(out, w.chunk(append(w.counts(stream, tokens), "]}"...))...)
	return append(append(out, w.chunk(append(w.begin(), "[DONE]"...))...), "0\r\n\r\n"...)
}

// counts begins an event, up to its choices.
func (w *vllmWire) counts(stream, completion int) []byte {
	prompt := w.streams[stream].prompt
	b := append(w.begin(), `{"request_id":"generate-tokens-`...)
	b = append(strconv.AppendInt(b, int64(stream), 10), `","usage":{"prompt_tokens":`...)
	b = append(strconv.AppendInt(b, int64(prompt), 10), `,"total_tokens":`...)
	b = append(strconv.AppendInt(b, int64(prompt+completion), 10), `,"completion_tokens":`...)
	return append(strconv.AppendInt(b, int64(completion), 10), `,"prompt_tokens_details":null,"completion_tokens_details":null},"output_mode":"tokens","choices":[`...)
}
