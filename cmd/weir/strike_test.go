package main

import (
	"strings"
	"testing"

	"weir/internal/load"
)

// Every fault that leaves the bytes of an answer right, or says that it does
// not: through the gateway each stream is whole, every word checked, or has an
// error; what the client counts is what the gateway does, and nothing is left
// running.
func TestFaultsThroughTheGateway(t *testing.T) {
	t.Parallel()
	const requests, tokens = 32, 24
	for _, path := range []string{"plane", "relay"} {
		for _, c := range []struct {
			faults string
			errors bool // some streams fail, and say so
		}{
			{"split,after=5,at=9,rate=0.3 split,after=5,rate=0.2,delay=100us drip,after=3,bytes=128,delay=1ms,rate=0.3 slow,delay=300ms,rate=0.5 pause,after=5,delay=300ms", false},
			{"pause,after=5,delay=8s,nth=3", true},
			{"abort,after=5,rate=0.3", true},
			{"abort,rate=0.3", path == "relay"}, // on the plane it can be asked elsewhere
			{"throttle,rate=0.3,delay=2s", false},
			{"retract,every=15ms", false},
		} {
			t.Run(path+" "+strings.Fields(c.faults)[0], func(t *testing.T) {
				beside(t, heavy)
				bad, good := startSim(t, append(fast, "--name", "bad")...), startSim(t, append(fast, "--name", "good")...)
				g := startGateway(t, "serve", "--engine", bad.spec(path), "--engine", good.spec(path), "--idle-timeout", "4s", "--first-timeout", "20s")
				eventually(t, "both ready", func() bool { return metric(t, g.admin, "weir_engine_ready") == 2 })
				before := g.goroutines()
				bad.setFaults(strings.Fields(c.faults)...)
				r := run(t, load.Plan{URL: g.url, Concurrency: 16, Requests: requests, OutputTokens: tokens, Body: map[string]any{"ignore_eos": true}})
				if r.Corrupt != 0 || r.Lost != 0 || r.Complete+r.Errored != requests {
					t.Errorf("%d complete, %d errored, %d corrupt, %d lost: %v %v", r.Complete, r.Errored, r.Corrupt, r.Lost, r.Errors, r.Examples)
				}
				if c.errors != (r.Errored > 0) {
					t.Errorf("%d errored: %v %v", r.Errored, r.Errors, r.Examples)
				}
				ended := g.balanced()
				failed := ended["failed"] + ended["rejected"]
				if path == "plane" && (ended["finished"] != r.Complete || failed != r.Errored) {
					t.Errorf("ended %v, the client counts %d complete and %d errored", ended, r.Complete, r.Errored)
				}
				struck := get(t, bad.admin+"/admin/faults")
				if strings.Contains(string(struck.body), `"times":0`) {
					t.Errorf("nothing was struck: %s", struck.body)
				}
				settled(t, g, before, bad, good)
				for _, s := range []*sim{bad, good} {
					if st := engineState(t, s.admin); st.Received != st.Finished+st.Aborted+st.Rejected {
						t.Errorf("engine state %+v", st)
					}
				}
				g.interrupt()
			})
		}
	}
}

// An engine that accepts connections and never reads them is not asked again
// and again: while it is deaf another one answers, and afterwards it takes
// part again.
func TestDeafEngine(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"plane", "relay"} {
		t.Run(path, func(t *testing.T) {
			beside(t, light)
			bad, good := startSim(t, append(fast, "--name", "bad")...), startSim(t, append(fast, "--name", "good")...)
			g := startGateway(t, "serve", "--engine", bad.spec(path)+",name=bad", "--engine", good.spec(path)+",name=good", "--engine-timeout", "500ms", "--first-timeout", "1s")
			eventually(t, "both ready", func() bool { return metric(t, g.admin, "weir_engine_ready") == 2 })
			before := g.goroutines()
			// The first request takes the connection with it, which has just been used and
			// so is there; what comes after is not heard.
			if r := run(t, load.Plan{URL: g.url, Requests: 2, Concurrency: 1, OutputTokens: 2}); r.Complete != 2 {
				t.Fatalf("%v %v", r.Errors, r.Examples)
			}
			bad.setFaults("reset,after=5,nth=1", "deaf")
			plan := load.Plan{URL: g.url, Concurrency: 8, Requests: 32, OutputTokens: 20, Body: map[string]any{"ignore_eos": true}}
			r := run(t, plan)
			if r.Corrupt != 0 || r.Lost != 0 || r.Errored == 0 || r.Complete+r.Errored != 32 {
				t.Errorf("%d complete, %d errored, %d corrupt, %d lost: %v %v", r.Complete, r.Errored, r.Corrupt, r.Lost, r.Errors, r.Examples)
			}
			ended := g.balanced()
			if ended["finished"] != 2+r.Complete || ended["failed"] != r.Errored {
				t.Errorf("ended %v, the client counts 2 and %d complete and %d errored", ended, r.Complete, r.Errored)
			}
			bad.setFaults()
			eventually(t, "both ready again", func() bool { return metric(t, g.admin, "weir_engine_ready") == 2 })
			if r := run(t, plan); r.Complete != 32 || r.Lost != 0 {
				t.Errorf("afterwards: %d complete: %v %v", r.Complete, r.Errors, r.Examples)
			}
			settled(t, g, before, bad, good)
			g.interrupt()
		})
	}
}

// Without another engine a throttled request is answered as such; a relay
// passes on when to come again, and the others say soon.
func TestThrottledAlone(t *testing.T) {
	beside(t, light)
	s := startSim(t, "--fault", "throttle,delay=3s")
	for _, path := range paths {
		g := startGateway(t, "serve", "--engine", s.spec(path))
		a := post(t, g.url+"/v1/chat/completions", askStream)
		want := "1" // the other wires have no word for the time
		if path == "relay" {
			want = "3"
		}
		if after := a.header.Get("Retry-After"); a.status != 429 || after != want || a.err != nil {
			t.Errorf("%s: status %d, Retry-After %q: %s", path, a.status, after, a.body)
		}
		g.interrupt()
	}
}
