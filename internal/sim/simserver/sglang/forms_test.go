package sglang

import (
	"strings"
	"testing"

	"weir/internal/infer"
	"weir/internal/sim/simserver/exchange"
	"weir/internal/sim/simserver/exchange/exchangetest"
	"weir/internal/sim/simserver/flags"
)

// generating gives the forms of the streams of /generate.
func generating(t testing.TB) map[string]exchangetest.Start {
	run, v := exchangetest.Engine(t)
	start := func(o *flags.SGLang) exchangetest.Start {
		return func() (*exchange.Exchange, exchange.Form) {
			g := &generation{Exchange: exchange.New(run, v, nil, nil, "", 1), server: New(run, v, o),
				items: []item{{rid: strings.Repeat("r", 32), limit: 1 << 30}}, said: make([]said, 1), streams: true, incremental: o.Incremental}
			g.begin(&g.said[0], &g.items[0])
			g.Outputs = []exchange.Output{{Prompt: []uint32{1}}}
			return &g.Exchange, g
		}
	}
	return map[string]exchangetest.Start{"incremental": start(&flags.SGLang{Incremental: true, Metrics: true}), "cumulative": start(&flags.SGLang{})}
}

// No token of a stream allocates.
func TestGenerateAllocatesNothing(t *testing.T) {
	for name, start := range generating(t) {
		t.Run(name, func(t *testing.T) { exchangetest.AllocatesNothing(t, start) })
	}
}

// However results are merged, a client reads the same.
func TestGenerateMerges(t *testing.T) {
	for name, start := range generating(t) {
		t.Run(name, func(t *testing.T) { exchangetest.Merges(t, start, false, name == "cumulative") })
	}
}

// BenchmarkGenerateEvents is what a token's event costs without the writing of it. A cumulative one
// copies all of the output so far, here some 1000 tokens.
func BenchmarkGenerateEvents(b *testing.B) {
	for name, start := range generating(b) {
		b.Run(name, func(b *testing.B) { exchangetest.Events(b, start) })
	}
}

// What never becomes a rune is U+FFFD.
func TestBrokenRunes(t *testing.T) {
	x, f := generating(t)["cumulative"]()
	x.Open = 1
	// The first ids are bytes: the first two of three.
	for i, id := range []uint32{'a', 0xe4, 0xb8} {
		x.Taken.Add(0, id, uint32(i+1))
	}
	x.Taken.Steps = 1
	exchangetest.End(x, 3)
	b, _ := x.Digest(nil, f, false)
	if !strings.Contains(string(b), "\"text\":\"a\ufffd\",") || x.Outputs[0].Reason != infer.ReasonLength {
		t.Errorf("%s", b)
	}
}
