package coreclient

import (
	"math/rand/v2"
	"sync"

	"weir/internal/wire/zmtp"
)

// Outbox holds the messages that a session's writer is to send, and tracks which of them
// the engine has processed.
//
// The wire has no acknowledgements, and may have no output for a request that the front
// end aborts. A fence replaces both: a call without side effects, sent after requests and
// aborts on the same connection. The engine's loop processes messages in order, and
// answers follow all output that precedes them. The answer therefore shows that the
// engine has processed the requests and aborts before the fence.
//
// At most one fence is under way. Messages sent meanwhile wait for the next one, so that
// an engine answers at most one question per turn of its loop, however many requests
// there are. If one rank does not answer a fence that the others have answered, a
// question for a sign of life is a new fence. It covers what the other one did, and the
// answers show that the other ranks live.
type Outbox struct {
	wake  chan struct{} // capacity 1: there is something
	limit int           // bytes of requests that may wait
	code  Code
	ranks int // that each answer a fence

	mu     sync.Mutex
	closed bool
	wire   []byte // messages to send, in wire form
	spare  []byte // for wire, after it was sent
	adds   []*Generation
	aborts []*Generation
	strays []string // requests that the engine has and nobody here knows
	probe  bool
	asking []chan struct{} // who waits for the answer to a fence that is yet to be sent

	open  Fence           // sent and behind no fence yet
	under Fence           // behind the fence that is under way
	call  int64           // of that fence, or of the last one
	going bool            // a fence is under way
	left  int             // answers to it that are missing
	sent  int64           // when that fence was
	asked []chan struct{} // who waits for its answer
}

// Code encodes the messages that an Outbox itself adds. Each function appends whole
// messages in wire form.
type Code interface {
	AppendAborts(wire []byte, ids []string) []byte
	AppendFence(wire []byte, call int64) []byte
}

// Fence is what a fence covers.
type Fence struct{ Adds, Aborts []*Generation }

func (f *Fence) empty() bool { return len(f.Adds) == 0 && len(f.Aborts) == 0 }

// NewOutbox returns an Outbox in which at most limit bytes of requests may wait. Each
// of the engine's ranks answers a fence.
func NewOutbox(limit int, code Code, ranks int) *Outbox {
	// Answers to an earlier process's questions may still come; they must not be
	// taken for ours.
	return &Outbox{wake: make(chan struct{}, 1), limit: limit, code: code, ranks: ranks, call: rand.Int64N(1 << 48)}
}

func (o *Outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Add adds a request, a message of the given frames. It returns false if too much
// waits already because the engine does not read, or if the session has ended.
func (o *Outbox) Add(g *Generation, frames ...[]byte) (ok, closed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || len(o.wire) > o.limit {
		return false, o.closed
	}
	o.wire = zmtp.AppendMessage(o.wire, frames...)
	o.adds = append(o.adds, g)
	o.signal()
	return true, false
}

// Post adds a message without an answer.
func (o *Outbox) Post(frames ...[]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.wire = zmtp.AppendMessage(o.wire, frames...)
	o.signal()
}

func (o *Outbox) abort(g *Generation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.aborts = append(o.aborts, g)
	o.signal()
}

// AbortStrays requests aborts of requests that are not ours.
func (o *Outbox) AbortStrays(ids []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.strays = append(o.strays, ids...)
	o.signal()
}

// Ask requests a sign of life of the engine.
func (o *Outbox) Ask() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.probe = true
	o.signal()
}

// Probe requests a fence. It returns a channel that is closed when all ranks of the
// engine have answered it.
func (o *Outbox) Probe() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	answered := make(chan struct{})
	o.asking = append(o.asking, answered)
	o.probe = true
	o.signal()
	return answered
}

// Take returns the bytes to write, with the generations whose requests are in them and
// the number of aborts. Written must be called after they were written.
func (o *Outbox) Take(now int64) (wire []byte, adds []*Generation, aborts int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	adds, aborts = o.adds, len(o.aborts)
	o.open.Adds = append(o.open.Adds, adds...)
	o.adds = nil
	if n := len(o.aborts) + len(o.strays); n > 0 {
		ids := o.strays
		for _, g := range o.aborts {
			ids = append(ids, g.ID)
		}
		o.open.Aborts = append(o.open.Aborts, o.aborts...)
		o.aborts, o.strays = nil, nil
		o.wire = o.code.AppendAborts(o.wire, ids)
	}
	if o.going && o.probe && o.left < o.ranks {
		o.open.Adds = append(o.under.Adds, o.open.Adds...)
		o.open.Aborts = append(o.under.Aborts, o.open.Aborts...)
		o.asking = append(o.asked, o.asking...)
		o.going = false
	}
	if !o.going && (o.probe || !o.open.empty()) {
		o.going, o.probe, o.left = true, false, o.ranks
		o.call++
		o.sent = now
		o.under, o.open = o.open, Fence{}
		o.asked, o.asking = o.asking, nil
		o.wire = o.code.AppendFence(o.wire, o.call)
	}
	wire = o.wire
	o.wire, o.spare = o.spare[:0], nil
	return wire, adds, aborts
}

// keepWire bounds the room that an idle outbox keeps.
const keepWire = 1 << 20

// Written takes back the bytes of Take.
func (o *Outbox) Written(wire []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if cap(wire) <= keepWire {
		o.spare = wire[:0]
	}
}

// Answered processes an answer. ok is false if it is not the last answer to the fence
// under way; otherwise it returns the fence and the time at which it was sent.
func (o *Outbox) Answered(call int64) (f Fence, sent int64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.going || call != o.call {
		return Fence{}, 0, false
	}
	if o.left--; o.left > 0 {
		return Fence{}, 0, false
	}
	f, o.under, o.going = o.under, Fence{}, false
	for _, answered := range o.asked {
		close(answered)
	}
	o.asked = nil
	if o.probe || !o.open.empty() {
		o.signal()
	}
	return f, o.sent, true
}

// Asked reports whether a call is the fence that is under way.
func (o *Outbox) Asked(call int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.going && call == o.call
}

// Close makes the Outbox refuse all further messages.
func (o *Outbox) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}
