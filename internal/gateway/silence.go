package gateway

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// silence bounds how long a relay's engine may send nothing. Only the time in
// which weir waits for the engine counts: what it waits for a slow client is
// none of the engine's.
//
// The timer is not touched per read. When it fires it looks at when the wait
// began, and is set again for what is left.
type silence struct {
	abandon context.CancelCauseFunc
	engine  string
	limit   atomic.Int64 // nanoseconds
	since   atomic.Int64 // when the wait began; one of the two below without
	timer   *time.Timer
}

// What since is when nobody waits.
const (
	silenceAtWork = 0
	silenceOver   = -1
)

// bound opens the bound of an attempt, with the limit of a first output.
func (x *exchange) bound() *silence {
	s := &silence{abandon: x.abandon, engine: x.target.Name}
	// Set going only when the field is set, which the timer's function reads.
	s.timer = time.AfterFunc(math.MaxInt64, s.check)
	s.limitTo(x.g.opts.FirstTimeout)
	return s
}

func (s *silence) limitTo(limit time.Duration) {
	s.limit.Store(int64(limit))
	s.timer.Reset(limit)
}

// begin says that the wait for the engine begins, now, and pause that it is over
// for the moment.
func (s *silence) begin(now int64) { s.since.Store(now) }
func (s *silence) pause()          { s.since.Store(silenceAtWork) }

// end is called once, after which the attempt is not abandoned any more.
func (s *silence) end() {
	s.since.Store(silenceOver)
	s.timer.Stop()
}

func (s *silence) check() {
	limit := time.Duration(s.limit.Load())
	left := limit
	switch since := s.since.Load(); since {
	case silenceOver:
		return
	case silenceAtWork:
	default:
		left -= time.Duration(trace.Now() - since)
	}
	if left > 0 {
		s.timer.Reset(left)
		return
	}
	s.abandon(&infer.Error{Code: infer.CodeDeadline, Engine: s.engine, Retryable: true,
		Message: "the engine sent nothing for " + limit.String()})
}
