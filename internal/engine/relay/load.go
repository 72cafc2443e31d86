package relay

import (
	"context"

	"weir/internal/engine"
	"weir/internal/engine/sglangserver"
	"weir/internal/engine/vllmserver"
)

// Load implements engine.Loaded, as of the latest probe of an engine that tells.
func (e *Engine) Load() (engine.Load, bool) {
	l := e.load.Load()
	if l == nil {
		return engine.Load{}, false
	}
	return *l, true
}

// readLoad reads how busy an engine is, and returns the word that tells its process from others, if
// the page has one. mode is an SGLang's, and nil for other engines.
func (e *Engine) readLoad(ctx context.Context, mode *sglangserver.Mode) (started string) {
	var now engine.Load
	var err error
	switch e.known.owner {
	case "vllm":
		var figures *vllmserver.Figures
		had, _ := e.known.figures.Known(e.client)
		figures, err = vllmserver.Metrics(ctx, e.client, had)
		if figures, err = e.known.figures.Take(e.client, figures, err); err == nil {
			now, started = figures.Load, figures.Started
		}
	case "sglang":
		_, now, err = e.known.sglang.Loads(ctx, e.client, mode)
	default:
		return ""
	}
	if err != nil {
		e.load.Store(nil)
		return ""
	}
	e.load.Store(&now)
	return started
}
