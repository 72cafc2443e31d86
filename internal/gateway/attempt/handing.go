package attempt

import (
	"time"

	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/trace"
)

// handing is the context of a hand-over to a token engine. It is a part of the request that ends
// after --submit-timeout too, or when the attempt leaves the engine.
//
// context.WithTimeout takes nine allocations, and leaves a map in the request's context and a
// stopped timer in the runtime: 500 bytes for as long as a stream waits for its engine.
type handing struct {
	lifetime.Part
	until time.Time
	bound *silence
}

// hands begins the context of a hand-over within a request's.
func (a *Attempt) hands(ctx *lifetime.Context, within time.Duration) *handing {
	h := &handing{until: time.Now().Add(within)}
	h.Of(ctx)
	h.bound = a.of.silences.begin(a.Target.Name, within, within, h.late)
	h.bound.begin(trace.Now())
	a.escape.by(h.cancel, nil, nil)
	return h
}

// handed ends the context of a hand-over that is over.
func (a *Attempt) handed(h *handing) {
	a.escape.submitted()
	a.of.silences.end(h.bound)
	h.cancel()
}

func (h *handing) cancel()           { h.End(nil) }
func (h *handing) late(*infer.Error) { h.Outlive() }

// Deadline implements context.Context.
func (h *handing) Deadline() (time.Time, bool) { return h.until, true }
