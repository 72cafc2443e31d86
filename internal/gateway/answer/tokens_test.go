package answer

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weir/internal/dialect"
	"weir/internal/dialect/openai"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/model/outputparse"
	"weir/internal/model/stop"
	"weir/internal/trace"
)

// noStages is for tests that do not look at stages.
type noStages struct{}

func (noStages) Enter(trace.Stage) int64 { return 0 }

// chatAnswer is the answer to a chat whose fields follow as JSON.
func chatAnswer(t testing.TB, fields string, o TokensOptions) *Tokens {
	t.Helper()
	head, err := openai.Chat.ParseHead([]byte(`{"model":"m","messages":[{"role":"user","content":"hi"}]` + fields + `}`))
	if err == nil {
		o.Request, err = openai.Chat.Request(head, "weir", 1<<31-1)
	}
	if err != nil {
		t.Fatal(err)
	}
	o.Choices, o.PromptTokens = max(1, o.Choices), max(1, o.PromptTokens)
	o.Tokenizer, o.EOS, o.Stops = testModel().Tokenizer, testModel().EOS, stop.New(o.Request.Stop)
	if o.Format != nil {
		o.Keep = keptTokens(o.Format.Format)
	}
	if o.CallID == nil {
		o.CallID = func(string, int) string { return "call_1" }
	}
	o.Encoder = func(_ *Tokens, promptTokens int) dialect.Encoder {
		return o.Request.Encoder(dialect.AnswerOptions{ID: "1", Created: 1, Model: "m", PromptIDs: make([]uint32, o.PromptTokens), PromptTokens: promptTokens, Vocabulary: o.Tokenizer})
	}
	return NewTokens(o)
}

var deltaFormats = map[string]*outputparse.Options{"none": nil, "reasoning": {Format: testFormat.WithoutTools()}, "tools": {Format: testFormat, Calls: true}}

// A delta allocates nothing: not for words, and not for words where tools may be
// called.
func TestDeltasAllocateNothing(t *testing.T) {
	ids, err := encodeText(" word")
	if err != nil {
		t.Fatal(err)
	}
	for name, format := range deltaFormats {
		a := chatAnswer(t, `,"stream":true`, TokensOptions{Format: format})
		var s Scratch
		cells := []stream.Cell{{IDs: ids}}
		var part Part
		turn := func() { part = a.Next(&Input{Cells: cells}, &s, noStages{}) }
		turn()
		turn()
		if n := testing.AllocsPerRun(100, turn); n != 0 {
			t.Errorf("%s: %v allocations for a delta", name, n)
		}
		if part.Err != nil || part.Last || !strings.Contains(string(part.Out), `"delta":{"content":" word"}`) {
			t.Errorf("%s: %+v, %s", name, part, part.Out)
		}
	}
}

// The parse and encode stages allocate nothing per delta.
func TestParseAndEncodeAllocateNothing(t *testing.T) {
	for name, format := range deltaFormats {
		a := chatAnswer(t, `,"stream":true`, TokensOptions{Format: format})
		out, turn := parseAndEncode(a)
		turn()
		turn()
		if n := testing.AllocsPerRun(100, turn); n != 0 {
			t.Errorf("%s: %v allocations for a delta", name, n)
		}
		if !strings.Contains(string(*out), `"delta":{"content":" word"}`) {
			t.Errorf("%s: %s", name, *out)
		}
	}
}

// parseAndEncode takes a word through these two stages.
func parseAndEncode(a *Tokens) (out *[]byte, turn func()) {
	var s Scratch
	cell := &stream.Cell{}
	text := []byte(" word")
	out = new([]byte)
	return out, func() {
		ch := &a.choices[0]
		p := piece{text: text}
		events := a.parse(ch, cell, &p, &s)
		var err *infer.Error
		if *out, err = a.encode((*out)[:0], ch, cell, p, events); err != nil {
			panic(err)
		}
	}
}

// BenchmarkParseAndEncode is a delta of a word: with no parser, where reasoning may
// come and has not, and where tools may be called. BenchmarkDelta has detokenize too.
func BenchmarkParseAndEncode(b *testing.B) {
	for name, format := range deltaFormats {
		b.Run(name, func(b *testing.B) {
			_, turn := parseAndEncode(chatAnswer(b, `,"stream":true`, TokensOptions{Format: format}))
			b.ReportAllocs()
			for b.Loop() {
				turn()
			}
		})
	}
}

