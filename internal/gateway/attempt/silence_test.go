package attempt

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// An output that comes as the bound is reached, and is found before anybody asks,
// is no silence; and the bound goes on from it, though nobody has asked.
func TestSilenceAtTheBound(t *testing.T) {
	const limit = time.Minute
	synctest.Test(t, func(t *testing.T) {
		var lates atomic.Int32
		var s *silence
		s = new(silences).begin("a", limit, limit, func(*infer.Error) {
			if lates.Add(1) == 1 {
				s.begin(trace.Now())
			}
		})
		defer s.end()
		s.begin(trace.Now())
		time.Sleep(limit)
		synctest.Wait()
		if lates.Load() != 1 {
			t.Fatalf("called %d times at the bound", lates.Load())
		}
		time.Sleep(limit - time.Nanosecond)
		synctest.Wait()
		if lates.Load() != 1 {
			t.Fatalf("called %d times before the second bound", lates.Load())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if err := s.overdue(); lates.Load() != 2 || infer.AsError(err) == nil || infer.AsError(err).Code != infer.CodeDeadline {
			t.Fatalf("called %d times at the second bound, %v", lates.Load(), err)
		}
	})
}

// Who is woken by the bound and finds an output first has not been kept waiting.
func TestSilenceOverdue(t *testing.T) {
	const limit = time.Minute
	synctest.Test(t, func(t *testing.T) {
		s := new(silences).begin("a", limit, limit, func(*infer.Error) {})
		defer s.end()
		s.begin(trace.Now())
		time.Sleep(limit)
		synctest.Wait()
		s.begin(trace.Now()) // found on that look
		if err := s.overdue(); err != nil {
			t.Error(err)
		}
		time.Sleep(limit)
		synctest.Wait()
		if s.overdue() == nil {
			t.Error("a silence of a minute after it is not noticed")
		}
	})
}

// A bound that is not shorter leaves the timer alone and holds all the same; a shorter one
// holds from when it is set. One that has ended is used again with its timer, and has nothing
// of what it was.
func TestSilenceBoundsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var of silences
		for round := range 2 {
			var late atomic.Int64
			began := trace.Now()
			s := of.begin("a", 10*time.Minute, 5*time.Minute, func(*infer.Error) { late.Store(trace.Now() - began) })
			s.begin(began)
			time.Sleep(9 * time.Minute)
			synctest.Wait()
			if late.Load() != 0 {
				t.Fatalf("round %d: late after %v, want 10m", round, time.Duration(late.Load()))
			}
			s.limitTo(5*time.Minute, nextOutput)
			s.begin(trace.Now())
			time.Sleep(2 * time.Minute)
			s.begin(trace.Now())
			s.limitTo(time.Minute, answersEnd)
			time.Sleep(time.Minute - time.Nanosecond)
			synctest.Wait()
			if late.Load() != 0 {
				t.Fatalf("round %d: late after %v, want 12m", round, time.Duration(late.Load()))
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if got := time.Duration(late.Load()); got != 12*time.Minute {
				t.Errorf("round %d: late after %v, want 12m", round, got)
			}
			of.end(s)
			late.Store(0)
			time.Sleep(time.Hour)
			synctest.Wait()
			if late.Load() != 0 {
				t.Errorf("round %d: late after its end", round)
			}
		}
	})
}
