package vllmcore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Generate implements engine.Tokens. What confirms a request on this wire is the
// answer to the fence behind it (see outbox), or its first output.
//
// When ctx ends before either, nobody knows whether the engine has the request.
// Then it is aborted, and nothing reaches the sink.
func (e *Engine) Generate(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg) (engine.Generation, error) {
	leg.Engine, leg.DPRank = e.opts.Name, -1
	if err := ctx.Err(); err != nil {
		return nil, infer.AsError(err)
	}
	g, s, failed := e.seat(req, attempt, sink)
	if failed != nil {
		return nil, failed
	}
	if err := check(req, &e.opts, s.ready.carries()); err != nil {
		s.table.release(g)
		return nil, err
	}
	if e.opts.Engines > 1 {
		leg.DPRank = s.rank
	}
	if failed := s.hand(g, req); failed != nil {
		s.table.release(g)
		return nil, failed
	}
	e.meters.submitted.Add(1)
	e.wake()

	select {
	case <-g.settled:
	case <-ctx.Done():
		if g.abandon(late(ctx, e.opts.Name)) {
			g.Abort()
		}
	}
	leg.ToServer = g.written.Load()
	if phase(g.phase.Load()) == abandoned {
		return nil, g.failure
	}
	e.meters.accepted.Add(1)
	// What came at once may have been read before the writer's clock was.
	leg.Acked = max(g.acked, leg.ToServer)
	return g, nil
}

// seat chooses an engine and enters the request there, in one, so that of many at
// once each sees those before it.
func (e *Engine) seat(req *infer.Request, attempt uint32, sink engine.Sink) (*generation, *session, *infer.Error) {
	e.choosing.Lock()
	defer e.choosing.Unlock()
	s := e.pick()
	if s == nil {
		return nil, nil, unavailable(e.opts.Name, nil)
	}
	g := newGeneration(s, req, attempt, sink)
	switch ok, taken := s.table.seat(g); {
	case taken:
		return nil, nil, &infer.Error{Code: infer.CodeInternal, Engine: e.opts.Name, Message: "internal error",
			Cause: fmt.Errorf("vllmcore: request id %q is in use", req.ID)}
	case !ok:
		return nil, nil, unavailable(e.opts.Name, context.Cause(s.ctx))
	}
	return g, s, nil
}

// payloads are buffers for the payloads of requests, which are copied once more
// into the outbox.
var payloads = sync.Pool{New: func() any { return new([]byte) }}

// hand puts the request into the outbox.
func (s *session) hand(g *generation, req *infer.Request) *infer.Error {
	buf := payloads.Get().(*[]byte)
	defer payloads.Put(buf)
	*buf = appendAdd((*buf)[:0], req, s.opts, float64(time.Now().UnixMicro())/1e6)
	switch ok, closed := s.out.add(g, *buf); {
	case closed:
		return unavailable(s.opts.Name, context.Cause(s.ctx))
	case !ok:
		return &infer.Error{Code: infer.CodeOverloaded, Engine: s.opts.Name, Retryable: true,
			Message: "the engine does not read its requests; try again later"}
	}
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
