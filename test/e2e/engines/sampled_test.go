package engines

import (
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// An engine's loop answers fences but no requests. weir asks it for a token of its own until
// it answers. The clients' requests end at the other engine, and weir's own requests are not
// among them.
func TestSampledEngine(t *testing.T) {
	harness.Beside(t, harness.Light)
	bad, _, g := pair(t, "plane", "--policy", "round-robin")
	bad.SetFaults("hang")
	const requests = 8
	if r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: requests, Requests: requests, OutputTokens: 10}); r.Complete != requests {
		t.Errorf("%d of %d complete: %v %v", r.Complete, requests, r.Errors, r.Examples)
	}
	samples := func(result string) float64 {
		return harness.Metric(t, g.Admin, "weir_probes_total", `engine="bad"`, `kind="generation"`, `result="`+result+`"`)
	}
	harness.Eventually(t, "it is asked for a token", func() bool { return samples("unanswered") >= 1 })
	if samples("answered") != 0 {
		t.Error("it has answered")
	}
	bad.SetFaults()
	harness.Eventually(t, "it has answered", func() bool { return samples("answered") == 1 })
	harness.Eventually(t, "it takes requests again", func() bool { return up(t, g) == 2 })
	if n := harness.Metric(t, g.Admin, "weir_probes_total", `engine="good"`); n != 0 {
		t.Errorf("the other one was probed %v times", n)
	}
	ended := g.Balanced()
	if n := ended["finished"] + ended["cancelled"] + ended["rejected"] + ended["failed"]; n != requests {
		t.Errorf("%v ended, of %d of clients", ended, requests)
	}
	g.Interrupt()
}
