package sglangipc

import "weir/internal/engine"

var _ engine.Metered = (*Engine)(nil)

// Metrics implements engine.Metered.
func (e *Engine) Metrics() []engine.Metric {
	f := e.Figures()
	return f.Metrics("weir_sglang_ipc_")
}
