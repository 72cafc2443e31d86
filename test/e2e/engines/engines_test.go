package engines

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"weir/test/e2e/harness"
)

// A request's priority reaches an engine that schedules by it, in the engine's own order. A
// request with a priority is refused by name for an engine that does not.
func TestPriority(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, scheduled := range []bool{false, true} {
		args := []string{"--max-running-requests", "1", "--cost", "constant", "--decode-cost", "20ms"}
		if scheduled {
			args = append(args, "--enable-priority-scheduling", "--priority-scheduling-preemption-threshold=-1")
		}
		engine, _ := harness.StartWire(t, "sglang", args...)
		g := harness.StartGateway(t, "serve", "--engine", "sglang="+engine, "--allow-field", "priority")
		ask := func(priority string, tokens int) harness.Answer {
			return harness.Post(t, g.URL+"/v1/completions", fmt.Sprintf(`{"model":"weir-sim","prompt":"Once","max_tokens":%d,"ignore_eos":true,"priority":%s}`, tokens, priority))
		}
		if !scheduled {
			if a := ask("3", 1); a.Status != 400 || !bytes.Contains(a.Body, []byte(`"priority"`)) {
				t.Errorf("not scheduled by: %d %s", a.Status, a.Body)
			}
			if a := ask("0", 1); a.Status != 200 {
				t.Errorf("a priority that asks for nothing: %d %s", a.Status, a.Body)
			}
			continue
		}
		// One runs until two others wait, of which the later has the higher number: with
		// SGLang the sooner.
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		var asked sync.WaitGroup
		defer asked.Wait()
		asked.Go(func() {
			req, err := http.NewRequestWithContext(ctx, "POST", g.URL+"/v1/completions",
				strings.NewReader(`{"model":"weir-sim","prompt":"Once","max_tokens":100000,"ignore_eos":true,"stream":true}`))
			if err != nil {
				t.Error(err)
				return
			}
			if resp, err := http.DefaultClient.Do(req); err == nil {
				<-ctx.Done()
				resp.Body.Close()
			}
		})
		has := func(running, waiting int) {
			t.Helper()
			harness.Eventually(t, fmt.Sprintf("%d running and %d waiting at the engine", running, waiting), func() bool {
				var said struct {
					Loads []struct {
						Running int `json:"num_running_reqs"`
						Waiting int `json:"num_waiting_reqs"`
					}
				}
				err := json.Unmarshal(harness.Get(t, engine+"/v1/loads").Body, &said)
				return err == nil && len(said.Loads) == 1 && said.Loads[0].Running == running && said.Loads[0].Waiting == waiting
			})
		}
		has(1, 0)
		var mu sync.Mutex
		var order []string
		for i, priority := range []string{"-5", "5"} {
			asked.Go(func() {
				a := ask(priority, 5)
				mu.Lock()
				defer mu.Unlock()
				if order = append(order, priority); a.Status != 200 {
					t.Errorf("priority %s: %d %s", priority, a.Status, a.Body)
				}
			})
			has(1, i+1)
		}
		hangUp()
		asked.Wait()
		if got := strings.Join(order, " "); got != "5 -5" {
			t.Errorf("served in the order %s", got)
		}
	}
}
