package responses

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weir/internal/dialect"
	"weir/internal/infer"
)

var rewrite = flag.Bool("rewrite", false, "write the goldens in testdata anew")

func unmarshal(raw []byte, v any) error { return json.Unmarshal(raw, v) }

// span is a part of an output: of its content, of its reasoning, or a call.
type span struct {
	kind dialect.Delta
	text string
	name string // of a call
}

// letters is a vocabulary of code points.
type letters struct{}

func (letters) TokenBytes(id uint32) []byte { return []byte(string(rune(id))) }
func (letters) Special(uint32) bool         { return false }

// tokensOf returns a token for each code point, with as many alternatives.
func tokensOf(text string, top int) (t dialect.Tokens) {
	for _, r := range text {
		t.IDs = append(t.IDs, uint32(r))
		t.Logprobs.Own = append(t.Logprobs.Own, -float32(r))
		for k := range top {
			t.Logprobs.TopIDs, t.Logprobs.Top = append(t.Logprobs.TopIDs, uint32(r)+uint32(k)), append(t.Logprobs.Top, -float32(r)-float32(k))
		}
	}
	return t
}

// answerTo describes the answer of the tests.
var answerTo = dialect.AnswerOptions{ID: "req-1", Created: 1700000000, Model: "m", PromptIDs: []uint32{1, 2, 3}, Vocabulary: letters{}}

// play has an encoder say spans in pieces: cut gives the length of the next one,
// of so many bytes that are left. Where log probabilities are wanted, every piece of
// content comes with its tokens, and a last one of no text follows each span of it.
func play(e *encoder, spans []span, reason infer.Reason, cut func(left int) int) []byte {
	out := e.AppendStart(nil, 0)
	calls := -1
	for _, s := range spans {
		if s.kind == dialect.DeltaArguments {
			calls++
			out = e.AppendCall(out, 0, calls, "call_"+s.name, s.name)
		}
		for text := s.text; text != ""; {
			n := cut(len(text))
			for n < len(text) && text[n]&0xC0 == 0x80 {
				n++ // pieces are whole runes
			}
			scored := s.kind == dialect.DeltaContent && e.logprobs != nil
			if s.kind == dialect.DeltaContent && n%2 == 0 && !scored {
				out = e.AppendText(out, 0, []byte(text[:n]))
			} else {
				out = e.OpenDelta(out, 0, s.kind, calls)
				half := n / 2
				for half < n && text[half]&0xC0 == 0x80 {
					half++
				}
				out = e.AppendDelta(out, []byte(text[:half]))
				out = e.AppendDelta(out, []byte(text[half:n]))
				if scored {
					out = e.AppendTokens(out, 0, nil, tokensOf(text[:n], *e.logprobs))
				}
				out = e.CloseDelta(out)
			}
			text = text[n:]
		}
		if s.kind == dialect.DeltaContent && e.logprobs != nil {
			out = e.OpenDelta(out, 0, s.kind, calls)
			out = e.AppendTokens(out, 0, nil, tokensOf("·", *e.logprobs))
			out = e.CloseDelta(out)
		}
	}
	out = e.AppendFinish(out, 0, dialect.Finish{Reason: reason, Tokens: 5})
	return e.AppendEnd(out, infer.Usage{PromptTokens: 3, CompletionTokens: 5, CachedTokens: 2, ReasoningTokens: 1})
}

func all(left int) int { return left }

// whole returns the whole answer to a request.
func whole(r *dialect.Request, spans []span) []byte {
	o := *r
	e := o.Encoder(answerTo).(*encoder)
	e.stream = false
	return play(e, spans, infer.ReasonStop, all)
}

