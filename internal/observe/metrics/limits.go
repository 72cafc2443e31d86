package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// SharedLimits has the figures of the limits that several gateways count together.
type SharedLimits struct {
	Up        bool
	Gateways  int64 // that count together
	ByStore   uint64
	Alone     uint64 // requests that were decided without the store
	Late      uint64 // those of them that have waited for it
	Exchanges uint64 // with the store
	Failed    uint64
	// Exchanging is the time of all exchanges.
	Exchanging time.Duration
}

var (
	limitsUp        = prometheus.NewDesc("weir_limits_store_up", "1 if the store of --limits answers in time, so that gateways count limits together.", nil, nil)
	limitsGateways  = prometheus.NewDesc("weir_limits_gateways", "Gateways that count limits together, as the store of --limits last reported.", nil, nil)
	limitsDecisions = prometheus.NewDesc("weir_limits_decisions_total", "Requests of callers with limits, by what has decided about them: the store of --limits, or this gateway alone as --limits-outage says.", []string{"by"}, nil)
	limitsLate      = prometheus.NewDesc("weir_limits_late_total", "Requests that have waited for the store of --limits in vain.", nil, nil)
	limitsExchanges = prometheus.NewDesc("weir_limits_exchange_seconds", "Exchanges with the store of --limits, and their time.", nil, nil)
	limitsFailed    = prometheus.NewDesc("weir_limits_failures_total", "Exchanges and connections with the store of --limits that have failed.", nil, nil)
)

// sharedLimitsOf collects the figures of shared limits.
type sharedLimitsOf struct{ figures func() SharedLimits }

// SharedLimits exports the figures of the limits that several gateways count together.
func (m *Metrics) SharedLimits(figures func() SharedLimits) {
	m.registry.MustRegister(sharedLimitsOf{figures})
}

// Describe implements prometheus.Collector.
func (s sharedLimitsOf) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{limitsUp, limitsGateways, limitsDecisions, limitsLate, limitsExchanges, limitsFailed} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s sharedLimitsOf) Collect(to chan<- prometheus.Metric) {
	of := s.figures()
	up := 0.0
	if of.Up {
		up = 1
	}
	gauge := func(d *prometheus.Desc, v float64) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(limitsUp, up)
	gauge(limitsGateways, float64(of.Gateways))
	count(limitsDecisions, of.ByStore, "store")
	count(limitsDecisions, of.Alone, "gateway")
	count(limitsLate, of.Late)
	count(limitsFailed, of.Failed)
	to <- prometheus.MustNewConstSummary(limitsExchanges, of.Exchanges, of.Exchanging.Seconds(), nil)
}
