package vllmcore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/fenced"
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
	adapter := e.loraOf(req.Model)
	guided, failed := speaks(req.Guide)
	if failed != nil {
		return nil, failed
	}
	g, s, failed := e.seat(req, adapter, attempt, sink)
	if failed != nil {
		return nil, failed
	}
	g.Guided = guided
	if err := check(req, &e.opts, s.ready.carries(e.opts.Priorities)); err != nil {
		s.Table.Release(g)
		return nil, err
	}
	if e.opts.Engines > 1 {
		leg.DPRank = s.rank
	}
	if failed := s.hand(g, req, adapter); failed != nil {
		s.Table.Release(g)
		return nil, failed
	}
	e.meters.Submitted.Add(1)
	e.wake()

	if err := g.Await(ctx, leg); err != nil {
		return nil, err
	}
	e.meters.Accepted.Add(1)
	return g, nil
}

// seat chooses an engine and enters the request there, in one, so that of many at
// once each sees those before it.
func (e *Engine) seat(req *infer.Request, adapter int, attempt uint32, sink engine.Sink) (*fenced.Generation, *session, *infer.Error) {
	e.choosing.Lock()
	defer e.choosing.Unlock()
	s := e.pick(adapter)
	if s == nil {
		return nil, nil, fenced.Unavailable(e.opts.Name, nil)
	}
	g := newGeneration(s, req, attempt, sink)
	switch ok, taken := s.Table.Seat(g); {
	case taken:
		return nil, nil, &infer.Error{Code: infer.CodeInternal, Engine: e.opts.Name, Message: "internal error",
			Cause: fmt.Errorf("vllmcore: request id %q is in use", req.ID)}
	case !ok:
		return nil, nil, fenced.Unavailable(e.opts.Name, s.Err())
	}
	return g, s, nil
}

// newGeneration makes the generation of a request on a session.
func newGeneration(s *session, req *infer.Request, attempt uint32, sink engine.Sink) *fenced.Generation {
	g := fenced.NewGeneration(s.Out, req.ID, req, attempt, sink)
	if !req.IgnoreEOS {
		g.End = s.opts.EndIDs
	}
	return g
}

// payloads are buffers for the payloads of requests, which are copied once more
// into the outbox.
var payloads = sync.Pool{New: func() any { return new([]byte) }}

// hand puts the request into the outbox.
func (s *session) hand(g *fenced.Generation, req *infer.Request, adapter int) *infer.Error {
	buf := payloads.Get().(*[]byte)
	defer payloads.Put(buf)
	var with *lora
	if adapter >= 0 {
		with = &s.e.lora[adapter]
	}
	*buf = appendAdd((*buf)[:0], req, with, s.opts, float64(time.Now().UnixMicro())/1e6)
	switch ok, closed := s.Out.Add(g, typeAdd, *buf); {
	case closed:
		return fenced.Unavailable(s.opts.Name, s.Err())
	case !ok:
		return &infer.Error{Code: infer.CodeOverloaded, Engine: s.opts.Name, Retryable: true,
			Message: "the engine does not read its requests; try again later"}
	}
	return nil
}
