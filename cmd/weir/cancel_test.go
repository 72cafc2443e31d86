package main

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"weir/internal/trace"
)

// goroutines is how many the gateway has.
func (g *gateway) goroutines() int { return int(metric(g.t, g.admin, "go_goroutines")) }

// streamer is a client's connection with a request on it, which its seed names.
type streamer struct {
	net.Conn
	seed int64
}

// streamers opens n connections with a request for an endless stream each.
func streamers(t *testing.T, g *gateway, n int) []streamer {
	t.Helper()
	all := make([]streamer, 0, n)
	t.Cleanup(func() {
		for _, c := range all {
			c.Close()
		}
	})
	for seed := range int64(n) {
		body := fmt.Sprintf(`{"model":"weir-sim","stream":true,"ignore_eos":true,"max_tokens":50000,"seed":%d,"messages":[{"role":"user","content":"go on"}]}`, seed)
		conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, streamer{conn, seed})
		postRaw(t, conn, body)
	}
	return all
}

// hangUpFigures are what hang-ups took.
type hangUpFigures struct {
	closing       time.Duration // of the clients, to hang up one after the other
	p50, p99, max time.Duration // from a client's hang-up until its engine knew
	free          time.Duration // from the last abort until the engine had the rest only
}

// hangUp closes the connections, waits until the engine has only rest requests
// left, and measures at the engine.
func hangUp(t *testing.T, s *sim, leaving []streamer, rest int) hangUpFigures {
	t.Helper()
	closed := make([]int64, len(leaving))
	at := map[int64]int{}
	for i, c := range leaving {
		at[c.seed] = i
		closed[i] = trace.Now()
		c.Close()
	}
	f := hangUpFigures{closing: time.Duration(trace.Now() - closed[0])}
	var free int64
	eventually(t, "free", func() bool {
		free = trace.Now()
		st := engineState(t, s.admin)
		return st.Running+st.Waiting == rest
	})
	var aborts []struct{ Seed, Time int64 }
	if err := json.Unmarshal(get(t, s.admin+"/admin/aborts").body, &aborts); err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	var last int64
	for _, a := range aborts {
		if i, ok := at[a.Seed]; ok {
			delete(at, a.Seed)
			took = append(took, time.Duration(a.Time-closed[i]))
			last = max(last, a.Time)
		}
	}
	if len(at) > 0 || len(took) != len(leaving) {
		t.Fatalf("%d requests were aborted, want %d", len(took), len(leaving))
	}
	slices.Sort(took)
	f.p50, f.p99, f.max = took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	f.free = time.Duration(max(0, free-last))
	return f
}

// want prints the figures, and checks them with the slack that a shared machine
// needs; docs/status.md has those of a quiet one.
func (f hangUpFigures) want(t *testing.T, n int, step time.Duration) {
	t.Helper()
	t.Logf("%d hang-ups in %v; the engine knew of each after p50 %v, p99 %v, max %v, and was free %v after the last (a step takes %v)",
		n, f.closing.Round(time.Millisecond), f.p50.Round(10*time.Microsecond), f.p99.Round(10*time.Microsecond), f.max.Round(10*time.Microsecond), f.free.Round(time.Millisecond), step)
	limit := time.Second
	if raceEnabled {
		limit *= 5
	}
	if f.p99 > limit {
		t.Errorf("the engine knew of a hang-up after %v (p99), want at most %v", f.p99, limit)
	}
	if f.free > step+limit {
		t.Errorf("the engine was free %v after the last abort, want a step of %v at most", f.free, step)
	}
}

// Streams hang up, all of 4096 at one instant or a few among those that go on,
// while they stream or before their first token: every one is cancelled, every
// engine request aborted at once, and nothing is left behind.
func TestHangUpOfMany(t *testing.T) {
	streams := 4096
	if raceEnabled {
		streams = 512 // the detector makes each ten times as dear
	}
	const step = time.Second
	for _, path := range []string{"plane", "relay"} {
		for _, c := range []struct {
			name    string
			streams int
			prefill time.Duration
			hangUp  func(t *testing.T, s *sim, conns []streamer)
		}{
			{"before the first token", streams / 4, step, func(t *testing.T, s *sim, conns []streamer) {
				eventually(t, "all in the engine", func() bool {
					st := engineState(t, s.admin)
					return st.Running+st.Waiting == len(conns)
				})
				hangUp(t, s, conns, 0).want(t, len(conns), step)
			}},
			{"streaming", streams, time.Millisecond, func(t *testing.T, s *sim, conns []streamer) {
				eventually(t, "all running", func() bool { return engineState(t, s.admin).Running == len(conns) })
				buf := make([]byte, 64<<10)
				var few, rest []streamer
				for _, c := range conns {
					// What was not read would turn a hang-up into a reset.
					if _, err := c.Read(buf); err != nil {
						t.Fatal(err)
					}
					if c.seed%100 == 0 {
						few = append(few, c)
					} else {
						rest = append(rest, c)
					}
				}
				hangUp(t, s, few, len(rest)).want(t, len(few), step)
				hangUp(t, s, rest, 0).want(t, len(rest), step)
			}},
		} {
			t.Run(path+" "+c.name, func(t *testing.T) {
				s := startSim(t, "--cost", "constant", "--prefill-cost", c.prefill.String(), "--decode-cost", step.String(), "--max-running-requests", "8192")
				g := startGateway(t, "serve", "--engine", s.spec(path))
				before := g.goroutines()
				c.hangUp(t, s, streamers(t, g, c.streams))
				if ended := g.balanced(); ended["cancelled"] != c.streams || ended["received"] != c.streams {
					t.Errorf("ended %v, want %d cancelled", ended, c.streams)
				}
				if st := engineState(t, s.admin); st.Aborted != c.streams || st.Received != c.streams {
					t.Errorf("engine state %+v, want %d aborted", st, c.streams)
				}
				// A few are the admin listener's and the engine connection's.
				eventually(t, "back to the goroutines it had", func() bool { return g.goroutines() <= before+16 })
				g.interrupt()
			})
		}
	}
}

// A client that hangs up while its request waits in the gateway, because no
// engine is ready, is done with at once.
func TestHangUpInTheQueue(t *testing.T) {
	beside(t, light)
	const n = 64
	s := startSim(t, "--fault", "refuse")
	g := startUnready(t, "serve", "--engine", "weir="+s.plane, "--engine-timeout", "5m")
	conns := streamers(t, g, n)
	eventually(t, "all queued", func() bool { return metric(t, g.admin, "weir_requests_in_flight") == n })
	began := time.Now()
	for _, c := range conns {
		c.Close()
	}
	if ended := g.balanced(); ended["cancelled"] != n || ended["received"] != n {
		t.Errorf("ended %v, want %d cancelled", ended, n)
	}
	t.Logf("%d hang-ups in the queue were done with after %v", n, time.Since(began).Round(time.Millisecond))
	g.interrupt()
	for _, r := range g.records() {
		if r.Outcome != "cancelled" || r.Stages["queue"] == 0 || len(r.Attempts) != 0 {
			t.Fatalf("record %+v", r)
		}
	}
}
