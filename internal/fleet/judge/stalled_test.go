package judge

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/health"
	"weir/internal/trace"
)

// streaming is a stream that counts its tokens and what it is told.
type streaming struct {
	attempt Attempt
	had     int
	hung    bool
	stalled []time.Duration
}

func (s *streaming) Down(string)             {}
func (s *streaming) Had() (int, bool)        { return s.had, true }
func (s *streaming) Stalled(d time.Duration) { s.stalled = append(s.stalled, d) }

// A stream is told that it stands still while its rank goes on with others: after Stall, and
// again after as long. Of several ranks under one name nothing is known.
func TestStalled(t *testing.T) {
	for name, test := range map[string]struct {
		stall   time.Duration
		several bool
		want    []time.Duration
	}{
		"one rank":      {5 * time.Second, false, []time.Duration{5 * time.Second, 5 * time.Second}},
		"several ranks": {5 * time.Second, true, nil},
		"switched off":  {0, false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := judged(t, Options{Stall: test.stall}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}, Several: test.several})
				var all []*streaming
				for i := range 16 {
					s := &streaming{hung: i == 0, had: 1}
					r.HandOver(&s.attempt, trace.Now(), 10, "req", engine.Probe{}, s)
					s.attempt.Start(trace.Now())
					all = append(all, s)
					for range 10 {
						time.Sleep(100 * time.Millisecond)
						r.judge.mu.Lock()
						for _, s := range all {
							if !s.hung {
								s.had++
							}
						}
						r.judge.mu.Unlock()
					}
				}
				r.judge.mu.Lock()
				for i, s := range all {
					want := test.want
					if i > 0 {
						want = nil
					}
					if !slices.Equal(s.stalled, want) {
						t.Errorf("stream %d was told %v, want %v", i, s.stalled, want)
					}
				}
				r.judge.mu.Unlock()
				for _, s := range all {
					s.attempt.End(trace.Now(), health.Done)
				}
			})
		})
	}
}

// A look visits each stream that is there from its beginning to its end once to count it and
// once to compare it, and never more than so many without giving the lock away, whatever begins
// and ends meanwhile.
func TestLookGivesTheLockAway(t *testing.T) {
	const most = 8
	random := rand.New(rand.NewPCG(1, 2))
	r := judged(t, Options{Stall: time.Second}, Presence{Ready: true, Fresh: true, Serves: []string{"m"}})
	begin := func() *visited {
		s := new(visited)
		r.HandOver(&s.attempt, trace.Now(), 10, "req", engine.Probe{}, s)
		s.attempt.Start(trace.Now())
		return s
	}
	for range 200 {
		var all []*visited
		for range 1 + random.IntN(50) {
			all = append(all, begin())
		}
		first := len(all)
		r.judge.mu.Lock()
		r.visits = visiting{next: r.open, counting: true, under: true}
		r.judge.mu.Unlock()
		for more, before := true, 0; more; {
			more = r.visit(trace.Now(), most)
			asked := 0
			for _, s := range all {
				asked += s.asked
			}
			if asked-before > most {
				t.Fatalf("%d streams were visited at one time, more than %d", asked-before, most)
			}
			before = asked
			for range random.IntN(4) {
				if s := all[random.IntN(len(all))]; !s.ended {
					s.ended = true
					s.attempt.End(trace.Now(), health.Done)
				}
				all = append(all, begin())
			}
		}
		for i, s := range all {
			if want := i < first; !s.ended && (s.asked == 1) != want {
				t.Fatalf("stream %d of %d was counted %d times", i, first, s.asked)
			}
			if !s.ended {
				s.attempt.End(trace.Now(), health.Done)
			}
		}
		if r.open != nil || r.visits.next != nil {
			t.Fatal("something is left")
		}
	}
}

// visited is a stream that counts how often its tokens are asked for.
type visited struct {
	streaming
	asked int
	ended bool
}

func (s *visited) Had() (int, bool) { s.asked++; return 1, true }

// BenchmarkLook is a look at 50,000 streams of one rank: how long it takes, and how long the
// lock is held at one time, with a few streams at a time and with all at once.
func BenchmarkLook(b *testing.B) {
	for name, most := range map[string]int{"512 at a time": atOnce, "all at once": 1 << 30} {
		b.Run(name, func(b *testing.B) {
			const streams = 50_000
			j := New(Options{Stall: time.Hour})
			r := j.Add("e", -1, nil)
			r.Is(Presence{Ready: true, Fresh: true, Serves: []string{"m"}})
			all := make([]*counted, streams)
			for i := range all {
				all[i] = new(counted)
				r.HandOver(&all[i].attempt, trace.Now(), 10, "req", engine.Probe{}, all[i])
				all[i].attempt.Start(trace.Now())
			}
			var held []time.Duration // at most, in each look
			for b.Loop() {
				longest := time.Duration(0)
				r.visits = visiting{next: r.open, counting: true, under: true}
				for more := true; more; {
					began := time.Now()
					more = r.visit(trace.Now(), most)
					longest = max(longest, time.Since(began))
				}
				held = append(held, longest)
			}
			slices.Sort(held)
			b.ReportMetric(float64(held[len(held)/2].Microseconds()), "median-of-longest-us")
		})
	}
}

// counted is a stream whose tokens are counted under two locks, as those of a request are.
type counted struct {
	streaming
	mu, box sync.Mutex
	_       [2048]byte // what else a stream has
}

func (s *counted) Had() (int, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.box.Lock()
	defer s.box.Unlock()
	return s.had, true
}
