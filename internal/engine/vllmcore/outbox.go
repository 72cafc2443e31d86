package vllmcore

import (
	"math/rand/v2"
	"sync"

	"weir/internal/zmtp"
)

// outbox holds what a session's writer is to send, and knows which of it the
// engine has taken in.
//
// The wire has no acknowledgements, and says nothing at all of a request that the
// front end aborts. A fence stands in for both: a call that changes nothing, sent
// behind requests and aborts on the same connection. The engine's loop takes what
// comes in turn, and answers go out behind all output before them. So with the
// answer, the requests before the fence are known to be taken in, and of those
// that were aborted before it nothing more will come.
//
// At most one fence is under way. What is sent meanwhile waits for the next one,
// so that fences cost an engine one call per turn of its loop at the most,
// however many requests there are.
type outbox struct {
	wake  chan struct{} // capacity 1: there is something
	limit int           // bytes of requests that may wait

	mu     sync.Mutex
	closed bool
	wire   []byte // messages to send, in wire form
	spare  []byte // for wire, after it was sent
	adds   []*generation
	aborts []*generation
	strays []string // requests that the engine has and nobody here knows
	waves  []int64
	probe  bool

	open  fence // sent and behind no fence yet
	under fence // behind the fence that is under way
	call  int64 // of that fence, or of the last one
	going bool  // a fence is under way
	scrap []byte
	sent  int64 // when that fence was
}

// fence is what one covers.
type fence struct{ adds, aborts []*generation }

func (f *fence) empty() bool { return len(f.adds) == 0 && len(f.aborts) == 0 }

func newOutbox(limit int) *outbox {
	// Answers to an earlier process's calls may still come; they must not be
	// taken for ours.
	return &outbox{wake: make(chan struct{}, 1), limit: limit, call: rand.Int64N(1 << 48)}
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// add puts in a request. It reports false when too much waits already, because
// the engine does not read, or when the session has ended.
func (o *outbox) add(g *generation, payload []byte) (ok, closed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || len(o.wire) > o.limit {
		return false, o.closed
	}
	o.wire = zmtp.AppendMessage(o.wire, typeAdd, payload)
	o.adds = append(o.adds, g)
	o.signal()
	return true, false
}

func (o *outbox) abort(g *generation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return
	}
	o.aborts = append(o.aborts, g)
	o.signal()
}

// abortStrays has requests aborted that are not ours.
func (o *outbox) abortStrays(ids []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.strays = append(o.strays, ids...)
	o.signal()
}

// startWave has the engine told of a wave.
func (o *outbox) startWave(wave int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waves = append(o.waves, wave)
	o.signal()
}

// ask wants an answer of the engine, whichever.
func (o *outbox) ask() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.probe = true
	o.signal()
}

// take gives what is to be written, with the generations whose requests are in it
// and the number of aborts; written must be called once it was.
func (o *outbox) take(now int64) (wire []byte, adds []*generation, aborts int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	adds, aborts = o.adds, len(o.aborts)
	o.open.adds = append(o.open.adds, adds...)
	o.adds = nil
	if n := len(o.aborts) + len(o.strays); n > 0 {
		ids := o.strays
		for _, g := range o.aborts {
			ids = append(ids, g.id)
		}
		o.open.aborts = append(o.open.aborts, o.aborts...)
		o.aborts, o.strays = nil, nil
		o.scrap = appendAbort(o.scrap[:0], ids)
		o.wire = zmtp.AppendMessage(o.wire, typeAbort, o.scrap)
	}
	for _, wave := range o.waves {
		o.wire = zmtp.AppendMessage(o.wire, typeWave, appendWave(nil, wave))
	}
	o.waves = nil
	if !o.going && (o.probe || !o.open.empty()) {
		o.going, o.probe = true, false
		o.call++
		o.sent = now
		o.under, o.open = o.open, fence{}
		o.scrap = appendUtility(o.scrap[:0], o.call, probeMethod)
		o.wire = zmtp.AppendMessage(o.wire, typeUtility, o.scrap)
	}
	wire = o.wire
	o.wire, o.spare = o.spare[:0], nil
	return wire, adds, aborts
}

// keepWire bounds the room that an idle outbox keeps.
const keepWire = 1 << 20

// written gives the bytes of take back.
func (o *outbox) written(wire []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if cap(wire) <= keepWire {
		o.spare = wire[:0]
	}
}

// answered takes in the answer to a call. ok is false when it is not the fence's
// that is under way; else it gives what is behind it, and when it was sent.
func (o *outbox) answered(call int64) (f fence, sent int64, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.going || call != o.call {
		return fence{}, 0, false
	}
	f, o.under, o.going = o.under, fence{}, false
	if o.probe || !o.open.empty() {
		o.signal()
	}
	return f, o.sent, true
}

// close lets nothing in any more.
func (o *outbox) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}
