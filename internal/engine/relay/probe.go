package relay

import (
	"context"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
)

// probe reads the model list.
func (e *Engine) probe(ctx context.Context) (engine.Facts, error) {
	facts, _, err := e.client.Models(ctx)
	// Whoever judges callers by their keys does so with weir, which has none.
	if e.opts.Model != "" && (upstream.Nameless(err) || e.opts.PassKey && upstream.Unauthorized(err)) {
		return engine.Facts{Models: []string{e.opts.Model}}, nil
	}
	return facts, err
}