// The answers' bytes, whole and streamed.
func TestGolden(t *testing.T) {
	for _, test := range []struct {
		name   string
		fields string
		spans  []span
		reason infer.Reason
	}{
		{"text", ``, []span{{kind: dialect.DeltaContent, text: "Hello \"wör\nld\""}}, infer.ReasonStop},
		{"empty", ``, nil, infer.ReasonStop},
		{"cut", `,"max_output_tokens":5`, []span{{kind: dialect.DeltaReasoning, text: "hm"}, {kind: dialect.DeltaContent, text: "Hello"}}, infer.ReasonLength},
		{"calls", `,"instructions":"Be brief","metadata":{"a":` + "\n\n" + `"b"},"tools":[{"type":"function","name":"f","strict":true,"parameters":{"type": "object"}}]`, []span{
			{kind: dialect.DeltaReasoning, text: "think"}, {kind: dialect.DeltaContent, text: "So:"},
			{kind: dialect.DeltaArguments, name: "f", text: `{"x": "\n"}`}, {kind: dialect.DeltaArguments, name: "g"},
		}, infer.ReasonToolCalls},
		{"namespace", `,"tools":[` + own + `,` + crm + `,` + shop + `]`, []span{
			{kind: dialect.DeltaArguments, name: "crm__get", text: `{"id": 1}`}, {kind: dialect.DeltaArguments, name: "get"}, {kind: dialect.DeltaArguments, name: "mcp__shop__get"}, {kind: dialect.DeltaArguments, name: "crm__none"},
		}, infer.ReasonToolCalls},
		{"custom", `,"tools":[{"type":"custom","name":"run","description":"Runs."},{"type":"custom","name":"say","format":{"type": "text"}},` + own + `]`, []span{
			{kind: dialect.DeltaArguments, name: "run", text: "{\"input\": \"print(\\\"é\\\")\\n\\ud83d\\ude00\"}"}, {kind: dialect.DeltaArguments, name: "say", text: "ls\n"}, {kind: dialect.DeltaArguments, name: "get", text: "{}"}, {kind: dialect.DeltaArguments, name: "run"},
		}, infer.ReasonToolCalls},
		{"logprobs", `,"top_logprobs":1,"include":["message.output_text.logprobs"]`, []span{
			{kind: dialect.DeltaReasoning, text: "hm"}, {kind: dialect.DeltaContent, text: "Öh"}, {kind: dialect.DeltaArguments, name: "f", text: "{}"}, {kind: dialect.DeltaContent, text: "So"},
		}, infer.ReasonStop},
		{"summary", `,"reasoning":{"effort":"high","summary":"auto"}`, []span{{kind: dialect.DeltaReasoning, text: "think"}, {kind: dialect.DeltaContent, text: "So"}}, infer.ReasonStop},
	} {
		for _, stream := range []string{"false", "true"} {
			r, err := decode(t, `{"model":"m","input":"x","stream":`+stream+test.fields+`}`, infer.CarriesAll)
			if err != nil {
				t.Fatal(err)
			}
			e := r.Encoder(answerTo).(*encoder)
			got := play(e, test.spans, test.reason, func(left int) int { return (left + 1) / 2 })
			file := filepath.Join("testdata", test.name+map[string]string{"false": ".json", "true": ".sse"}[stream])
			if *rewrite {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got): %s", file, diff)
			}
		}
	}
}

// A stream that fails says so, in the events that clients look for, and never
// that it is complete.
func TestFailed(t *testing.T) {
	r, err := decode(t, `{"model":"m","input":"x","stream":true}`, 0)
	if err != nil {
		t.Fatal(err)
	}
	e := r.Encoder(answerTo)
	out := e.AppendText(e.AppendStart(nil, 0), 0, []byte("Hel"))
	out = e.AppendError(out, &infer.Error{Code: infer.CodeEngine, Message: "lost"})
	c := read(t, out)
	if c.final != "response.failed" || c.response.Status != "failed" || c.response.Error == nil || c.response.Error.Code != "server_error" ||
		len(c.response.Output) != 1 || c.response.Output[0].Status != "incomplete" || c.failure == nil || c.failure.Code != "engine_error" || c.failure.Message != "lost" {
		t.Errorf("%s", out)
	}
}

// object is what a client reads of an answer.
type object struct {
	ID     string
	Status string
	Output []outputItem
	Error  *struct{ Code, Message string }
	Usage  jsontext.Value
	Rest   jsontext.Value `json:",embed"`
}

type outputItem struct {
	ID, Type, Status, Role, Arguments, Input, Name, Namespace string
	CallID                                                    string `json:"call_id"`
	Content, Summary                                          []textPart
}

// textPart is a part of an item.
type textPart struct {
	Type, Text string
	Logprobs   []entry
}

// entry is a token of a text.
type entry struct {
	Token   string
	Bytes   []int
	Logprob float64
	Top     []entry `json:"top_logprobs"`
}

