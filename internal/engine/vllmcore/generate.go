package vllmcore

import (
	"context"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/coreclient"
	"weir/internal/engine/mux"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Generate implements engine.Tokens.
func (e *Engine) Generate(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg) (engine.Generation, error) {
	leg.Engine = e.opts.Name
	index := leg.DPRank
	if len(e.ranks) == 1 {
		index, leg.DPRank = e.opts.First, -1
	}
	if err := ctx.Err(); err != nil {
		return nil, infer.AsError(err)
	}
	req = engine.PrefillOf(req)
	adapter := e.loraOf(req.Model)
	guided, failed := speaks(req.Guide)
	if failed != nil {
		return nil, failed
	}
	s := e.up(index, adapter)
	if s == nil {
		return nil, mux.Unavailable(e.opts.Name, nil)
	}
	g := newGeneration(s, req, attempt, sink)
	if failed := s.Seat(g); failed != nil {
		return nil, failed
	}
	g.Guided = guided
	if err := check(req, &e.opts, s.carries()); err != nil {
		s.Table.Release(g)
		return nil, err
	}
	req, failed = s.ready.whole(req)
	if failed != nil {
		s.Table.Release(g)
		return nil, failed
	}
	var with *lora
	if adapter >= 0 {
		with = &e.lora[adapter]
	}
	if failed := s.Hand(g, func(b []byte) []byte {
		return appendAdd(b, req, with, s.traced(leg.Caller), s.opts, float64(time.Now().UnixMicro())/1e6)
	}, typeAdd); failed != nil {
		return nil, failed
	}
	e.wake()
	return s.Await(ctx, g, leg)
}

// newGeneration makes the generation of a request on a session.
func newGeneration(s *session, req *infer.Request, attempt uint32, sink engine.Sink) *coreclient.Generation {
	g := coreclient.NewGeneration(s.Out, req, attempt, sink)
	if !req.IgnoreEOS {
		g.End = s.opts.EndIDs
	}
	if h := req.Half; h != nil {
		if g.Role, g.Cached = h.Role, -1; h.Role == infer.RoleDecode {
			g.Cached = engine.HandedCached(h.Params) // to this engine all that it gets are
		}
	}
	return g
}
