package relay

import (
	"context"

	"weir/internal/engine"
	"weir/internal/engine/sglangmode"
	"weir/internal/engine/upstream"
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

// load is what an engine says of its load. figures are vLLM's.
type load struct {
	engine.Load
	figures *vllmserver.Figures
}

// readLoad reads at a page how busy an engine is, and returns the word that tells its process from
// others, if the page has one.
func (e *Engine) readLoad(ctx context.Context, page string) (started string) {
	var now load
	var err error
	switch e.known.owner {
	case "vllm":
		had, _ := e.known.load.Known(e.client)
		if now.figures, err = vllmserver.Metrics(ctx, e.client, had.figures); err == nil {
			now.Load = now.figures.Load
		}
	case "sglang":
		now.Load, err = e.sglangLoad(ctx, page)
	default:
		return ""
	}
	if now, err = e.known.load.Take(e.client, now, err); err != nil {
		e.load.Store(nil)
		return ""
	}
	e.load.Store(&now.Load)
	if now.figures != nil {
		started = now.figures.Started
	}
	return started
}

func (e *Engine) sglangLoad(ctx context.Context, page string) (engine.Load, error) {
	data, _, err := e.client.Get(ctx, page)
	if err != nil {
		return engine.Load{}, err
	}
	loads, err := sglangmode.ParseLoads(data)
	if err != nil {
		return engine.Load{}, err
	}
	said, ok := loads.Load()
	if had, known := e.known.load.Known(e.client); !ok || known && len(said.Ranks) < len(had.Ranks) {
		return engine.Load{}, upstream.ErrHalf
	}
	return said, nil
}
