package simserver

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/sim"
	"weir/internal/sim/simserver/engine"
)

// BenchmarkPlane is tokens per second through the plane, engine and a client
// that only counts in one process, with 4096 requests running in steps of 1 ms.
func BenchmarkPlane(b *testing.B) {
	const running = 4096
	bench := startOnLoopback(b, Options{Sim: sim.Options{MaxRunning: running, StepTokens: 16 * running, ContextLength: 1 << 30,
		Cost: sim.Constant{Prefill: time.Millisecond, Decode: time.Millisecond}}})
	g := bench.dial(1, 64<<20)
	for slot := range uint32(running) {
		if err := g.submit(slot, 1<<29); err != nil {
			b.Fatal(err)
		}
	}
	tokens := 0
	b.ReportAllocs()
	for b.Loop() {
		s, err := g.steps.Recv()
		if err != nil {
			b.Fatal(err)
		}
		tokens += len(s.Id)
	}
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(bench.e.State().LateP99, "late-p99-ms")
}

// BenchmarkOpenAI is tokens per second over HTTP streams, server and a client
// that only counts events in one process.
func BenchmarkOpenAI(b *testing.B) {
	const streams = 512
	bench := startOnLoopback(b, Options{Sim: sim.Options{MaxRunning: streams, ContextLength: 1 << 30,
		Cost: sim.Constant{Prefill: time.Millisecond, Decode: time.Millisecond}}})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var read atomic.Int64
	for range streams {
		wg.Go(func() {
			req, _ := http.NewRequestWithContext(ctx, http.MethodPost, bench.openai+chat, strings.NewReader(`{"messages":[{"role":"user","content":"x"}],"ignore_eos":true,"stream":true}`))
			resp, err := bench.client.Do(req)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			buf := make([]byte, 32<<10)
			for {
				n, err := resp.Body.Read(buf)
				read.Add(int64(bytes.Count(buf[:n], []byte("\n\n")))) // events
				if err != nil {
					return
				}
			}
		})
	}
	bench.settle("all streams", func(s engine.State) bool { return s.Running == streams })
	from := read.Load()
	for b.Loop() {
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(float64(read.Load()-from)/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(bench.e.State().LateP99, "late-p99-ms")
	cancel()
	wg.Wait()
}
