package simserver

import (
	"strings"
	"testing"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/flags"
	"weir/internal/workload/content"
)

// streams gives the forms of all HTTP streams, each with one output that is
// under way.
func forms(t testing.TB) map[string]func() (*exchange.Exchange, exchange.Form) {
	tok := newToyTokenizer()
	words, err := content.New(toyVocab, func(id uint32) ([]byte, bool) { return tok.Text(id), true })
	if err != nil {
		t.Fatal(err)
	}
	engine := func(o flags.SGLang) *Engine {
		e, err := New(Options{Tokenizer: tok, SGLang: o, Sim: sim.Options{Words: words, VocabSize: toyVocab}})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	generation := func(o flags.SGLang) (*exchange.Exchange, exchange.Form) {
		e := engine(o)
		g := &generation{Exchange: exchange.New(e.run, e.vocab, nil, nil, "", 1), server: newSGLang(e.run, e.vocab, &o),
			items: []item{{rid: strings.Repeat("r", 32), limit: 1 << 30}}, said: make([]said, 1), streams: true, incremental: o.Incremental}
		g.begin(&g.said[0], &g.items[0])
		g.Outputs = []exchange.Output{{Prompt: []uint32{1}}}
		return &g.Exchange, g
	}
	answered := func(d *dialect, v voice) (*exchange.Exchange, exchange.Form) {
		e := engine(flags.SGLang{})
		of := newCompletions(e.run, e.vocab, nil, nil)
		switch v {
		case sglang:
			of = newCompletions(e.run, e.vocab, &flags.SGLang{}, nil)
		case vllm:
			of = newCompletions(e.run, e.vocab, nil, &flags.VLLM{})
		}
		a := &answer{Exchange: exchange.New(e.run, e.vocab, nil, nil, "", 1), of: of, d: d, voice: v, said: make([]saying, 1), n: 1, logprobs: -1, tokenIDs: v == vllm, continuous: v != plain,
			head: head("id", d.chunk, "weir-sim", 1)}
		a.Outputs = []exchange.Output{{Prompt: []uint32{1}}}
		return &a.Exchange, a
	}
	return map[string]func() (*exchange.Exchange, exchange.Form){
		"generate, incremental": func() (*exchange.Exchange, exchange.Form) {
			return generation(flags.SGLang{Incremental: true, Metrics: true})
		},
		"generate, cumulative":    func() (*exchange.Exchange, exchange.Form) { return generation(flags.SGLang{}) },
		"chat as OpenAI's":        func() (*exchange.Exchange, exchange.Form) { return answered(chatDialect, plain) },
		"chat as vLLM's":          func() (*exchange.Exchange, exchange.Form) { return answered(chatDialect, vllm) },
		"chat as SGLang's":        func() (*exchange.Exchange, exchange.Form) { return answered(chatDialect, sglang) },
		"completions as vLLM's":   func() (*exchange.Exchange, exchange.Form) { return answered(textDialect, vllm) },
		"completions as SGLang's": func() (*exchange.Exchange, exchange.Form) { return answered(textDialect, sglang) },
	}
}

// next gives an output n ids more, as Run would.
func next(x *exchange.Exchange, n int) {
	o := &x.Outputs[0]
	for i := range n {
		x.Taken.Add(0, 300+uint32(o.Completion+i)%1024, uint32(o.Completion+i+1))
	}
	x.Taken.Steps, x.Taken.End = 1, int64(o.Completion)
}

// No token of a stream allocates, on any wire.
func TestStreamsAllocateNothing(t *testing.T) {
	for name, start := range forms(t) {
		x, f := start()
		var buf []byte
		// Up to the sizes that buffers grow to.
		for range 2000 {
			next(x, 1)
			buf, _ = x.Digest(buf[:0], f, false)
		}
		if !strings.HasPrefix(string(buf), "data: {") {
			t.Fatalf("%s: %s", name, buf)
		}
		if n := testing.AllocsPerRun(500, func() {
			next(x, 1)
			buf, _ = x.Digest(buf[:0], f, false)
		}); n != 0 {
			t.Errorf("%s: %v allocations per token", name, n)
		}
	}
}

// BenchmarkEvents is what a token's event costs without the writing of it. A
// cumulative one copies all of the output so far, here some 1000 tokens.
func BenchmarkEvents(b *testing.B) {
	for name, start := range forms(b) {
		b.Run(name, func(b *testing.B) {
			x, f := start()
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				if x.Outputs[0].Completion == 2000 {
					b.StopTimer()
					x, f = start()
					b.StartTimer()
				}
				next(x, 1)
				buf, _ = x.Digest(buf[:0], f, false)
			}
		})
	}
}

// What never becomes a rune is U+FFFD.
func TestBrokenRunes(t *testing.T) {
	x, f := forms(t)["generate, cumulative"]()
	o := &x.Outputs[0]
	x.Open = 1
	// The toy tokenizer's first ids are bytes: the first two of three.
	for i, id := range []uint32{'a', 0xe4, 0xb8} {
		x.Taken.Add(0, id, uint32(i+1))
	}
	x.Taken.Steps = 1
	x.Taken.Done = append(x.Taken.Done, engine.Done{Done: sim.Done{Reason: infer.ReasonLength, Completion: 3, Matched: -1}})
	b, _ := x.Digest(nil, f, false)
	if !strings.Contains(string(b), "\"text\":\"a\ufffd\",") || o.Reason != infer.ReasonLength {
		t.Errorf("%s", b)
	}
}