// text is the item's text, wherever it stands.
func (it *outputItem) text() string {
	for _, p := range append(it.Content, it.Summary...) {
		return p.Text
	}
	return it.Arguments + it.Input
}

// reader is a client that takes nothing for granted: every event must fit what
// came before it.
type reader struct {
	response object
	final    string // the type of the event that ended the stream
	failure  *struct{ Code, Message string }
}

func same(a, b []entry) bool { return len(a) == 0 && len(b) == 0 || cmp.Equal(a, b) }

func read(t interface {
	Fatalf(string, ...any)
	Helper()
}, stream []byte) reader {
	t.Helper()
	var c reader
	var items []outputItem
	added, ended := map[int]bool{}, map[int]bool{}
	texts := map[int]string{}
	scores := map[int][]entry{}
	blocks := strings.Split(strings.TrimSuffix(string(stream), "\n\n"), "\n\n")
	for i, block := range blocks {
		name, data, ok := strings.Cut(strings.TrimPrefix(block, "event: "), "\ndata: ")
		var ev struct {
			Type     string
			Sequence int `json:"sequence_number"`
			Response object
			Item     outputItem
			Index    int    `json:"output_index"`
			ItemID   string `json:"item_id"`
			Part     textPart
			Delta    string
			Text     string
			Logprobs []entry

			Arguments, Input, Code, Message string
		}
		if err := json.Unmarshal([]byte(data), &ev, json.MatchCaseInsensitiveNames(true)); !ok || err != nil || ev.Type != name || ev.Sequence != i {
			t.Fatalf("event %d: %v: %s", i, err, block)
		}
		if c.final != "" {
			t.Fatalf("%s after %s", ev.Type, c.final)
		}
		about := func() {
			if !added[ev.Index] || ended[ev.Index] || items[ev.Index].ID != ev.ItemID {
				t.Fatalf("event %d is of no item that is under way: %s", i, block)
			}
		}
		switch ev.Type {
		case "response.created", "response.in_progress":
			if ev.Response.Status != "in_progress" || len(ev.Response.Output) > 0 || (ev.Type == "response.created") != (i == 0) {
				t.Fatalf("event %d: %s", i, block)
			}
			c.response.ID = ev.Response.ID
		case "response.output_item.added":
			if ev.Index != len(items) || ev.Item.text() != "" || len(ev.Item.Content) > 0 {
				t.Fatalf("event %d: %s", i, block)
			}
			items = append(items, ev.Item)
			added[ev.Index] = true
		case "response.content_part.added", "response.reasoning_summary_part.added":
			about()
		case "response.output_text.delta", "response.function_call_arguments.delta", "response.custom_tool_call_input.delta", "response.reasoning_text.delta", "response.reasoning_summary_text.delta":
			about()
			texts[ev.Index] += ev.Delta
			scores[ev.Index] = append(scores[ev.Index], ev.Logprobs...)
		case "response.output_text.done", "response.reasoning_text.done", "response.reasoning_summary_text.done":
			if about(); ev.Text != texts[ev.Index] || !same(ev.Logprobs, scores[ev.Index]) {
				t.Fatalf("event %d: %q was said: %s", i, texts[ev.Index], block)
			}
		case "response.content_part.done", "response.reasoning_summary_part.done":
			if about(); ev.Part.Text != texts[ev.Index] || !same(ev.Part.Logprobs, scores[ev.Index]) {
				t.Fatalf("event %d: %q was said: %s", i, texts[ev.Index], block)
			}
		case "response.function_call_arguments.done":
			if about(); ev.Arguments != texts[ev.Index] {
				t.Fatalf("event %d: %q was said: %s", i, texts[ev.Index], block)
			}
		case "response.custom_tool_call_input.done":
			if about(); ev.Input != texts[ev.Index] {
				t.Fatalf("event %d: %q was said: %s", i, texts[ev.Index], block)
			}
		case "response.output_item.done":
			if was := items[ev.Index]; ev.Item.ID != was.ID || ev.Item.Name != was.Name || ev.Item.Namespace != was.Namespace || ev.Item.text() != texts[ev.Index] || ended[ev.Index] {
				t.Fatalf("event %d: %s", i, block)
			}
			items[ev.Index], ended[ev.Index] = ev.Item, true
		case "error":
			c.failure = &struct{ Code, Message string }{ev.Code, ev.Message}
		case "response.completed", "response.incomplete", "response.failed":
			if ev.Response.ID != c.response.ID || len(ev.Response.Output) != len(items) {
				t.Fatalf("event %d: %s", i, block)
			}
			for i, it := range ev.Response.Output {
				if failed := ev.Type == "response.failed"; !failed && cmp.Diff(items[i], it) != "" || it.text() != texts[i] || !ended[i] && !failed {
					t.Fatalf("item %d: %v, then %v", i, items[i], it)
				}
			}
			c.response, c.final = ev.Response, ev.Type
		default:
			t.Fatalf("event %d: %s", i, block)
		}
	}
	return c
}

