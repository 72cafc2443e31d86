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

// A priority goes to an engine that schedules by it, in the engine's own sense, and is
// refused by name for one that does not.
func TestPriority(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, scheduled := range []bool{false, true} {
		args := []string{"--max-running-requests", "1", "--cost", "constant", "--decode-cost", "20ms"}
		if scheduled {
			args = append(args, "--enable-priority-scheduling", "--priority-scheduling-preemption-threshold=-1")
		}
		engine, _ := harness.StartWire(t, "sglang", args...)
		g := harness.StartGateway(t, "serve", "--engine", "sglang="+engine)
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

// weir engines shows what each engine said of itself, and why one is not ready.
func TestEngines(t *testing.T) {
	harness.Beside(t, harness.Light)
	nobody := harness.FreeAddress(t)
	s := harness.StartSim(t, "--max-running-requests", "7", "--max-total-tokens", "20000")
	g := harness.StartGateway(t, "serve", "--engine", s.Spec("sglang")+",name=a", "--engine", s.Spec("plane")+",name=b", "--engine", "sglang=http://"+nobody+",name=c")
	harness.Eventually(t, "two ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })

	ask := func(args ...string) (stdout, stderr string, code int) {
		t.Helper()
		return harness.Finish(t, "", append([]string{"engines"}, args...)...)
	}
	var fields [][]string
	table, _, code := ask("--admin", g.Admin)
	for line := range strings.Lines(table) {
		fields = append(fields, strings.Fields(line))
	}
	want := [][]string{
		strings.Fields("ENGINE KIND STATE RUNNING WAITING KV MAX CONTEXT SOFTWARE MODELS"),
		strings.Fields("a sglang ready 0 0 0% 7 131072 sglang 0.5.16 weir-sim"),
		strings.Fields("b weir ready 0 0 - 7 131072 weir-sim 0.1 weir-sim"),
		strings.Fields("c sglang down - - - - - - -"),
	}
	if len(fields) != 5 || code != 0 {
		t.Fatalf("exit %d:\n%s", code, table)
	}
	for i, w := range want {
		if strings.Join(fields[i], " ") != strings.Join(w, " ") {
			t.Errorf("%q, want %q", fields[i], w)
		}
	}
	if last := strings.Join(fields[4], " "); !strings.HasPrefix(last, "c: ") || !strings.Contains(last, "refused") {
		t.Errorf("%q", last)
	}

	var views []struct {
		Name    string
		Carries []string
	}
	text, _, _ := ask("--json", "--admin", strings.TrimPrefix(g.Admin, "http://"))
	if err := json.Unmarshal([]byte(text), &views); err != nil || len(views) != 3 || len(views[0].Carries) == 0 {
		t.Errorf("%v: %s", err, text)
	}
	for addr, word := range map[string]string{g.URL: "admin listener", nobody: "is a gateway running", "http://x y": "--admin"} {
		if _, stderr, code := ask("--admin", addr); code == 0 || !strings.Contains(stderr, word) {
			t.Errorf("%s: exit %d: %s", addr, code, stderr)
		}
	}
	g.Interrupt()
}
