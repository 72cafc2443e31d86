package engines

import (
	"strings"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// A request that an engine has read and will never answer does not stay there until its
// deadline. Once the engine is down, the request is repeated at another engine and removed
// from the first. The plane's engine goes on answering fences.
func TestRequestsLeaveWhatIsDown(t *testing.T) {
	for path, fault := range map[string]string{"relay": "hang", "sglang": "hang", "plane": "noprefill"} {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			bad, good, g := pair(t, path, "--policy", "round-robin", "--submit-timeout", "10m")
			plan := load.Plan{URL: g.URL, Concurrency: 8, Requests: 32, OutputTokens: 10, Body: map[string]any{"ignore_eos": true}}
			if r := harness.RunPlan(t, plan); r.Complete != 32 {
				t.Fatalf("before: %d complete: %v %v", r.Complete, r.Errors, r.Examples)
			}
			before := g.Goroutines() // with those that read sockets, which the first requests start
			bad.SetFaults(fault)
			if r := harness.RunPlan(t, plan); r.Complete != 32 || r.Lost != 0 || r.Corrupt != 0 {
				t.Errorf("%d complete, %d lost, %d corrupt: %v %v", r.Complete, r.Lost, r.Corrupt, r.Errors, r.Examples)
			}
			if ended := g.Balanced(); ended["finished"] != 64 {
				t.Errorf("ended %v", ended)
			}
			if n := open(t, g, "bad"); n != 0 {
				t.Errorf("%d requests are still there", n)
			}
			if n := harness.Metric(t, g.Admin, "weir_retries_begun_total", `engine="bad"`); n == 0 {
				t.Error("none was repeated")
			}
			bad.SetFaults()
			harness.Eventually(t, "both well again", func() bool { return up(t, g) == 2 })
			harness.Settled(t, g, before, bad, good)
			g.Interrupt()
			// Their own bounds are minutes away.
			if out := g.Stderr.String(); !strings.Contains(out, "the engine is down: ") {
				t.Errorf("they left for another reason: %s", out)
			}
		})
	}
}
