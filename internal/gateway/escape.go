package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"weir/internal/fleet/retry"
	"weir/internal/fleet/route"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/trace"
)

// escape lets a request leave an engine that goes down while the request waits there. The
// attempt is aborted and repeated elsewhere, by the rules of any retry. The request leaves
// only if a retry is granted and the client has received nothing, or if another engine can
// continue its stream. Otherwise it stays, since the engine may recover. An attempt in two
// halves ends the same way when its prefill half fails.
type escape struct {
	x *exchange

	mu     sync.Mutex
	state  escapes
	err    *infer.Error  // why it leaves
	wait   time.Duration // for the turn of the retry, which is spent
	cancel context.CancelFunc
	// abandon wakes the attempt, in whichever wait it is.
	abandon *lifetime.Part
	mailbox *stream.Mailbox
}

// escapes are the states of an attempt's escape.
type escapes uint8

const (
	stays   escapes = iota
	answers         // the response has begun
	moves           // the stream goes on elsewhere, if that is granted
	leaves
	fails // by its partner
)

// begin prepares it for an attempt of x that no other goroutine can access yet.
func (s *escape) begin(x *exchange) {
	s.x, s.state, s.err, s.wait, s.cancel, s.abandon, s.mailbox = x, stays, nil, 0, nil, nil, nil
}

// Down implements judge.Waiting. It runs in the judge's goroutine, while the attempt is the
// exchange's latest and its response has not begun, so that what it reads of the exchange
// stands still.
func (s *escape) Down(why string) { s.down(&s.x.target, why) }

// down is Down for either engine of the attempt.
func (s *escape) down(at *route.Target, why string) { s.leave(at, "the engine is down: "+why) }

// Stalled implements judge.Waiting: the engine goes on with others. What it has had of the
// attempt stands still, for which Down has the reason.
func (s *escape) Stalled(d time.Duration) {
	s.leave(&s.x.target, fmt.Sprintf("the engine sent nothing for %v while it went on with other requests (--stall-timeout)", d.Round(time.Second)))
}

// Had implements judge.Waiting. A relayed answer's tokens are not counted.
func (s *escape) Had() (tokens int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mailbox == nil || s.state >= moves {
		return 0, false
	}
	return s.mailbox.Had()
}

// leave ends the attempt at one of its engines for a reason, if it may end.
func (s *escape) leave(at *route.Target, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.x
	if s.state > answers || s.state == answers && (at != &x.target || x.bar != prepare.GoesOn) {
		return
	}
	e := &infer.Error{Code: infer.CodeDeadline, Engine: at.Name, Retryable: true, Message: why}
	var f retry.Failure
	if s.state == answers { // where what the response is about to say is not looked at
		f = retry.Failure{Goes: true, Silent: true, Continued: int(x.continued)}
	} else {
		f = x.failure(e)
	}
	if f.Allow() != retry.Granted || !f.Goes && !x.need.Elsewhere(*at) || f.Goes && !x.need.Continues(*at) {
		return
	}
	if f.Goes {
		if f.Continued == 0 || x.need.Model.Retries.Left(trace.Now()) >= 1 {
			s.state, s.err = moves, e
			s.wake()
		}
		return
	}
	wait, refused := x.need.Model.Retries.Decide(trace.Now(), &f, rand.Float64())
	if refused != retry.Granted {
		return
	}
	s.state, s.err, s.wait = leaves, e, wait
	s.wake()
}

// fail ends the attempt because its partner has failed, unless its response has
// begun.
func (s *escape) fail(e *infer.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == stays {
		s.state, s.err = fails, e
		s.wake()
	}
}

// wake ends whatever wait the attempt is in. The lock is held.
func (s *escape) wake() {
	if s.cancel != nil {
		s.cancel()
	}
	if s.abandon != nil {
		s.abandon.End(s.err)
	}
	if s.mailbox != nil {
		s.mailbox.Wake()
	}
}

// by sets how the attempt is woken, and wakes it if it is already to leave. Nil changes
// nothing.
func (s *escape) by(cancel context.CancelFunc, abandon *lifetime.Part, m *stream.Mailbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cancel != nil {
		s.cancel = cancel
	}
	if abandon != nil {
		s.abandon = abandon
	}
	if m != nil {
		s.mailbox = m
	}
	if s.state >= moves {
		s.wake()
	}
}

// submitted ends what cancel was for.
func (s *escape) submitted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel = nil
}

// left returns why the attempt leaves; nil where it stays.
func (s *escape) left() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state >= moves {
		return s.err
	}
	return nil
}

// answers reports that the response begins, after which the attempt stays. It returns an
// error if the attempt is already leaving.
func (s *escape) answers() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state >= moves {
		return s.err
	}
	s.state = answers
	return nil
}

// granted returns how long the retry waits that an escape was granted.
func (s *escape) granted() (wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wait, s.state == leaves
}
