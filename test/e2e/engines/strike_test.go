package engines

import (
	"strings"
	"testing"

	"weir/internal/load"
	"weir/test/e2e/harness"
)

// Every fault here leaves an answer's bytes right, or reports that they are wrong. Each stream
// through the gateway is whole, every word checked, or has an error. The client's counts equal
// the gateway's, and nothing is left running.
func TestFaultsThroughTheGateway(t *testing.T) {
	t.Parallel()
	const requests, tokens = 32, 24
	for _, path := range []string{"plane", "relay"} {
		for _, c := range []struct {
			faults string
			errors string // whether streams fail, and say so
		}{
			{"split,after=5,at=9,rate=0.3 split,after=5,rate=0.2,delay=100us drip,after=3,bytes=128,delay=1ms,rate=0.3 slow,delay=300ms,rate=0.5 pause,after=5,delay=300ms", "none"},
			{"pause,after=5,delay=8s,nth=3", "some"},
			{"abort,after=5,rate=0.3", "some"},
			// Until something of the answer was passed on another engine is asked. What a relay
			// passes on before the error depends on the moment.
			{"abort,rate=0.3", map[string]string{"plane": "none", "relay": "any"}[path]},
			{"throttle,rate=0.3,delay=2s", "none"},
			{"retract,every=15ms", "none"},
		} {
			// A short run has all faults on the plane, and behind a relay those whose errors differ there.
			if testing.Short() && path == "relay" && !strings.HasPrefix(c.faults, "abort") {
				continue
			}
			t.Run(path+" "+strings.Fields(c.faults)[0], func(t *testing.T) {
				harness.Beside(t, harness.Heavy)
				bad, good := harness.StartSim(t, append(harness.FastSim, "--name", "bad")...), harness.StartSim(t, append(harness.FastSim, "--name", "good")...)
				g := harness.StartGateway(t, "serve", "--continuation", "off", "--policy", "round-robin", "--engine", bad.Spec(path), "--engine", good.Spec(path), "--idle-timeout", "4s", "--first-timeout", "20s")
				harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
				before := g.Goroutines()
				bad.SetFaults(strings.Fields(c.faults)...)
				r := harness.RunPlan(t, load.Plan{URL: g.URL, Concurrency: 16, Requests: requests, OutputTokens: tokens, Body: map[string]any{"ignore_eos": true}})
				if r.Corrupt != 0 || r.Lost != 0 || r.Complete+r.Errored != requests {
					t.Errorf("%d complete, %d errored, %d corrupt, %d lost: %v %v", r.Complete, r.Errored, r.Corrupt, r.Lost, r.Errors, r.Examples)
				}
				if c.errors == "some" && r.Errored == 0 || c.errors == "none" && r.Errored > 0 {
					t.Errorf("%d errored: %v %v", r.Errored, r.Errors, r.Examples)
				}
				ended := g.Balanced()
				failed := ended["failed"] + ended["rejected"]
				if path == "plane" && (ended["finished"] != r.Complete || failed != r.Errored) {
					t.Errorf("ended %v, the client counts %d complete and %d errored", ended, r.Complete, r.Errored)
				}
				struck := harness.Get(t, bad.Admin+"/admin/faults")
				if strings.Contains(string(struck.Body), `"times":0`) {
					t.Errorf("nothing was struck: %s", struck.Body)
				}
				harness.Settled(t, g, before, bad, good)
				for _, s := range []*harness.Sim{bad, good} {
					if st := harness.EngineState(t, s.Admin); st.Received != st.Finished+st.Aborted+st.Rejected {
						t.Errorf("engine state %+v", st)
					}
				}
				g.Interrupt()
			})
		}
	}
}

