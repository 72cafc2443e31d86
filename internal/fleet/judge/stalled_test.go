package judge

import (
	"slices"
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