// BenchmarkDelta is a delta of a word: with no parser, where reasoning may come and
// has not, and where tools may be called.
func BenchmarkDelta(b *testing.B) {
	ids, err := encodeText(" word")
	if err != nil {
		b.Fatal(err)
	}
	for name, format := range deltaFormats {
		b.Run(name, func(b *testing.B) {
			a := chatAnswer(b, `,"stream":true`, TokensOptions{Format: format})
			var s Scratch
			cells := []stream.Cell{{IDs: ids}}
			b.ReportAllocs()
			for b.Loop() {
				if p := a.Next(&Input{Cells: cells}, &s, noStages{}); p.Err != nil {
					b.Fatal(p.Err)
				}
			}
		})
	}
}

// An answer ends at the first of the request's stop ids also where the engine goes on
// behind it, as SGLang does with ignore_eos, and then the engine is to stop.
func TestEndAtStopID(t *testing.T) {
	word, err := encodeText(" word")
	if err != nil {
		t.Fatal(err)
	}
	w, x := word[0], testModel().EOS[0]
	stopped, ran := &infer.Finish{Reason: infer.ReasonStop, CachedTokens: 3}, &infer.Finish{Reason: infer.ReasonLength, CachedTokens: 3}
	failed := &infer.Finish{Reason: infer.ReasonError, Err: infer.Errorf(infer.CodeEngine, "gone")}
	for _, c := range []struct {
		name, fields string
		cells        []stream.Cell
		words        int // of the answer
		finish       string
		stops        []Stop
	}{
		{"in the midst", `,"ignore_eos":true`, []stream.Cell{{IDs: []uint32{w, x, w, w}}}, 1, "stop", []Stop{{0, true}}},
		{"at once", `,"ignore_eos":true`, []stream.Cell{{IDs: []uint32{x, w}}}, 0, "stop", []Stop{{0, true}}},
		{"at a cell's end", `,"ignore_eos":true`, []stream.Cell{{IDs: []uint32{w}}, {IDs: []uint32{w, x}}}, 2, "stop", []Stop{{0, true}}},
		{"before the engine's own end", `,"ignore_eos":true`, []stream.Cell{{IDs: []uint32{w, x, w}, Finish: ran}}, 1, "stop", []Stop{{0, false}}},
		{"before a failure", `,"ignore_eos":true`, []stream.Cell{{IDs: []uint32{w, x, w}, Finish: failed}}, 1, "stop", []Stop{{0, false}}},
		{"where the engine ends", ``, []stream.Cell{{IDs: []uint32{w, x}, Finish: stopped}}, 1, "stop", nil},
		{"not before min_tokens", `,"ignore_eos":true,"min_tokens":3`, []stream.Cell{{IDs: []uint32{w, x, w}, Finish: ran}}, 2, "length", nil},
		{"the first behind min_tokens", `,"ignore_eos":true,"min_tokens":2`, []stream.Cell{{IDs: []uint32{x}}, {IDs: []uint32{w, x, w}}}, 1, "stop", []Stop{{0, true}}},
		{"the last id of min_tokens", `,"ignore_eos":true,"min_tokens":1`, []stream.Cell{{IDs: []uint32{x, x, w}}}, 0, "stop", []Stop{{0, true}}},
	} {
		a := chatAnswer(t, fmt.Sprintf(`,"stream":true,"max_tokens":9,"stop_token_ids":[%d]%s`, x, c.fields), TokensOptions{})
		var s Scratch
		var out string
		var stops []Stop
		last := false
		for i := range c.cells {
			part := a.Next(&Input{Cells: c.cells[i : i+1]}, &s, noStages{})
			out, last = out+string(part.Out), part.Last
			stops = append(stops, part.Stops...)
		}
		if n := strings.Count(out, " word"); n != c.words || !strings.Contains(out, `"finish_reason":"`+c.finish+`"`) || !last {
			t.Errorf("%s: %d words, want %d and %s: %s", c.name, n, c.words, c.finish, out)
		}
		if !slices.Equal(stops, c.stops) {
			t.Errorf("%s: stops %v, want %v", c.name, stops, c.stops)
		}
	}
}
