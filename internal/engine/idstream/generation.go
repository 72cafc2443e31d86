package idstream

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/trace"
	"weir/internal/wire/sse"
)

// Wire is what an adapter has of its own for a generation.
type Wire interface {
	// Event processes the data of an event, and reports whether it was the last that
	// matters: the terminal delta was offered. The data is valid until it returns.
	Event(s *Scanner, data []byte, now int64) (last bool)
	// Stop has the engine stop. It does not wait, and may be called from any
	// goroutine, also before there is an answer.
	Stop()
	// Progress returns how many ids were offered, and the terminal delta of a generation whose
	// answer breaks off although all of it has come; nil: it has not.
	Progress() (have int, last *infer.Delta)
}

// Generation is a request that the engine has. Its reading side belongs to the
// goroutine that gives it its turn, or to its own where it has one. What is exported is
// set before Hand.
type Generation struct {
	Wire Wire
	Sink engine.Sink
	// Waits holds the abort back, as that of a decode half; nil: nothing does.
	Waits *engine.Deferral
	// Trim takes out of the answer's bytes, in place, what is not to be read; nil: nothing.
	Trim    func(chunk []byte) []byte
	Attempt uint32
	// Short is set if the answer is one event: to leave Go's poller for it, and to come
	// back for the next request, costs more than to wait in a read.
	Short bool
	gone  bool // the body is closed

	host    *Host
	ctx     lifetime.Part // its end breaks the connection
	aborted atomic.Pointer[time.Timer]
	over    atomic.Bool // the terminal delta was offered
	turns

	body   *upstream.Body
	mu     sync.Mutex // of hanging up against closing: of gone
	events sse.Parser
}

// errUnheard breaks the connection of a generation that goes on after its abort.
var errUnheard = errors.New("the engine did not end an aborted request")

// Begin puts a generation on its host, for as long as whole lives. Hand does that too.
func (g *Generation) Begin(whole *lifetime.Context, h *Host) {
	g.host = h
	g.ctx.Of(whole)
}

// Abort implements engine.Generation. That of a decode half may wait.
func (g *Generation) Abort() { g.Waits.Abort(g.abort) }

// Released is what engine.Released calls.
func (g *Generation) Released() { g.Waits.Released() }

// Aborted reports whether the generation was aborted.
func (g *Generation) Aborted() bool { return g.aborted.Load() != nil }

// abort tells the engine to stop.
func (g *Generation) abort() {
	if g.over.Load() || g.aborted.Load() != nil {
		return
	}
	t := time.AfterFunc(g.host.AbortTimeout, func() { g.ctx.End(errUnheard) })
	if !g.aborted.CompareAndSwap(nil, t) {
		t.Stop()
		return
	}
	g.Wire.Stop()
}

// HangUp closes weir's side of the connection, which the engine notices. Output that the
// engine has sent until then is still read.
func (g *Generation) HangUp() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.body != nil && !g.gone {
		g.body.HangUp()
	}
}

// run reads the answer to its end, waiting for it.
func (g *Generation) run() {
	defer g.close()
	defer g.caught(new(bool))
	for whole := false; !whole; {
		chunk, err := g.body.Next()
		now := trace.Now()
		if err != nil {
			g.broken(err, now)
			break
		}
		w := workers.Get().(*worker) // which nobody holds while he waits
		whole = g.Feed(w.scan, chunk, now)
		workers.Put(w)
	}
	// Bytes after the end show only whether the connection can be reused.
	if g.body.Whole() {
		return
	}
	t := time.AfterFunc(afterwards, func() { g.ctx.End(nil) })
	for {
		if _, err := g.body.Next(); err != nil {
			break
		}
	}
	t.Stop()
}

// caught ends the generation after a panic and marks it as over. It is deferred.
func (g *Generation) caught(over *bool) {
	p := infer.Caught(recover(), g.host.Panicked)
	if p == nil {
		return
	}
	*over = true
	defer func() { infer.Caught(recover(), g.host.Panicked) }() // in the sink
	if !g.over.Load() {
		g.Wire.Stop()
		g.Fail(p.Failed(g.host.Name), trace.Now())
	}
}

// afterwards is how long an engine may take to end an answer that is complete.
const afterwards = time.Second

// close lets the connection go.
func (g *Generation) close() {
	defer g.host.live.Done()
	defer func() { infer.Caught(recover(), g.host.Panicked) }()
	g.mu.Lock()
	g.gone = true
	g.mu.Unlock()
	g.body.Close()
	g.ctx.End(nil)
}

// Feed offers the deltas in a part of the answer, and reports whether the terminal
// delta was among them. Only the reader of the answer calls it.
func (g *Generation) Feed(s *Scanner, chunk []byte, now int64) (whole bool) {
	if g.Trim != nil {
		chunk = g.Trim(chunk)
	}
	g.events.Feed(chunk)
	for ev, ok := g.events.Next(); ok; ev, ok = g.events.Next() {
		if !ev.Comment && g.event(s, ev.Data, now) {
			return true
		}
	}
	if err := g.events.Err(); err != nil {
		g.Flawed("event_too_large", err, nil, now)
		return true
	}
	return false
}

// event takes in an event and says whether it was the last.
func (g *Generation) event(s *Scanner, data []byte, now int64) (last bool) {
	if string(data) == sse.DoneMarker {
		g.broken(errors.New("the answer ends without a finish reason"), now)
		return true
	}
	s.begin(data)
	return g.Wire.Event(s, data, now)
}

// End offers the terminal delta.
func (g *Generation) End(d *infer.Delta) {
	g.over.Store(true)
	g.Sink.Offer(d)
	if t := g.aborted.Load(); t != nil {
		t.Stop()
	}
	g.Waits.End()
}

// Fail ends the generation with an error.
func (g *Generation) Fail(err *infer.Error, now int64) {
	have, _ := g.Wire.Progress()
	g.End(&infer.Delta{Attempt: g.Attempt, Total: have, Received: now, Finish: &infer.Finish{
		Reason: infer.ReasonError, PromptTokens: -1, CachedTokens: -1, Err: err,
	}})
}

// broken ends the generation because its answer broke off, which is all that was
// wanted of an aborted one.
func (g *Generation) broken(err error, now int64) {
	have, last := g.Wire.Progress()
	if last == nil && g.Aborted() {
		last = &infer.Delta{Attempt: g.Attempt, Total: have, Finish: &infer.Finish{Reason: infer.ReasonAbort, PromptTokens: -1, CachedTokens: -1}}
	}
	if last != nil {
		last.Received = now
		g.End(last)
		return
	}
	e := *upstream.Fault(g.host.Name, err)
	g.Fail(&e, now)
}
