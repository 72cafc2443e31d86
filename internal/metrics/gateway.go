package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/pool"
)

// Gateway reports the pool's state and the streams with output pending at
// scrape time.
func (m *Metrics) Gateway(p *pool.Pool, waiting func() int64) {
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_streams_pending",
			Help: "Streams that have output pending which their handler has not taken yet."},
			func() float64 { return float64(waiting()) }),
	)
}
