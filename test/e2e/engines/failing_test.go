package engines

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// healths are what a gateway thinks of its engines, by name.
func healths(t *testing.T, g *harness.Gateway) map[string]struct{ State, Why string } {
	t.Helper()
	var engines []struct {
		Name   string
		Health struct{ State, Why string }
	}
	if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &engines); err != nil {
		t.Fatal(err)
	}
	all := map[string]struct{ State, Why string }{}
	for _, e := range engines {
		all[e.Name] = e.Health
	}
	return all
}

// pair starts two engines and a gateway before them.
func pair(t *testing.T, path string, args ...string) (bad, good *harness.Sim, g *harness.Gateway) {
	t.Helper()
	bad, good = harness.StartSim(t, append(harness.FastSim, "--name", "bad")...), harness.StartSim(t, append(harness.FastSim, "--name", "good")...)
	g = harness.StartGateway(t, append([]string{"serve", "--engine", bad.Spec(path) + ",name=bad", "--engine", good.Spec(path) + ",name=good"}, args...)...)
	harness.Eventually(t, "both well", func() bool { return up(t, g) == 2 })
	return bad, good, g
}

// An engine that answers 500 is out, whether or not its probes fail too, and comes back by
// itself. No client sees a failure, not even of an engine that answers 500 to every second
// request.
func TestFailingEngine(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Paths {
		for _, fault := range []string{"fail", "fail,rate=0.5"} {
			// A short run has each fault once.
			if once := map[string]string{"fail": "relay", "fail,rate=0.5": "sglang"}; testing.Short() && once[fault] != path {
				continue
			}
			t.Run(path+"/"+fault, func(t *testing.T) {
				harness.Beside(t, harness.Light)
				bad, _, g := pair(t, path)
				bad.SetFaults(fault)
				plan := load.Plan{URL: g.URL, Concurrency: 4, Requests: 12, OutputTokens: 10, Body: map[string]any{"ignore_eos": true}}
				struck := func() int { return int(harness.Metric(t, g.Admin, "weir_engine_faults_total", `engine="bad"`)) }
				harness.Eventually(t, "it was asked, and is out if it never answers", func() bool {
					if r := harness.RunPlan(t, plan); r.Complete != 12 {
						t.Fatalf("%d of 12 complete: %v %v", r.Complete, r.Errors, r.Examples)
					}
					return struck() > 0 && (fault != "fail" || healths(t, g)["bad"].State == "down")
				})
				if state := healths(t, g)["good"].State; state != "up" {
					t.Errorf("the other one is %s", state)
				}
				bad.SetFaults()
				before := harness.EngineState(t, bad.Admin).Finished
				harness.Eventually(t, "well again, and asked", func() bool {
					if r := harness.RunPlan(t, plan); r.Complete != 12 {
						t.Fatalf("afterwards %d of 12 complete: %v %v", r.Complete, r.Errors, r.Examples)
					}
					return up(t, g) == 2 && harness.EngineState(t, bad.Admin).Finished >= before+8
				})
			})
		}
	}
}

// If all engines of a model fail, at least one of them may still be asked, and they come back
// without an operator.
func TestLastEngine(t *testing.T) {
	harness.Beside(t, harness.Light)
	bad, good, g := pair(t, "relay")
	bad.SetFaults("fail")
	good.SetFaults("fail")
	plan := load.Plan{URL: g.URL, Concurrency: 2, Requests: 4, OutputTokens: 10, Body: map[string]any{"ignore_eos": true}}
	harness.Eventually(t, "one is out, and the other is kept because it is the last", func() bool {
		harness.RunPlan(t, plan)
		out, kept := 0, false
		for _, h := range healths(t, g) {
			if h.State == "down" {
				out++
			}
			kept = kept || strings.Contains(h.Why, "it stays because too few would be left")
		}
		return out == 1 && kept
	})
	bad.SetFaults()
	good.SetFaults()
	harness.Eventually(t, "both well again", func() bool { harness.RunPlan(t, plan); return up(t, g) == 2 })
	if r := harness.RunPlan(t, plan); r.Complete != 4 {
		t.Errorf("%d of 4 complete: %v %v", r.Complete, r.Errors, r.Examples)
	}
	g.Interrupt()
	// The log has each change in its order.
	out := map[string]bool{}
	for line := range strings.Lines(g.Stderr.String()) {
		_, name, _ := strings.Cut(line, " engine=")
		name, _, _ = strings.Cut(name, " ")
		switch {
		case strings.Contains(line, "engine is down"):
			if out[name] = true; out["bad"] && out["good"] {
				t.Errorf("both are out:\n%s", g.Stderr.String())
			}
		case strings.Contains(line, "engine is avoided"), strings.Contains(line, "engine takes requests again"):
			out[name] = false
		}
	}
}

