package attempt

import (
	"context"
	"sync"
	"time"

	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/lifetime"
)

// escape lets a request leave an engine that goes down while the request waits there. The
// attempt is aborted and repeated elsewhere, by the rules of any retry. The request leaves
// only if a retry is granted and the client has received nothing, or if another engine can
// continue its stream. Otherwise it stays, since the engine may recover. An attempt in two
// halves ends the same way when its prefill half fails.
type escape struct {
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

// isDown begins the reason why an attempt leaves an engine that goes down.
const isDown = "the engine is down: "

// begin prepares it for an attempt that no other goroutine can access yet.
func (s *escape) begin() {
	s.state, s.err, s.wait, s.cancel, s.abandon, s.mailbox = stays, nil, 0, nil, nil, nil
}

// had returns how many tokens the attempt has had, where they are counted.
func (s *escape) had() (tokens int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mailbox == nil || s.state >= moves {
		return 0, false
	}
	return s.mailbox.Had()
}

// fail ends the attempt because its partner has failed, unless its response has
// begun.
func (s *escape) fail(e *infer.Error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == stays {
		s.leave(fails, e, 0)
	}
}

// leave has the attempt leave for a reason. The lock is held.
func (s *escape) leave(as escapes, e *infer.Error, wait time.Duration) {
	s.state, s.err, s.wait = as, e, wait
	s.wake()
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
