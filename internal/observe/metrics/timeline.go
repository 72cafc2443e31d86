package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/observe/timeline"
)

// Timeline reports how many records were written and lost.
func (m *Metrics) Timeline(r *timeline.Recorder) {
	m.registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_timeline_written_total",
			Help: "Records written to the timeline file."}, func() float64 { return float64(r.Written()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_timeline_dropped_total",
			Help: "Records that the timeline file does not have."}, func() float64 { return float64(r.Dropped()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_timeline_kept",
			Help: "Records of ended requests in memory."}, func() float64 { return float64(r.Kept()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_timeline_passed_over_total",
			Help: "Records let go of from memory within 15 minutes of their requests' ends, because there were too many: none of the slowest, and of the failed none of the sample."}, func() float64 { return float64(r.Passed()) }),
	)
}

// Spans reports how many requests' spans were sent to a collector, and lost.
func (m *Metrics) Spans(sent, dropped func() uint64) {
	m.registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_otlp_requests_sent_total",
			Help: "Requests whose spans the collector has taken."}, func() float64 { return float64(sent()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "weir_otlp_requests_dropped_total",
			Help: "Requests whose spans the collector does not have and will not get."}, func() float64 { return float64(dropped()) }),
	)
}
