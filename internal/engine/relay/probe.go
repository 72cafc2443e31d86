package relay

import (
	"context"
	"errors"

	"weir/internal/engine"
	"weir/internal/engine/upstream"
)

// probe reads the model list.
func (e *Engine) probe(ctx context.Context) (engine.Facts, error) {
	facts, _, err := e.client.Models(ctx)
	var refused *upstream.StatusError
	if errors.As(err, &refused) && e.opts.Model != "" && refused.Status < 500 {
		return engine.Facts{Models: []string{e.opts.Model}}, nil
	}
	return facts, err
}
