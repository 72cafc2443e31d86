package fleetsim_test

import (
	"testing"

	"weir/internal/lab/fleetsim"
	"weir/internal/sim"
)

// TestSaturation has workloads whose limit is known, of engines whose steps take 16.5 +
// 0.0152 n + 4.21e-7 n² ms for n tokens of prompts and 6 + 0.35 k for k decoders.
func TestSaturation(t *testing.T) {
	for _, test := range shorter([]struct {
		name, settings string
		running        int
		low, high      float64 // requests a second of an engine
	}{
		{
			// A request takes 60.8 + 6.74 ms, and a step of two or three of them 16.5:
			// steps of two and of 2.05, which is all that 8192 tokens hold.
			"prefill", "rate=20,arrival=constant,duration=2m,input=4000,output=1", 0,
			1000 / (67.5 + 16.5/2), 1000 / (67.5 + 16.5/2.048),
		},
		{
			// 256 decode at most, 400 steps each, so that 0.64 begin in a step, and one
			// begins at least in 47 of 100. They come to be this many in minutes, and till
			// then what is in hand grows at less.
			"decode", "rate=6,arrival=constant,duration=3m,input=16,output=uniform(300,500)", 0,
			0.9 * 1000 * 0.64 / (6 + 0.35*256 + 0.47*16.7), 1000 * 0.64 / (6 + 0.35*256 + 0.47*16.7),
		},
		{
			// One in six steps has a new one.
			"decode of few", "rate=10,arrival=constant,duration=4m,input=16,output=uniform(100,300)", 32,
			1000 / (200*(0.35+6./32) + 16.74), 1000 / (200*(0.35+6./32) + 16.74/1.16),
		},
	}...) {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			const engines = 2
			p := plan(t, test.settings)
			speed, err := fleetsim.Saturation(t.Context(), fleetsim.Options{
				Plan: p, Engine: sim.Options{Words: words, KVTokens: 1_000_000, MaxRunning: test.running},
				Engines: make([]fleetsim.Engine, engines), Seed: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			r := run(t, p, engines, fleetsim.Oracle, nil)
			rate := speed * float64(r.Requests) / p.Span().Seconds() / engines
			t.Logf("%.2f requests a second, want %.2f to %.2f", rate, test.low, test.high)
			// A backlog that grows by less than 2 % is not seen to grow, and the search goes as far
			// as 2 %.
			if rate < 0.97*test.low || rate > 1.04*test.high {
				t.Errorf("%.2f requests a second, want %.2f to %.2f", rate, test.low, test.high)
			}
		})
	}
}
