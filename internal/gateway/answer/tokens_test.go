package answer

import (
	"strings"
	"testing"

	"weir/internal/api"
	"weir/internal/chat/parse"
	"weir/internal/infer"
	"weir/internal/openai"
	"weir/internal/stream"
	"weir/internal/trace"
)

// noStages is for tests that do not look at stages.
type noStages struct{}

func (noStages) Enter(trace.Stage) {}

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
	o.Tokenizer, o.EOS = testModel().Tokenizer, testModel().EOS
	if o.Format != nil {
		o.Keep = keptTokens(o.Format.Format)
	}
	if o.CallID == nil {
		o.CallID = func() string { return "call_1" }
	}
	o.Encoder = func(promptTokens int) api.Encoder {
		return o.Request.Encoder(api.AnswerOptions{ID: "1", Created: 1, Model: "m", PromptIDs: make([]uint32, o.PromptTokens), PromptTokens: promptTokens, Vocabulary: o.Tokenizer})
	}
	return NewTokens(o)
}

var deltaFormats = map[string]*parse.Options{"none": nil, "reasoning": {Format: testFormat.WithoutTools()}, "tools": {Format: testFormat, Calls: true}}

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
