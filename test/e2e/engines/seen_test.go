package engines

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// The gateway's judgement of an engine is visible to an operator in /engines, weir engines and
// the metrics, with its reason and the time since when it holds. The log has it once for each
// change, with the id of the latest request that the engine was given. A request that ends by
// a bound names the bound and its value.
func TestSeen(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Paths {
		if testing.Short() && path != "sglang" {
			continue
		}
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			bad, _, g := pair(t, path, "--submit-timeout", "6s", "--first-timeout", "6s", "--idle-timeout", "6s")
			plan := load.Plan{URL: g.URL, Concurrency: 4, Requests: 8, OutputTokens: 10, Body: map[string]any{"ignore_eos": true}}
			serve := func() {
				if r := harness.RunPlan(t, plan); r.Complete != 8 {
					t.Errorf("%d of 8 complete: %v %v", r.Complete, r.Errors, r.Examples)
				}
			}
			serve()
			bad.SetFaults("wedge")
			harness.Eventually(t, "it is down", func() bool { serve(); return healths(t, g)["bad"].State == "down" })

			var engines []struct {
				Name   string
				Health struct {
					State, Why, Cause string
					For               *float64 `json:"for_seconds"`
					Silence           *float64 `json:"silence_seconds"`
				}
			}
			if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &engines); err != nil {
				t.Fatal(err)
			}
			for _, e := range engines {
				h := e.Health
				if out := e.Name == "bad"; h.For == nil || h.Silence == nil || (h.Cause != "") != out || out && !strings.Contains(h.Why, "probe") {
					t.Errorf("%+v", e)
				}
			}
			out, _, code := harness.Finish(t, "", "engines", "--admin", g.Admin)
			if code != 0 || !regexp.MustCompile(`(?m)^bad: (down|up|suspect|probing|soft) for [0-9.]+ s: .*probe`).MatchString(out) {
				t.Errorf("weir engines: %d\n%s", code, out)
			}
			for _, name := range []string{"weir_engine_state_seconds", "weir_engine_silence_seconds"} {
				if body := string(harness.Get(t, g.Admin+"/metrics").Body); !strings.Contains(body, name+`{engine="bad"}`) || !strings.Contains(body, name+`{engine="good"}`) {
					t.Errorf("no metric %s of both", name)
				}
			}
			if harness.Metric(t, g.Admin, "weir_engine_state", `engine="bad"`, `state="down"`) != 1 || harness.Metric(t, g.Admin, "weir_engine_cause", `engine="bad"`) != 1 {
				t.Error("the metrics do not say that it is down, or what it is down for")
			}

			bad.SetFaults()
			harness.Eventually(t, "both well again", func() bool { serve(); return up(t, g) == 2 })
			g.Interrupt()
			g.Wait()
			log := g.Stderr.String()
			for _, want := range []string{
				`msg="engine is avoided" engine=bad .*why=".+" .*last_request_id=\S+`,
				`msg="engine is down" engine=bad .*why=".+probe.+" .*last_request_id=\S+`,
				`msg="engine takes requests again" engine=bad .*why=".+" .*last_request_id=\S+`,
				`msg="retrying on another engine" request_id=\S+ engine=bad .*6s \(--(submit|first|idle)-timeout\)`,
			} {
				if !regexp.MustCompile(want).MatchString(log) {
					t.Errorf("the log has no %s:\n%s", want, log)
				}
			}
			if strings.Contains(log, "engine is down\" engine=good") {
				t.Errorf("the other one was out:\n%s", log)
			}
		})
	}
}
