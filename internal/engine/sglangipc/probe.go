package sglangipc

import (
	"context"
	"fmt"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/engine/mux"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Probe implements engine.Prober by a fence. Every rank of the engine answers it, and
// nothing says which has, so that a probe of one of several is a generation of one id there.
func (e *Engine) Probe(ctx context.Context, p engine.Probe) error {
	s := e.up()
	switch {
	case s == nil:
		return mux.Unavailable(e.opts.Name, e.host.Why())
	case p.Rank < 0 || p.Rank >= s.ranks():
		return s.Probe(ctx)
	}
	end := make(probed, 1)
	id := fmt.Sprintf("weir-probe-%016x", probes.Add(1)) // no id is the prefix of another
	g, err := e.Generate(ctx, &infer.Request{ID: id, Prompt: []uint32{0}, MaxTokens: 1, IgnoreEOS: true}, 1, end, &trace.Leg{DPRank: p.Rank})
	if err == nil {
		select {
		case err = <-end:
		case <-ctx.Done():
			g.Abort()
			err = ctx.Err()
		}
	}
	if err == nil {
		return nil
	}
	switch failed := infer.AsError(err); failed.Code {
	case infer.CodeOverloaded:
		return fmt.Errorf("probe of %s: %w: %w", e.opts.Name, engine.ErrBusy, err)
	case infer.CodeInvalid, infer.CodeUnsupported, infer.CodeContext:
		return fmt.Errorf("probe of %s: %w: %w", e.opts.Name, engine.ErrNoProbe, err)
	}
	return fmt.Errorf("probe of %s: %w", e.opts.Name, err)
}

// probes counts those that generate.
var probes atomic.Int64

// probed takes the end of a probe's generation.
type probed chan error

// Offer implements engine.Sink.
func (c probed) Offer(d *infer.Delta) {
	switch f := d.Finish; {
	case f == nil:
	case f.Err != nil:
		c <- f.Err
	default:
		c <- nil
	}
}

// Generates implements engine.Prober: a fence does not.
func (e *Engine) Generates() bool {
	s := e.up()
	return s != nil && s.ranks() > 0
}
