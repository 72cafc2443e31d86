package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/engine/plane"
	"weir/internal/timeline"
)

// Planes reports the figures of the batched plane's readers at scrape time:
// on which side of a reader a backlog stands.
func (m *Metrics) Planes(engines func() []*plane.Engine) {
	type f = plane.Figures
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	m.registry.MustRegister(newFigures("weir_plane_", engines,
		func(f *f) []uint64 { return f.Lost[:] }, func(i int) string { return plane.Loss(i).String() },
		[]figure[f]{
			{"frames_total", "Steps received.", counter, func(f *f) float64 { return float64(f.Frames) }},
			{"ids_total", "Token ids in them.", counter, func(f *f) float64 { return float64(f.IDs) }},
			{"dispatch_seconds_total", "Time spent decoding steps and handing them to streams.", counter, func(f *f) float64 { return f.DispatchSum.Seconds() }},
			{"dispatch_seconds_max", "The longest dispatch of one step.", gauge, func(f *f) float64 { return f.DispatchMax.Seconds() }},
			{"wait_seconds_total", "Time the reader waited for a step; a reader that hardly waits is the bottleneck.", counter, func(f *f) float64 { return f.WaitSum.Seconds() }},
			{"aborts_total", "Aborts sent.", counter, func(f *f) float64 { return float64(f.Aborts) }},
			{"ping_seconds", "Round trip of the latest ping.", gauge, func(f *f) float64 { return f.PingLast.Seconds() }},
			{"slots", "Requests handed to the engine that have not ended.", gauge, func(f *f) float64 { return float64(f.Live) }},
			{"engine_running", "Requests in the engine's running batch, as it last said.", gauge, func(f *f) float64 { return float64(f.Running) }},
			{"engine_waiting", "Requests in the engine's waiting queue, as it last said.", gauge, func(f *f) float64 { return float64(f.Waiting) }},
		}))
}

// Timeline reports how many records were written and lost.
func (m *Metrics) Timeline(r *timeline.Recorder) {
	m.registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_timeline_written_total",
			Help: "Records written to the timeline file."}, func() float64 { return float64(r.Written()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_timeline_dropped_total",
			Help: "Records that the timeline file does not have."}, func() float64 { return float64(r.Dropped()) }),
	)
}
