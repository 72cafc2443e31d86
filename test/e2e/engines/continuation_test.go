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

// An engine gives some of its streams nothing more and goes on with the others. They go on at
// another engine after --stall-timeout; without one they wait for --idle-timeout.
func TestStalledStreamsGoOn(t *testing.T) {
	const stalls = 3
	for _, test := range []struct{ path, stall, by string }{
		{"plane", "2s", "(--stall-timeout)"},
		{"sglang", "2s", "(--stall-timeout)"},
		{"vllm", "2s", "(--stall-timeout)"},
		{"plane", "0s", "(--idle-timeout)"},
	} {
		t.Run(test.path+" "+test.stall, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			args := []string{"serve", "--policy", "round-robin", "--idle-timeout", "12s", "--stall-timeout", test.stall}
			var sims []*harness.Sim
			for i := range 2 {
				s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "5ms", "--decode-cost", "40ms", "--name", fmt.Sprint("e", i))
				sims = append(sims, s)
				args = append(args, "--engine", s.Spec(test.path)+fmt.Sprint(",name=e", i))
			}
			g := harness.StartGateway(t, args...)
			harness.Eventually(t, "both well", func() bool { return up(t, g) == 2 })
			sims[0].SetFaults(fmt.Sprintf("stall,after=20,times=%d", stalls))
			r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 24, Requests: 96, OutputTokens: 60, Body: map[string]any{"ignore_eos": true}})
			harness.WantClean(t, r, 96, 60)
			if n := harness.Metric(t, g.Admin, "weir_continuations_total", `why="silence"`); n != stalls {
				t.Errorf("%v went on, want %d", n, stalls)
			}
			g.Balanced()
			if n := open(t, g, "e0"); n != 0 {
				t.Errorf("%d are still there", n)
			}
			g.Interrupt()
			if n := strings.Count(g.Stderr.String(), test.by); n < 1 {
				t.Errorf("they went on for another reason than %s: %s", test.by, g.Stderr.String())
			}
		})
	}
}

// Streams that an engine has put back because its KV cache is full are left there, however long
// they wait.
func TestRetractedStreamsStay(t *testing.T) {
	for _, path := range []string{"plane", "sglang", "vllm"} {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			args := []string{"serve", "--policy", "round-robin", "--queue", "off", "--stall-timeout", "1s"}
			var sims []*harness.Sim
			for i := range 2 {
				s := harness.StartSim(t, "--cost", "constant", "--prefill-cost", "5ms", "--decode-cost", "25ms", "--max-total-tokens", "1500", "--page-size", "1", "--schedule-conservativeness", "0.1", "--name", fmt.Sprint("e", i))
				sims = append(sims, s)
				args = append(args, "--engine", s.Spec(path)+fmt.Sprint(",name=e", i))
			}
			g := harness.StartGateway(t, args...)
			harness.Eventually(t, "both well", func() bool { return up(t, g) == 2 })
			r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 48, Requests: 72, OutputTokens: 100, Body: map[string]any{"ignore_eos": true}})
			harness.WantClean(t, r, 72, 100)
			if n := harness.Metric(t, g.Admin, "weir_continuations_total"); n != 0 {
				t.Errorf("%v went on elsewhere", n)
			}
			back := 0
			for _, s := range sims {
				back += harness.EngineState(t, s.Admin).Retracted
			}
			if back < 10 {
				t.Errorf("only %d were put back", back)
			}
			g.Interrupt()
		})
	}
}
