package coreclient

import (
	"context"
	"errors"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/engine/mux"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Generation is one request on one engine. It implements engine.Generation.
type Generation struct {
	mux.Generation
	Prompt int // ids in it
	// End and Stop are the ids that may end it and that the front end names.
	End, Stop []uint32
	// Role is the role of a half; RoleBoth: the request is whole. For a prefill half the
	// engine may leave the end of the prompt to the decode engine.
	Role infer.Role
	// Guided is set if the output follows a guide that an empty text does not match.
	Guided bool

	out     *Outbox
	waits   *engine.Deferral // holds its abort back; nil: nothing does
	written atomic.Int64     // when it was sent; 0: it was not yet

	// The rest belongs to whoever dispatches.

	Stamps infer.Stamps
	next   *Generation // what followed it in the engine's last message
}

// NewGeneration makes the generation of a request. Its id is the request's.
func NewGeneration(out *Outbox, req *infer.Request, attempt uint32, sink engine.Sink) *Generation {
	g := &Generation{Prompt: len(req.Prompt), Stop: req.StopIDs, out: out}
	g.InitSettled(req, attempt, sink)
	return g
}

// Defer delays an abort until Released. It is called before the hand-over.
func (g *Generation) Defer() { g.waits = new(engine.Deferral) }

// Abort implements engine.Generation.
func (g *Generation) Abort() { g.waits.Abort(g.abort) }

// abort tells the engine to stop.
func (g *Generation) abort() {
	if g.AskAbort() {
		g.out.abort(g)
	}
}

// Released ends the delay of an abort (engine.Released).
func (g *Generation) Released() { g.waits.Released() }

// Await waits for the end of the hand-over and sets leg's stamps. If ctx ends before,
// it is unknown whether the engine has the request: it is then aborted, and no output
// reaches the sink.
func (g *Generation) Await(ctx context.Context, leg *trace.Leg) error {
	select {
	case <-g.Settled():
	case <-ctx.Done():
		if g.Abandon(late(ctx, leg.Engine)) {
			g.Abort() // a decode half's waits for its first id or its end, as nobody else can release it
		}
	}
	leg.ToServer = g.written.Load()
	acked, why := g.Outcome()
	g.Forget()
	if why != nil {
		return why
	}
	// The acknowledgement of a request that was sent at once may have been read before the writer
	// took its stamp.
	leg.Acked = max(acked, leg.ToServer)
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