// An engine that answers probes and no request is avoided, and never out: its core lives.
func TestEngineThatAnswersProbesOnly(t *testing.T) {
	harness.Beside(t, harness.Light)
	bad, _, g := pair(t, "relay", "--drain-timeout", "1s")
	const marker = "nobody answers this"
	bad.SetFaults("hang,marker=" + marker)
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Those that the engine gets are hung up on when it is over.
		harness.RunPlan(t, load.Plan{URL: g.URL, Prompt: marker, Concurrency: 8, Requests: 8, OutputTokens: 10})
	}()
	harness.Eventually(t, "its probe is answered", func() bool {
		return strings.Contains(healths(t, g)["bad"].Why, "its probe was answered, but its requests show no progress")
	})
	if r := harness.RunPlan(t, load.Plan{URL: g.URL, Prompt: marker, Concurrency: 2, Requests: 8, OutputTokens: 10}); r.Complete != 8 {
		t.Errorf("meanwhile %d of 8 complete: %v %v", r.Complete, r.Errors, r.Examples)
	}
	g.Interrupt()
	<-done
	// A machine may be so busy that the engine is silent, too.
	if out := g.Stderr.String(); strings.Contains(out, "engine is down") && !strings.Contains(out, "was not answered for") {
		t.Errorf("%s", out)
	}
}

// An engine serves though each of its pages, other than the requests', has 10 MB. An engine
// whose list of models has 10 MB gives that as a reason in its state. Neither disturbs the
// other.
func TestHugePages(t *testing.T) {
	harness.Beside(t, harness.Light)
	page := strings.Repeat("x", 10<<20)
	for _, huge := range []string{"health", "models"} {
		t.Run(huge, func(t *testing.T) {
			scripted := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, err := io.Copy(io.Discard, r.Body); err != nil {
					return // it hung up
				}
				switch {
				case r.Method == http.MethodPost:
					w.Header().Set("Content-Type", "application/json")
					io.WriteString(w, `{"id":"x","object":"chat.completion","created":1,"model":"weir-sim","choices":[{"index":0,"message":{"role":"assistant","content":"yes"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
				case r.URL.Path == "/v1/models" && huge != "models":
					w.Header().Set("Content-Type", "application/json")
					io.WriteString(w, `{"object":"list","data":[{"id":"weir-sim","object":"model","owned_by":"vllm"}]}`)
				default:
					io.WriteString(w, page)
				}
			}))
			t.Cleanup(scripted.Close)
			good := harness.StartSim(t, harness.FastSim...)
			g := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", "openai="+scripted.URL+",name=huge", "--engine", good.Spec("relay")+",name=good")
			const ask = `{"model":"weir-sim","messages":[{"role":"user","content":"hi"}],"max_tokens":4}`
			if huge == "models" {
				var reason string
				harness.Eventually(t, "its reason is told", func() bool {
					var engines []struct{ Name, Error string }
					if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &engines); err != nil {
						t.Fatal(err)
					}
					for _, e := range engines {
						if e.Name == "huge" {
							reason = e.Error
						}
					}
					return reason != ""
				})
				if !strings.Contains(reason, "/v1/models") {
					t.Errorf("it says %q", reason)
				}
			} else {
				harness.Eventually(t, "both well", func() bool { return up(t, g) == 2 })
			}
			for range 4 {
				if a := harness.Post(t, g.URL+"/v1/chat/completions", ask); a.Status != http.StatusOK {
					t.Errorf("%d %s", a.Status, a.Body)
				}
			}
		})
	}
}
