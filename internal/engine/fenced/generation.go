package fenced

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/trace"
)

// phase is how far the hand-over of a generation is.
type phase uint32

const (
	// handing: nobody knows yet whether the engine has the request.
	handing phase = iota
	// accepted: it has, and Await confirms the generation. The sink is the
	// dispatcher's to call, and its session's end.
	accepted
	// abandoned: Await returns an error. The sink gets nothing.
	abandoned
)

// Generation is one request on one engine. It implements engine.Generation.
type Generation struct {
	ID     string // of the request on the wire
	Limit  int    // of ids
	Prompt int    // ids in it
	// Scored says that its ids come with log probabilities, and with Top
	// alternatives each.
	Scored bool
	Top    int
	// End and Stop are the ids that may end it, as far as the front end says them.
	End, Stop []uint32
	// Guided says that the output follows a guide that no empty text does.
	Guided bool

	sink    engine.Sink
	attempt uint32
	out     *Outbox

	written  atomic.Int64 // when it was sent; 0: it was not yet
	aborting atomic.Bool  // an abort was asked for
	over     atomic.Bool  // nothing more comes of it

	phase   atomic.Uint32 // a phase; left handing under mu
	mu      sync.Mutex
	settled chan struct{} // closed when it left handing
	acked   int64         // when it was accepted
	failure *infer.Error  // why the engine, or its loss, had it abandoned

	// The rest belongs to whoever dispatches.

	Total  int // ids delivered
	Cached int // ids of the prompt that were not computed; -1: not said
	Stamps infer.Stamps
	ended  bool        // the terminal delta was offered, or never will be
	next   *Generation // what followed it in the engine's last message
}

// NewGeneration makes the generation of a request under an id of the wire.
func NewGeneration(out *Outbox, id string, req *infer.Request, attempt uint32, sink engine.Sink) *Generation {
	g := &Generation{
		sink: sink, ID: id, attempt: attempt, Limit: req.MaxTokens, Prompt: len(req.Prompt),
		Stop: req.StopIDs, out: out, settled: make(chan struct{}), Cached: -1,
	}
	if req.Logprobs != nil {
		g.Scored, g.Top = true, *req.Logprobs
	}
	return g
}

// Abort implements engine.Generation.
func (g *Generation) Abort() {
	if g.over.Load() || g.aborting.Swap(true) {
		return
	}
	g.out.abort(g)
}

// Aborting says whether an abort was asked for.
func (g *Generation) Aborting() bool { return g.aborting.Load() }

// Await waits for the end of the hand-over and fills in leg's stamps. When ctx ends
// before, nobody knows whether the engine has the request: then it is aborted, and
// nothing reaches the sink.
func (g *Generation) Await(ctx context.Context, leg *trace.Leg) error {
	select {
	case <-g.settled:
	case <-ctx.Done():
		if g.Abandon(late(ctx, leg.Engine)) {
			g.Abort()
		}
	}
	leg.ToServer = g.written.Load()
	if phase(g.phase.Load()) == abandoned {
		return g.failure
	}
	// What came at once may have been read before the writer's clock was.
	leg.Acked = max(g.acked, leg.ToServer)
	return nil
}

// late is what a request is told whose context ended during the hand-over.
func late(ctx context.Context, engine string) *infer.Error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return infer.AsError(ctx.Err())
	}
	return &infer.Error{Code: infer.CodeDeadline, Engine: engine, Retryable: true, Cause: ctx.Err(),
		Message: "the engine did not confirm the request in time; try again"}
}

// Handing says whether it is not known yet that the engine has the request.
func (g *Generation) Handing() bool { return phase(g.phase.Load()) == handing }

// Over says whether nobody waits for anything of it.
func (g *Generation) Over() bool { return g.ended || phase(g.phase.Load()) == abandoned }

// Accept ends the hand-over well, at a moment of trace's clock. It reports
// whether the generation is accepted, by this or before.
func (g *Generation) Accept(at int64) bool {
	switch phase(g.phase.Load()) {
	case accepted:
		return true
	case abandoned:
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if phase(g.phase.Load()) == handing {
		g.acked = at
		g.phase.Store(uint32(accepted))
		close(g.settled)
	}
	return phase(g.phase.Load()) == accepted
}

// Abandon ends the hand-over badly, for a reason or because its caller left. It
// reports false when it had ended well before.
func (g *Generation) Abandon(why *infer.Error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch phase(g.phase.Load()) {
	case accepted:
		return false
	case handing:
		g.failure = why
		g.phase.Store(uint32(abandoned))
		close(g.settled)
	}
	return true
}

// deliver offers a delta, which is as good as an acknowledgement. It reports
// false when nobody wants it any more.
func (g *Generation) deliver(d *infer.Delta) bool {
	if g.ended || !g.Accept(d.Received) {
		return false
	}
	if d.Finish != nil {
		g.ended = true
	}
	g.sink.Offer(d)
	return true
}
