package gateway

import (
	"context"
	"slices"
	"sync"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// handing is the context of a hand-over to a token engine. It ends with the request, after
// --submit-timeout, or when the attempt leaves the engine.
//
// context.WithTimeout takes nine allocations, and leaves a map in the request's context and a
// stopped timer in the runtime: 500 bytes for as long as a stream waits for its engine.
type handing struct {
	context.Context // the request's, for its values and its cause
	until           time.Time
	bound           *silence

	mu    sync.Mutex
	err   error         // why it has ended
	done  chan struct{} // nil: nobody has asked for it
	after []*func()     // what contexts that derive from it do when it ends
}

// hands begins the context of a hand-over.
func (x *exchange) hands(within time.Duration) *handing {
	h := &handing{Context: &x.ctx, until: time.Now().Add(within)}
	h.bound = x.g.silences.begin(x.target.Name, within, within, h.late)
	h.bound.begin(trace.Now())
	x.handing.Store(h)
	if err := x.ctx.Err(); err != nil { // end may not have found it
		h.end(err)
	}
	x.booked.escape.by(h.cancel, nil, nil)
	return h
}

// handed ends the context of a hand-over that is over.
func (x *exchange) handed(h *handing) {
	x.booked.escape.submitted()
	x.handing.Store(nil)
	x.g.silences.end(h.bound)
	h.cancel()
}

func (h *handing) cancel()           { h.end(context.Canceled) }
func (h *handing) late(*infer.Error) { h.end(context.DeadlineExceeded) }

// end ends it, the first time.
func (h *handing) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return
	}
	h.err = err
	if h.done != nil {
		close(h.done)
	}
	for _, f := range h.after {
		go (*f)()
	}
	h.after = nil
}

// Deadline implements context.Context.
func (h *handing) Deadline() (time.Time, bool) { return h.until, true }

// Done implements context.Context.
func (h *handing) Done() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.done == nil {
		if h.done = make(chan struct{}); h.err != nil {
			close(h.done)
		}
	}
	return h.done
}

// Err implements context.Context.
func (h *handing) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// AfterFunc has package context end contexts that derive from this one without a goroutine for
// each.
func (h *handing) AfterFunc(f func()) (stop func() bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		go f()
		return func() bool { return false }
	}
	h.after = append(h.after, &f)
	return func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		i := slices.Index(h.after, &f)
		if i < 0 {
			return false
		}
		h.after = slices.Delete(h.after, i, i+1)
		return true
	}
}
