package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/fleet/route"
)

// Results of a reading of the configuration.
const (
	Applied   = "applied"
	Unchanged = "unchanged"
	Failed    = "failed"
)

// Changes reports changes of the fleet while it runs: generation counts them.
func (m *Metrics) Changes(generation func() uint64, snapshot func() *route.Snapshot) {
	m.reloads = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "weir_config_reloads_total", Help: "Readings of the configuration file, lists of engines and names with several addresses, by their result: applied, unchanged, failed (what was read before stays)."}, []string{"result"})
	for _, result := range []string{Applied, Unchanged, Failed} {
		m.reloads.WithLabelValues(result)
	}
	m.reloaded = prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_config_last_success_time_seconds", Help: "When the configuration was last read without an error, at the start or since, as Unix time."})
	m.reloaded.SetToCurrentTime()
	m.registry.MustRegister(m.reloads, m.reloaded,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_config_generation", Help: "Changes of engines and models since the start, by the configuration or over the admin listener."}, func() float64 { return float64(generation()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "weir_engines_leaving", Help: "Engines that were removed and have requests left."}, func() float64 { return float64(len(snapshot().Leaving)) }))
}

// Reloaded counts a reading of the configuration.
func (m *Metrics) Reloaded(result string, now time.Time) {
	m.reloads.WithLabelValues(result).Inc()
	if result != Failed {
		m.reloaded.Set(float64(now.UnixMilli()) / 1e3)
	}
}

// Forget drops the series of an engine that is no more, so that those of engines that come and
// go do not add up.
func (m *Metrics) Forget(engine string) {
	m.byEngine.forget(engine)
	of := prometheus.Labels{"engine": engine}
	for _, v := range []*prometheus.CounterVec{m.retries, m.twice, m.faults, m.flaws, m.panics, m.relayed, m.odd} {
		v.DeletePartialMatch(of)
	}
	m.acks.forget("engine", engine)
	m.hops.forget("engine", engine)
}
