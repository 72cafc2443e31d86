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
	list := []engine.Metric{
		engine.NewCounter("weir_plane_frames_total", "Steps received.", float64(f.Frames)),
		engine.NewCounter("weir_plane_ids_total", "Token ids in them.", float64(f.IDs)),
		engine.NewCounter("weir_plane_dispatch_seconds_total", "Time spent decoding steps and handing them to streams.", f.DispatchSum.Seconds()),
		engine.NewGauge("weir_plane_dispatch_seconds_max", "The longest dispatch of one step.", f.DispatchMax.Seconds()),
		engine.NewCounter("weir_plane_wait_seconds_total", "Time the reader waited for a step; a reader that hardly waits is the bottleneck.", f.WaitSum.Seconds()),
		engine.NewCounter("weir_plane_aborts_total", "Aborts sent.", float64(f.Aborts)),
		engine.NewGauge("weir_plane_ping_seconds", "Round trip of the latest ping.", f.PingLast.Seconds()),
		engine.NewGauge("weir_plane_slots", "Requests handed to the engine that have not ended.", float64(f.Live)),
		engine.NewGauge("weir_plane_engine_running", "Requests in the engine's running batch, as it last said.", float64(f.Running)),
		engine.NewGauge("weir_plane_engine_waiting", "Requests in the engine's waiting queue, as it last said.", float64(f.Waiting)),
	}
	for why, n := range f.Lost {
		list = append(list, engine.NewCounter("weir_plane_sessions_lost_total", "Sessions that ended, by why.", float64(n)).With("why", mux.Loss(why).String()))
	}
	return list
}
