package sglangipc

import (
	"context"
	"fmt"

	"weir/internal/engine"
	"weir/internal/engine/mux"
	"weir/internal/infer"
)

// Probe implements engine.Prober by a fence. Every rank of the engine answers it, and
// nothing says which has, so that a probe of one of several is a generation of one id there.
func (e *Engine) Probe(ctx context.Context, p engine.Probe) error {
	s := e.up()
	if s == nil || p.Rank < 0 || p.Rank >= s.ranks() {
		return e.Reach(ctx)
	}
	if err := engine.Sample(ctx, e, p.Model, p.Rank); err != nil {
		return fmt.Errorf("probe of %s: %w", e.opts.Name, err)
	}
	return nil
}

// Alone is a half of the engine's role that has no other, at a rank; nil where it serves
// whole requests (engine.Sample).
func (e *Engine) Alone(rank int) *infer.Half {
	if s := e.up(); s != nil {
		return s.manifest.Started.Alone(rank)
	}
	return nil
}

// Reach implements engine.Reachable by a fence, which any rank answers.
func (e *Engine) Reach(ctx context.Context) error {
	s := e.up()
	if s == nil {
		return mux.Unavailable(e.opts.Name, e.host.Why())
	}
	return s.Probe(ctx)
}

// Generates implements engine.Prober: a fence does not.
func (e *Engine) Generates() bool {
	s := e.up()
	return s != nil && s.ranks() > 0
}