// An engine accepts connections and never reads them. The other engine loses no token, and the
// first takes part again when it reads. On the plane it is out meanwhile: its session is lost,
// and no request is tried there. Behind a relay only refused connections take an engine out.
// So the engine still gets its turns, and each request that meets it goes to the other engine
// at its deadline.
func TestDeafEngine(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"plane", "relay"} {
		t.Run(path, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			bad, good := harness.StartSim(t, append(harness.FastSim, "--name", "bad")...), harness.StartSim(t, append(harness.FastSim, "--name", "good")...)
			g := harness.StartGateway(t, "serve", "--continuation", "off", "--policy", "round-robin", "--engine", bad.Spec(path)+",name=bad", "--engine", good.Spec(path)+",name=good", "--wait-for-engines", "500ms", "--first-timeout", "3s")
			harness.Eventually(t, "both ready", func() bool { return harness.Metric(t, g.Admin, "weir_engine_ready") == 2 })
			before := g.Goroutines()
			// The first request takes the connection with it, which has just been used and
			// so is there; what comes after is not heard.
			if r := harness.RunPlan(t, load.Plan{URL: g.URL, Requests: 2, Concurrency: 1, OutputTokens: 2}); r.Complete != 2 {
				t.Fatalf("%v %v", r.Errors, r.Examples)
			}
			bad.SetFaults("reset,after=5,nth=1", "deaf")
			plan := load.Plan{URL: g.URL, Concurrency: 8, Requests: 32, OutputTokens: 20, Body: map[string]any{"ignore_eos": true}}
			r := harness.RunPlan(t, plan)
			if r.Corrupt != 0 || r.Lost != 0 || r.Errored == 0 || r.Complete+r.Errored != 32 {
				t.Errorf("%d complete, %d errored, %d corrupt, %d lost: %v %v", r.Complete, r.Errored, r.Corrupt, r.Lost, r.Errors, r.Examples)
			}
			ended := g.Balanced()
			if ended["finished"] != 2+r.Complete || ended["failed"] != r.Errored {
				t.Errorf("ended %v, the client counts 2 and %d complete and %d errored", ended, r.Complete, r.Errored)
			}
			heard := harness.EngineState(t, bad.Admin).Received
			faults := func() float64 {
				return harness.Metric(t, g.Admin, "weir_engine_faults_total", `engine="bad"`)
			}
			met := faults()
			if r = harness.RunPlan(t, plan); r.Complete != 32 || r.Lost != 0 {
				t.Errorf("while it is deaf: %d complete: %v %v", r.Complete, r.Errors, r.Examples)
			}
			ready, more := harness.Metric(t, g.Admin, "weir_engine_ready"), faults()-met
			if path == "plane" && (ready != 1 || more != 0) {
				t.Errorf("while it is deaf: %v engines ready, %v requests were tried there", ready, more)
			}
			if path == "relay" && (ready != 2 || more > 3) {
				t.Errorf("while it is deaf: %v engines ready, %v requests were tried there", ready, more)
			}
			if n := harness.EngineState(t, bad.Admin).Received; n != heard {
				t.Errorf("the deaf engine has heard %d requests, and then %d", heard, n)
			}
			bad.SetFaults()
			harness.Eventually(t, "both well again", func() bool { return harness.Metric(t, g.Admin, "weir_engine_state", `state="up"`) == 2 })
			if r := harness.RunPlan(t, plan); r.Complete != 32 || r.Lost != 0 {
				t.Errorf("afterwards: %d complete: %v %v", r.Complete, r.Errors, r.Examples)
			}
			if n := harness.EngineState(t, bad.Admin).Received; n == heard {
				t.Error("it takes no part afterwards")
			}
			harness.Settled(t, g, before, bad, good)
			g.Interrupt()
		})
	}
}

// Without another engine a throttled request is answered as such, with the engine's word
// of when to come again.
func TestThrottledAlone(t *testing.T) {
	harness.Beside(t, harness.Light)
	s := harness.StartSim(t, "--fault", "throttle,delay=3s")
	for _, path := range harness.Few(t, harness.Paths) {
		g := harness.StartGateway(t, "serve", "--engine", s.Spec(path))
		a := harness.Post(t, g.URL+"/v1/chat/completions", harness.AskStream)
		want := "3"
		if path == "plane" {
			want = "1" // it has no word for the time
		}
		if after := a.Header.Get("Retry-After"); a.Status != 429 || after != want || a.Err != nil {
			t.Errorf("%s: status %d, Retry-After %q: %s", path, a.Status, after, a.Body)
		}
		g.Interrupt()
	}
}