// For any output in any pieces: a client that adds up a stream gets the object that the stream has
// at its end, and that object equals the whole answer's.
func TestStreamIsTheWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var spans []span
		for n := rapid.IntRange(0, 6).Draw(t, "spans"); len(spans) < n; {
			s := span{kind: rapid.SampledFrom([]dialect.Delta{dialect.DeltaContent, dialect.DeltaReasoning, dialect.DeltaArguments}).Draw(t, "kind")}
			s.text = rapid.StringOfN(rapid.RuneFrom([]rune("ab \"\\\n\x01é日😀")), 1, 12, -1).Draw(t, "text")
			if s.kind == dialect.DeltaArguments {
				if s.name = rapid.StringMatching("[a-c]").Draw(t, "name"); s.name == "b" && rapid.Bool().Draw(t, "custom") {
					s.text = string(appendCustomArguments(nil, s.text))
				}
			}
			spans = append(spans, s)
		}
		reason := rapid.SampledFrom([]infer.Reason{infer.ReasonStop, infer.ReasonLength, infer.ReasonToolCalls}).Draw(t, "reason")
		o := encoderOptions{summary: rapid.Bool().Draw(t, "summary"), echo: []byte(`,"tools":[]`), known: map[string]known{"a": {namespace: "s", name: "f"}, "b": {name: "b", custom: true}}}
		if top := rapid.IntRange(-1, 2).Draw(t, "top"); top >= 0 {
			o.logprobs = &top
		}
		want := play(newEncoder(answerTo, o), spans, reason, all)
		o.stream = true
		for _, cut := range []func(int) int{all, func(int) int { return 1 }, func(left int) int { return rapid.IntRange(1, left).Draw(t, "cut") }} {
			stream := play(newEncoder(answerTo, o), spans, reason, cut)
			c := read(t, stream)
			last := stream[bytes.LastIndex(stream, []byte("\ndata: ")):]
			_, got, _ := bytes.Cut(last, []byte(`,"response":`))
			if got := strings.TrimSuffix(string(got), "}\n\n"); got != string(want) {
				t.Fatalf("stream ends with\n%s, the whole is\n%s", got, want)
			}
			if want := "response.completed"; reason == infer.ReasonLength && c.final != "response.incomplete" || reason != infer.ReasonLength && c.final != want {
				t.Fatalf("%s ends with %s", reason, c.final)
			}
		}
	})
}

// A delta costs the room of what it says, twice: in the stream, and in what is
// said again at the end.
func TestDeltaAllocations(t *testing.T) {
	e := newEncoder(answerTo, encoderOptions{stream: true})
	dst := make([]byte, 0, 1<<20)
	dst = e.AppendStart(dst, 0)
	text := []byte("word ")
	e.AppendText(dst, 0, text)
	e.said = append(make([]byte, 0, 1<<20), e.said...)
	if n := testing.AllocsPerRun(1000, func() { dst = e.AppendText(dst[:0], 0, text) }); n != 0 {
		t.Errorf("%v allocations a delta", n)
	}
}

func BenchmarkDelta(b *testing.B) {
	e := newEncoder(answerTo, encoderOptions{stream: true})
	dst := e.AppendStart(nil, 0)
	text := []byte("word ")
	b.ReportAllocs()
	for b.Loop() {
		dst = e.AppendText(dst[:0], 0, text)
		if len(e.said) > 1<<20 {
			e.said, e.items[0].to = e.said[:0], 0
		}
	}
}
