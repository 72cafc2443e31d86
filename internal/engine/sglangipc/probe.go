package sglangipc

import (
	"context"

	"weir/internal/engine"
	"weir/internal/engine/mux"
)

// Probe implements engine.Prober by a fence, which every rank of the engine answers.
func (e *Engine) Probe(ctx context.Context, _ engine.Probe) error {
	s := e.up()
	if s == nil {
		return mux.Unavailable(e.opts.Name, e.host.Why())
	}
	return s.Probe(ctx)
}

// Generates implements engine.Prober.
func (*Engine) Generates() bool { return false }
