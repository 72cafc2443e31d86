package gateway

import (
	"bytes"
	"context"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/trace"
)

// tokenPrefill is a prefill half at a token engine: for each choice a generation of its own,
// of which the end alone is looked at.
type tokenPrefill struct {
	requests []*infer.Request // by choice
	atOnce   int              // of them that are handed over at the same time
	finished []infer.Finish   // by choice
	ends     chan int         // the choices that have ended
}

func newTokenPrefill(p *partner, q *request) *tokenPrefill {
	h := &tokenPrefill{atOnce: q.atOnce(), requests: make([]*infer.Request, q.count())}
	for i := range h.requests {
		h.requests[i] = p.submission(q, i, infer.RolePrefill, &p.target)
	}
	return h
}

// serve implements prefill.
func (h *tokenPrefill) serve(ctx context.Context, p *partner) error {
	n := len(h.requests)
	h.finished, h.ends = make([]infer.Finish, n), make(chan int, n)
	bounded, cancel := context.WithTimeout(ctx, p.g.opts.SubmitTimeout)
	defer cancel()
	open, err := handOverAll(bounded, n, h.atOnce, p.leg, func(ctx context.Context, i int, leg *trace.Leg) (g engine.Generation, err error) {
		defer func() {
			if v := recover(); v != nil {
				g, err = nil, p.g.panicError(p.id, v)
			}
		}()
		return p.target.Tokens.Generate(ctx, h.requests[i], 1, &endSink{h: h, choice: i}, leg)
	})
	defer func() {
		for _, g := range open {
			if g != nil {
				g.Abort()
			}
		}
	}()
	if err != nil {
		return inTime(err, "did not confirm the request", p.g.opts.SubmitTimeout, "--submit-timeout")
	}
	p.leg.Known = trace.Now()
	for range n {
		select {
		case i := <-h.ends:
			open[i] = nil
			f := &h.finished[i]
			switch f.Reason {
			case infer.ReasonError:
				return f.Err
			case infer.ReasonAbort:
				return &infer.Error{Code: infer.CodeEngine, Engine: p.target.Name, Retryable: true, Message: "the prefill engine gave the request up"}
			}
			if f.CachedTokens >= 0 {
				p.usage.CachedTokens = max(p.usage.CachedTokens, 0) + f.CachedTokens
			}
			p.usage.PromptTokens += max(f.PromptTokens, 0)
			p.handed(i, f.Params)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// endSink takes the end of a generation.
type endSink struct {
	h      *tokenPrefill
	choice int
	ended  bool
}

// Offer implements engine.Sink.
func (s *endSink) Offer(d *infer.Delta) {
	if d.Finish == nil || s.ended {
		return
	}
	s.ended = true
	f := *d.Finish
	f.Params = bytes.Clone(f.Params)
	s.h.finished[s.choice] = f
	s.h.ends <- s.choice // which has room for all
}
