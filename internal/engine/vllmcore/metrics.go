package vllmcore

import (
	"weir/internal/engine"
	"weir/internal/engine/fenced"
)

var _ engine.Metered = (*Engine)(nil)

// Metrics implements engine.Metered.
func (e *Engine) Metrics() []engine.Metric {
	f := e.Figures()
	return metrics(&f)
}

func metrics(f *fenced.Figures) []engine.Metric {
	const prefix = "weir_vllm_core_"
	return append(f.Metrics(prefix),
		engine.NewGauge(prefix+"engine_running", "Requests in the engine's running batch, as it last said.", float64(f.Running)),
		engine.NewGauge(prefix+"engine_waiting", "Requests in the engine's waiting queue, as it last said.", float64(f.Waiting)))
}
