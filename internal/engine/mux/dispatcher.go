package mux

import (
	"weir/internal/infer"
)

// Dispatcher is what readers have in common that hand the deltas of a session to
// their sinks. No method may be called concurrently.
type Dispatcher struct {
	Engine string
	// Panicked is called for panics that were caught; it may be nil.
	Panicked func(*infer.Panic)
	// At is the generation whose output is at hand, while it is.
	At *Generation
	// Delta is the one that is offered, reused.
	Delta infer.Delta

	evidence evidence
}

// Keep keeps what a frame was, as evidence.
func (d *Dispatcher) Keep(f Frame) { d.evidence.add(&f) }

// Kept returns the last frames, oldest first.
func (d *Dispatcher) Kept() []Frame { return d.evidence.last() }

// Fault makes a fault of what was received last.
func (d *Dispatcher) Fault(reason FaultReason, detail string) *Fault {
	return &Fault{Reason: reason, Detail: detail, Frames: d.Kept()}
}

// Faulty is the error for a generation whose output fails a check.
func (d *Dispatcher) Faulty(f *Fault) *infer.Error {
	return &infer.Error{Code: infer.CodeIntegrity, Message: doesNotAddUp, Engine: d.Engine, Retryable: true, Cause: f}
}

// Finish offers a terminal delta without ids.
func (d *Dispatcher) Finish(g *Generation, f *infer.Finish) {
	x := &d.Delta
	x.Attempt, x.IDs, x.Logprobs, x.Total, x.Stamps, x.CachedKnown, x.Finish = g.Attempt, nil, nil, g.Total, nil, false, f
	g.Offer(x)
}

// End offers the terminal delta of a generation that the engine did not finish
// itself.
func (d *Dispatcher) End(g *Generation, err *infer.Error) {
	d.Finish(g, &infer.Finish{Reason: infer.ReasonError, PromptTokens: -1, CachedTokens: g.Cached, Err: err})
}

// Lose ends a generation whose session has ended. A generation without output so far is
// left to its Generate. A generation that was being processed during a panic is not
// sent to another engine, because it may be the cause of the panic, and would end the
// session there too.
func (d *Dispatcher) Lose(g *Generation, err *infer.Error) {
	defer func() { infer.Caught(recover(), d.Panicked) }() // in its sink; the others go on
	if g == d.At && err.Code == infer.CodeInternal {
		last := *err
		last.Retryable = false
		err = &last
	}
	if !g.Abandon(err) {
		d.End(g, err)
	}
}

// MaxRequests bounds the requests that a frame may be about, far above what an engine
// has in a step: a claimed number of entries costs many times their bytes.
const MaxRequests = 1 << 16
