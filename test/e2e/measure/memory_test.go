//go:build measure

package measure

import (
	"fmt"
	"net"
	"testing"

	"weir/test/e2e/harness"
)

// steady returns a figure once it has not changed for a while.
func steady(t *testing.T, what string, figure func() float64) float64 {
	t.Helper()
	last, same := figure(), 0
	harness.Eventually(t, what, func() bool {
		now := figure()
		if same++; now != last {
			same = 0
		}
		last = now
		return same >= 25
	})
	return last
}

// The memory of the gateway that a stream holds is measured twice: while nothing comes from
// its engine, and while its client does not read. In the second case the engine has sent all
// that the request's bound allows (plane), or as much as there is room for on the way (relay).
// The bounds are generous. The figures are printed, and those of a quiet machine are in
// docs/status.md.
func TestMemoryOfStreams(t *testing.T) {
	const tokens = 20_000
	const idle, stalled = 2000, 200
	resident := func(t *testing.T, g *harness.Gateway) float64 {
		return harness.Metric(t, g.Admin, "process_resident_memory_bytes")
	}
	ask := func(t *testing.T, conn net.Conn, bound int) {
		body := fmt.Sprintf(`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":%d,"messages":[{"role":"user","content":"go on"}]}`, bound)
		harness.PostRaw(t, conn, body)
	}
	for _, path := range []string{"plane", "relay"} {
		for _, kind := range []string{"idle", "stalled"} {
			t.Run(path+" "+kind, func(t *testing.T) {
				harness.Beside(t, harness.Alone)
				args := []string{"--cost", "constant", "--prefill-cost", "1ms", "--decode-cost", "200us", "--max-running-requests", "4096"}
				n := stalled
				if kind == "idle" {
					args, n = append(args, "--fault", "stall,after=1"), idle
				}
				s := harness.StartSim(t, args...)
				g := harness.StartGateway(t, "serve", "--engine", s.Spec(path), "--write-timeout", "5m")
				// One of each, so that what is made once is there.
				ask(t, harness.DialNarrow(t, g), tokens)
				harness.Eventually(t, "streaming", func() bool { return harness.Metric(t, g.Admin, "weir_output_writes_total") > 0 })
				before := resident(t, g)
				for range n {
					ask(t, harness.DialNarrow(t, g), tokens)
				}
				harness.Eventually(t, "all there", func() bool { return harness.Metric(t, g.Admin, "weir_requests_in_flight") == float64(n+1) })
				if kind == "stalled" && path == "plane" {
					// The engines have sent everything, and it waits for clients.
					harness.Eventually(t, "done", func() bool { return harness.EngineState(t, s.Admin).Running == 0 })
				} else {
					steady(t, "as much as there is room for", func() float64 { return harness.Metric(t, g.Admin, "weir_output_bytes_total") })
				}
				if live := harness.Metric(t, g.Admin, "weir_requests_in_flight"); live != float64(n+1) {
					t.Fatalf("%v streams, want %d", live, n+1)
				}
				each := (resident(t, g) - before) / float64(n)
				figure("stream-memory/"+path+"/"+kind, each/1e3, "KB")
				figure("stream-goroutines/"+path+"/"+kind, float64(g.Goroutines())/float64(n), "goroutines")
				limit := 200e3 // ids of a stalled plane stream are 4 bytes each, and twice that in a heap between collections
				if kind == "stalled" && path == "plane" {
					limit += 4 * 4 * tokens
				}
				if each > limit {
					t.Errorf("%.0f bytes each, want at most %.0f", each, limit)
				}
				_ = g.Cmd.Process.Kill() // its streams would be drained for long
				<-g.Exited
				harness.Eventually(t, "free", func() bool { st := harness.EngineState(t, s.Admin); return st.Running == 0 })
			})
		}
	}
}
