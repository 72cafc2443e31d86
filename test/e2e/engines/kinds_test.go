package engines

import (
	"context"
	"strings"
	"sync"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// A model moves from relays to engines that take ids, one engine at a time, while clients send
// requests. No request fails or is lost, and each engine serves some while it is there. Then
// fields that only a relay supports are refused by name.
func TestRollingMove(t *testing.T) {
	for _, wire := range harness.Few(t, []string{"vllm", "sglang"}) {
		t.Run(wire, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			const each = 2
			args := []string{"serve", "--policy", "round-robin"}
			var relayed, ids [each]string
			for i := range each {
				relayed[i], ids[i] = harness.FreeAddress(t), harness.FreeAddress(t)
				args = append(args, "--engine", "openai=http://"+relayed[i]+",name=old-"+string(rune('a'+i)), "--engine", wire+"=http://"+ids[i]+",name=new-"+string(rune('a'+i)))
			}
			engine := func(address string) *harness.Sim {
				p := harness.Start(t, append([]string{"engine", "--wire", wire + "=" + address, "--admin-listen", "127.0.0.1:0"}, harness.FastSim...)...)
				return &harness.Sim{Process: p, Admin: p.Line("admin")}
			}
			var old [each]*harness.Sim
			for i := range each {
				old[i] = engine(relayed[i])
			}
			g := harness.StartUnready(t, args...)
			ready := func(n float64) {
				t.Helper()
				harness.Eventually(t, "so many ready engines", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == n })
			}
			served := func(name string) float64 {
				return harness.Metric(t, g.Admin, "weir_engine_requests_total", `engine="`+name)
			}
			serves := func(name string, more float64) {
				t.Helper()
				was := served(name)
				harness.Eventually(t, "requests at "+name, func() bool { return served(name) >= was+more })
			}
			ready(each)

			// Clients that ask without a pause until the move is done.
			var clients sync.WaitGroup
			var reports [2]*load.Report
			stop, leave := context.WithCancel(t.Context())
			defer leave()
			for client := range reports {
				clients.Go(func() {
					reports[client] = new(load.Report)
					for seed := uint64(1); stop.Err() == nil; seed++ {
						r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 8, Requests: 32, OutputTokens: 20, Seed: seed<<1 + uint64(client), Body: map[string]any{"ignore_eos": true}})
						harness.WantClean(t, r, 32, 20)
						reports[client].Complete += r.Complete
					}
				})
			}
			for i := range each {
				serves("old-", 30)
				engine(ids[i])
				ready(each + 1)
				serves("new-", 30)
				old[i].SetFaults("unavailable") // it ends what it has, and takes nothing more
				harness.Eventually(t, "an old engine that has ended what it had", func() bool {
					s := harness.EngineState(t, old[i].Admin)
					return s.Running+s.Waiting == 0
				})
				old[i].Kill()
				ready(each)
			}
			serves("new-", 60)
			leave()
			clients.Wait()
			ended := g.Balanced()
			if n := reports[0].Complete + reports[1].Complete; ended["finished"] != n || ended["failed"]+ended["rejected"]+ended["cancelled"] != 0 {
				t.Errorf("%d requests were complete, and ended are %v", n, ended)
			}
			t.Logf("%v over the move; retries %v", ended, harness.Metric(t, g.Admin, "weir_retries_total"))

			// A request that only a relay would take waits for a relay, and gets a 503 that says
			// so.
			a := harness.Post(t, g.URL+"/v1/chat/completions", strings.Replace(harness.AskStream, `"max_tokens":40`, `"max_tokens":40,"engines_own":1`, 1))
			if a.Status != 503 || !strings.Contains(string(a.Body), "engines_own") || !strings.Contains(string(a.Body), "relayed") {
				t.Errorf("a field of relays alone: %d %s", a.Status, a.Body)
			}
			if a := harness.Post(t, g.URL+"/tokenize", `{"model":"weir-sim","prompt":"the same"}`); a.Status != 200 {
				t.Errorf("/tokenize: %d %s", a.Status, a.Body)
			}
			g.Interrupt()
		})
	}
}
