package engines

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// One of three engines is killed while it streams to many clients. Each stream continues at
// another engine, and no token is lost or repeated. Relayed streams, streams with a seed, and
// all streams with continuation off end with an error that gives the reason.
func TestStreamsOutliveTheirEngine(t *testing.T) {
	const streams, tokens = 120, 150
	for _, test := range []struct {
		path, name string
		args       []string
		body       map[string]any
		forbidden  string
	}{
		{"plane", "plane", nil, nil, ""},
		{"sglang", "sglang", nil, nil, ""},
		{"vllm", "vllm", nil, nil, ""},
		{"plane", "a seed", nil, map[string]any{"seed": 7}, "the request has a seed"},
		{"relay", "relayed", nil, nil, "the engine's ids are not known"},
		{"plane", "off", []string{"--continuation", "off"}, nil, "connection"},
	} {
		t.Run(test.name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			var sims []*harness.Sim
			args := append([]string{"serve", "--policy", "round-robin"}, test.args...)
			for i := range 3 {
				s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "5ms", "--decode-cost", "40ms", "--max-running-requests", "1024", "--name", fmt.Sprint("e", i))
				sims = append(sims, s)
				args = append(args, "--engine", s.Spec(test.path)+fmt.Sprint(",name=e", i))
			}
			g := harness.StartGateway(t, args...)
			harness.Eventually(t, "all well", func() bool { return up(t, g) == 3 })
			body := map[string]any{"ignore_eos": true}
			for k, v := range test.body {
				body[k] = v
			}
			done := make(chan *load.Report, 1)
			go func() {
				done <- harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: streams, Requests: streams, OutputTokens: tokens, Body: body})
			}()
			harness.Eventually(t, "each has some of its answer", func() bool {
				return open(t, g, "e0") >= streams/4 && harness.Metric(t, g.Admin, "weir_output_writes_total") >= 8*streams
			})
			sims[0].Kill()
			r := <-done
			if r.Lost != 0 || r.Corrupt != 0 {
				t.Errorf("%d lost, %d corrupt: %v %v", r.Lost, r.Corrupt, r.Errors, r.Examples)
			}
			went := harness.Metric(t, g.Admin, "weir_continuations_total")
			if test.forbidden == "" {
				harness.WantClean(t, r, streams, tokens)
				if went < streams/4 {
					t.Errorf("%v went on", went)
				}
			} else if r.Complete > streams*3/4 || went != 0 || !strings.Contains(fmt.Sprint(r.Examples), test.forbidden) {
				t.Errorf("%d complete, %v went on: %v %v", r.Complete, went, r.Errors, r.Examples)
			}
			g.Balanced()
			if a := harness.Get(t, g.Admin+"/readyz"); a.Status != http.StatusOK {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			g.Interrupt()
		})
	}
}
