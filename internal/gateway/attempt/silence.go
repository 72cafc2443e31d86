package attempt

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/trace"
)

// silence bounds how long an engine may send nothing while weir waits for it.
// The time that weir takes itself, and that it waits for a slow client, does not count.
//
// The timer is not touched per output. When it fires, it compares the time at which the
// wait began, and is set again for the rest.
type silence struct {
	engine string
	late   func(*infer.Error) // the bound is reached; called off the stream's goroutine
	limit  atomic.Int64       // nanoseconds
	bound  atomic.Uint32      // of which bound that is the value
	wait   record.Wait        // its beginning
	passed atomic.Bool        // the timer has found the bound passed
	fires  atomic.Int64       // when the timer does next
	timer  *time.Timer
}

// silences are those that have ended, with their timers. Each gateway has its own.
type silences struct{ spare sync.Pool }

// bound is one of those of a wait for an engine.
type bound uint32

const (
	firstOutput bound = iota
	nextOutput
	answersEnd
)

// String returns what an operator calls it.
func (b bound) String() string {
	return [...]string{"--first-timeout", "--idle-timeout", "after the end of its answer"}[b]
}

// begin opens the bound of the wait for an engine's first output. The bounds that follow are
// probably not shorter than next, and then leave the timer alone.
func (of *silences) begin(engine string, limit, next time.Duration, late func(*infer.Error)) *silence {
	s, _ := of.spare.Get().(*silence)
	if s == nil {
		s = new(silence)
		// Set going only when the field is set, which the timer's function reads.
		s.timer = time.AfterFunc(math.MaxInt64, s.check)
	}
	s.engine, s.late = engine, late
	s.passed.Store(false)
	s.wait.Since.Store(record.AtWork)
	s.bound.Store(uint32(firstOutput))
	s.limit.Store(int64(limit))
	s.fire(min(limit, next))
	return s
}

// end ends a bound. Nothing may use it afterwards.
func (of *silences) end(s *silence) {
	if s.end() {
		// The timer's function has set the timer again as the last thing it did, and stored fires
		// before: with that, the race detector knows too that it does not read late any more.
		s.fires.Load()
		s.late = nil
		of.spare.Put(s)
	}
}

func (s *silence) limitTo(limit time.Duration, b bound) {
	s.bound.Store(uint32(b))
	s.limit.Store(int64(limit))
	if s.fires.Load() > trace.Now()+int64(limit) {
		s.fire(limit)
	}
}

// fire has the timer fire after d.
func (s *silence) fire(d time.Duration) {
	s.fires.Store(trace.Now() + int64(d))
	s.timer.Reset(d)
}

// again has the timer fire when the rest of a limit has passed. The limit may have been
// changed meanwhile by somebody who saw that the timer is about to fire.
func (s *silence) again(limit int64, left time.Duration) {
	for s.fire(left); ; s.fire(s.left(s.wait.Since.Load())) {
		now := s.limit.Load()
		if now >= limit {
			return
		}
		limit = now
	}
}

// begin reports that the wait for the engine begins, now, and pause that it is over for
// the moment.
func (s *silence) begin(now int64) { s.wait.Since.Store(now) }
func (s *silence) pause()          { s.wait.Since.Store(record.AtWork) }

// end is called once, after which late is not called any more. It returns false if the timer is
// just firing.
func (s *silence) end() (idle bool) {
	s.wait.Since.Store(record.Over)
	// A check that has set the timer again is done with late, in memory's order by fires.
	return s.timer.Stop() && s.fires.Load() != 0
}

// left is what is left of the bound; of a wait that has not begun, all of it.
func (s *silence) left(since int64) time.Duration {
	left := time.Duration(s.limit.Load())
	if since != record.AtWork {
		left -= time.Duration(trace.Now() - since)
	}
	return left
}

func (s *silence) check() {
	since := s.wait.Since.Load()
	if since == record.Over {
		return
	}
	limit := s.limit.Load()
	if left := s.left(since); left > 0 {
		s.again(limit, left)
		return
	}
	s.passed.Store(true)
	s.late(s.err())
	// If output has arrived after all, it must not be checked for being overdue.
	s.again(limit, time.Duration(limit))
}

// overdue is asked by a stream that late has woken, when it has looked once more
// and found nothing: output may have come while it waited for its turn.
func (s *silence) overdue() error {
	if !s.passed.Load() {
		return nil
	}
	s.passed.Store(false)
	if left := s.left(s.wait.Since.Load()); left > 0 {
		s.fire(left)
		return nil
	}
	return s.err()
}

func (s *silence) err() *infer.Error {
	return &infer.Error{Code: infer.CodeDeadline, Engine: s.engine, Retryable: true,
		Message: fmt.Sprintf("the engine sent nothing for %v (%v)", time.Duration(s.limit.Load()), bound(s.bound.Load()))}
}
