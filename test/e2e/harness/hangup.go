package harness

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"weir/internal/trace"
)

// HangUpFigures are the times of hang-ups.
type HangUpFigures struct {
	N             int
	Closing       time.Duration // of the clients, to hang up one after the other
	P50, P99, Max time.Duration // from a client's hang-up until its engine knew
	Free          time.Duration // from the last abort until the engine had the rest only
}

// hangUp closes the connections, waits until the engine has only rest requests
// left, and reads the times of the aborts from the engine.
func hangUp(t *testing.T, s *Sim, leaving []Streamer, rest int) HangUpFigures {
	t.Helper()
	closed := make([]int64, len(leaving))
	at := map[int64]int{}
	for i, c := range leaving {
		at[c.Seed] = i
		closed[i] = trace.Now()
		c.Close()
	}
	f := HangUpFigures{N: len(leaving), Closing: time.Duration(trace.Now() - closed[0])}
	var free int64
	Eventually(t, "free", func() bool {
		free = trace.Now()
		st := EngineState(t, s.Admin)
		return st.Running+st.Waiting == rest
	})
	var aborts []struct{ Seed, Time int64 }
	if err := json.Unmarshal(Get(t, s.Admin+"/admin/aborts").Body, &aborts); err != nil {
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
	f.P50, f.P99, f.Max = took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	f.Free = time.Duration(max(0, free-last))
	return f
}

// HangUps lets streams of a path hang up, and wants every one cancelled, every
// engine request aborted, and nothing left behind. The streams hang up before
// their first token all at one instant, or, while they stream, one in a hundred
// among those that go on and then all others.
func HangUps(t *testing.T, path string, streams int, streaming bool, step time.Duration) (figures []HangUpFigures) {
	t.Helper()
	prefill := step
	if streaming {
		prefill = time.Millisecond
	}
	s := StartSim(t, "--cost", "constant", "--prefill-cost", prefill.String(), "--decode-cost", step.String(), "--max-running-requests", "8192")
	g := StartGateway(t, "serve", "--engine", s.Spec(path), "--submit-timeout", Unhurried)
	before := g.Goroutines()
	conns := Streamers(t, g, streams)
	if streaming {
		Eventually(t, "all running", func() bool { return EngineState(t, s.Admin).Running == streams })
		buf := make([]byte, 64<<10)
		var few, rest []Streamer
		for _, c := range conns {
			// Unread bytes would turn a hang-up into a reset.
			if _, err := c.Read(buf); err != nil {
				t.Fatal(err)
			}
			if c.Seed%100 == 0 {
				few = append(few, c)
			} else {
				rest = append(rest, c)
			}
		}
		figures = append(figures, hangUp(t, s, few, len(rest)), hangUp(t, s, rest, 0))
	} else {
		Eventually(t, "all in the engine", func() bool {
			st := EngineState(t, s.Admin)
			return st.Running+st.Waiting == streams
		})
		figures = append(figures, hangUp(t, s, conns, 0))
	}
	if ended := g.Balanced(); ended["cancelled"] != streams || ended["received"] != streams {
		t.Errorf("ended %v, want %d cancelled", ended, streams)
	}
	if st := EngineState(t, s.Admin); st.Aborted != streams || st.Received != streams {
		t.Errorf("engine state %+v, want %d aborted", st, streams)
	}
	// A few are the admin listener's and the engine connection's.
	g.Has(before + 16)
	g.Interrupt()
	return figures
}
