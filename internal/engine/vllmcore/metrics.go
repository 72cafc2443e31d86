package vllmcore

import (
	"weir/internal/engine"
	"weir/internal/engine/coreclient"
)

var _ engine.Metered = (*Engine)(nil)

// Metrics implements engine.Metered.
func (e *Engine) Metrics() []engine.Metric {
	f := e.Figures()
	return metrics(&f)
}

func metrics(f *coreclient.Figures) []engine.Metric {
	const prefix = "weir_vllm_core_"
	return f.Metrics(prefix)
}
