package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/timeline"
)

// Timeline reports how many records were written and lost.
func (m *Metrics) Timeline(r *timeline.Recorder) {
	m.registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_timeline_written_total",
			Help: "Records written to the timeline file."}, func() float64 { return float64(r.Written()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_timeline_dropped_total",
			Help: "Records that the timeline file does not have."}, func() float64 { return float64(r.Dropped()) }),
	)
}
