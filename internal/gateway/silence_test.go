package gateway

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
		s = newSilence("a", limit, func(*infer.Error) {
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
		s := newSilence("a", limit, func(*infer.Error) {})
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
