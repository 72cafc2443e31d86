package plane

import (
	"weir/internal/engine"
	"weir/internal/engine/mux"
)

var _ engine.Metered = (*Engine)(nil)

// Metrics implements engine.Metered: on which side of the reader a backlog stands.
func (e *Engine) Metrics() []engine.Metric {
	f := e.Figures()
	return f.metrics()
}

func (f *Figures) metrics() []engine.Metric {
	const prefix = "weir_plane_"
	list := []engine.Metric{
		engine.NewCounter(prefix+"frames_total", "Steps received.", float64(f.Frames)),
		engine.NewCounter(prefix+"slow_steps_total", "Steps whose dispatch took longer than 1 ms.", float64(f.Slow)),
		engine.NewCounter(prefix+"wait_seconds_total", "Time the reader waited for a step; a reader that hardly waits is the bottleneck.", f.Wait.Seconds()),
		engine.NewCounter(prefix+"batches_total", "Messages that handed in requests, those that came at the same time together.", float64(f.Batches)),
		engine.NewGauge(prefix+"ping_seconds", "Round trip of the latest ping.", f.PingLast.Seconds()),
		engine.NewGauge(prefix+"slots", "Requests handed to the engine that have not ended.", float64(f.Live)),
	}
	return append(list, f.Metrics(prefix, mux.LossClosed, mux.LossEngine, mux.LossConnection, mux.LossSilent, mux.LossIntegrity, mux.LossForgotten, mux.LossSlots, mux.LossPanic)...)
}
