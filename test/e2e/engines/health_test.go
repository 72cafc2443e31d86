package engines

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// up is how many engines are well.
func up(t *testing.T, g *harness.Gateway) int {
	return int(harness.Metric(t, g.Admin, "weir_engine_state", `state="up"`))
}

// An engine that stands still, cannot be reached or is gone is avoided while there are others.
// Later requests do not wait for it. It comes back by itself.
func TestSickEngine(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Paths {
		for _, what := range []string{"stopped", "wedged", "partitioned", "killed"} {
			// A short run has each fault, and each path, once.
			once := map[string]string{"stopped": "plane", "wedged": "sglang", "partitioned": "relay", "killed": "relay"}
			if testing.Short() && once[what] != path {
				continue
			}
			t.Run(path+"/"+what, func(t *testing.T) {
				harness.Beside(t, harness.Light)
				bad, good := harness.StartSim(t, append(harness.FastSim, "--name", "bad")...), harness.StartSim(t, append(harness.FastSim, "--name", "good")...)
				spec := bad.Spec(path)
				kind, at, _ := strings.Cut(spec, "=")
				f := harness.Forward(t, strings.TrimPrefix(at, "http://"))
				through := kind + "=" + f.Addr
				if at != strings.TrimPrefix(at, "http://") {
					through = kind + "=http://" + f.Addr
				}
				// By cost, an engine behind a slow test gets few requests, or none in minutes.
				g := harness.StartGateway(t, "serve", "--policy", "round-robin", "--engine", through+",name=bad", "--engine", good.Spec(path)+",name=good", "--submit-timeout", "2m")
				harness.Eventually(t, "both well", func() bool { return up(t, g) == 2 })
				plan := load.Plan{URL: g.URL, Concurrency: 8, Requests: 24, OutputTokens: 20, Body: map[string]any{"ignore_eos": true}}
				if r := harness.RunPlan(t, plan); r.Complete != 24 {
					t.Fatalf("before: %d complete: %v %v", r.Complete, r.Errors, r.Examples)
				}
				begun := make(chan struct{})
				go func() {
					defer close(begun)
					harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 4, Requests: 4, OutputTokens: 600, Body: map[string]any{"ignore_eos": true}})
				}()
				harness.Eventually(t, "requests there", func() bool { return harness.EngineState(t, bad.Admin).Running > 0 })
				heal := func() { f.Heal() }
				switch what {
				case "stopped":
					signal(t, bad, syscall.SIGSTOP)
					heal = func() { signal(t, bad, syscall.SIGCONT) }
				case "wedged":
					bad.SetFaults("wedge")
					heal = func() { bad.SetFaults() }
				case "partitioned":
					f.Hold(harness.ToServer, harness.ToClient)
				case "killed":
					f.Refuse()
					f.Cut()
				}
				harness.Eventually(t, "it is known", func() bool {
					if what == "killed" && up(t, g) == 2 {
						// One connection that breaks is no reason for anything, and only that
						// one may have been there. The first request that is refused is.
						harness.RunPlan(t, plan)
					}
					return up(t, g) == 1
				})
				there := open(t, g, "bad")
				if r := harness.RunPlan(t, plan); r.Complete != 24 {
					t.Errorf("while it is %s: %d complete: %v %v", what, r.Complete, r.Errors, r.Examples)
				}
				// A stream that had met the fault would still be there.
				if more := open(t, g, "bad") - there; more > 3 {
					t.Errorf("while it is %s %d requests more are there", what, more)
				}
				heal()
				harness.Eventually(t, "both well again", func() bool { return up(t, g) == 2 })
				received := func() int { return harness.EngineState(t, bad.Admin).Received }
				before := received()
				harness.Eventually(t, "a part of the requests", func() bool {
					harness.RunPlan(t, plan)
					return received() >= before+8
				})
				<-begun
			})
		}
	}
}

// A gateway that was stopped finds all of its engines well: its own delay counts against none
// of them.
func TestStoppedGateway(t *testing.T) {
	t.Parallel()
	for _, path := range harness.Few(t, harness.Paths) {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			a, b := harness.StartSim(t, harness.FastSim...), harness.StartSim(t, harness.FastSim...)
			g := harness.StartGateway(t, "serve", "--engine", a.Spec(path)+",name=a", "--engine", b.Spec(path)+",name=b")
			harness.Eventually(t, "both well", func() bool { return up(t, g) == 2 })
			done := make(chan struct{})
			go func() {
				defer close(done)
				if r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 8, Requests: 32, OutputTokens: 400, Body: map[string]any{"ignore_eos": true}}); r.Complete != 32 {
					t.Errorf("%d complete: %v %v", r.Complete, r.Errors, r.Examples)
				}
			}()
			harness.Eventually(t, "requests", func() bool {
				return harness.EngineState(t, a.Admin).Running > 0 && harness.EngineState(t, b.Admin).Running > 0
			})
			if err := g.Cmd.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			time.Sleep(6 * time.Second) // it is how long it is stopped
			if err := g.Cmd.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			<-done
			g.Interrupt()
			g.Wait()
			if out := g.Stderr.String(); strings.Contains(out, "engine is down") || strings.Contains(out, "engine is avoided") {
				t.Errorf("%s", out)
			}
		})
	}
}

// open is how many requests an engine has, as the gateway knows.
func open(t *testing.T, g *harness.Gateway, name string) int {
	t.Helper()
	var engines []struct {
		Name   string
		Health struct{ Requests int }
	}
	if err := json.Unmarshal(harness.Get(t, g.Admin+"/engines").Body, &engines); err != nil {
		t.Fatal(err)
	}
	for _, e := range engines {
		if e.Name == name {
			return e.Health.Requests
		}
	}
	return 0
}

func signal(t *testing.T, s *harness.Sim, sig syscall.Signal) {
	t.Helper()
	if err := s.Cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}
