package completion

import (
	"testing"

	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/exchange/exchangetest"
	"weir/internal/sim/simserver/flags"
)

// forms gives the forms of all streams of completions.
func forms(t testing.TB) map[string]exchangetest.Start {
	run, v := exchangetest.Engine(t)
	start := func(d *Dialect, of *Server) exchangetest.Start {
		return func() (*exchange.Exchange, exchange.Form) {
			a := of.Begin(nil, nil, d, "", 1)
			a.said, a.n, a.Logprobs, a.tokenIDs, a.Continuous = make([]saying, 1), 1, -1, of.voice == vllm, of.voice != plain
			a.head = head("id", d.chunk, "weir-sim", 1)
			a.Outputs = []exchange.Output{{Prompt: []uint32{1}}}
			return &a.Exchange, &a
		}
	}
	asPlain, asSGLang, asVLLM := New(run, v, nil, nil), New(run, v, &flags.SGLang{}, nil), New(run, v, nil, &flags.VLLM{})
	return map[string]exchangetest.Start{
		"chat as OpenAI's":        start(Chat, asPlain),
		"chat as vLLM's":          start(Chat, asVLLM),
		"chat as SGLang's":        start(Chat, asSGLang),
		"completions as vLLM's":   start(Text, asVLLM),
		"completions as SGLang's": start(Text, asSGLang),
	}
}

// No token of a stream allocates.
func TestStreamsAllocateNothing(t *testing.T) {
	for name, start := range forms(t) {
		t.Run(name, func(t *testing.T) { exchangetest.AllocatesNothing(t, start) })
	}
}

// However results are merged, a client reads the same.
func TestMerging(t *testing.T) {
	for name, start := range forms(t) {
		t.Run(name, func(t *testing.T) { exchangetest.Merges(t, start, name == "chat as OpenAI's", false) })
	}
}

// BenchmarkEvents is what a token's event costs without the writing of it.
func BenchmarkEvents(b *testing.B) {
	for name, start := range forms(b) {
		b.Run(name, func(b *testing.B) { exchangetest.Events(b, start) })
	}
}
