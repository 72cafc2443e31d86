package relay

import (
	"context"

	"weir/internal/engine"
	"weir/internal/engine/sglangmode"
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

// readLoad reads how busy an engine is, whose model list says whose it is.
func (e *Engine) readLoad(ctx context.Context, owner string) {
	var l *engine.Load
	switch owner {
	case "vllm":
		if f := vllmserver.Metrics(ctx, e.client); f != nil {
			l = &f.Load
		}
	case "sglang":
		if data, _, err := e.client.Get(ctx, e.said.loads); err == nil {
			if loads, err := sglangmode.ParseLoads(data); err == nil {
				if said, ok := loads.Load(); ok {
					l = &said
				}
			}
		}
	}
	e.load.Store(l)
}
