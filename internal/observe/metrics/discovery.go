package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Discovery has the figures of a source of engines.
type Discovery struct {
	Source        string
	Engines       int
	Current       bool
	Heard         time.Time
	Lists, Events int
}

var (
	discoveryCurrent = prometheus.NewDesc("weir_discovery_current", "1 while a discovery has listed everything and hears of changes; 0 while the engines are those that were last seen.", []string{"source"}, nil)
	discoveryEngines = prometheus.NewDesc("weir_discovery_engines", "Engines that a discovery has found, drained ones among them.", []string{"source"}, nil)
	discoveryHeard   = prometheus.NewDesc("weir_discovery_last_answer_time_seconds", "When the API server last answered, as Unix time; of several kinds of objects, for the one that it is longest ago.", []string{"source"}, nil)
	discoveryLists   = prometheus.NewDesc("weir_discovery_lists_total", "Complete lists of objects that a discovery has read.", []string{"source"}, nil)
	discoveryEvents  = prometheus.NewDesc("weir_discovery_events_total", "Events of watches that a discovery has read, bookmarks among them.", []string{"source"}, nil)
)

// discovering collects the figures of discoveries.
type discovering struct{ figures func() []Discovery }

// Discovery exports the figures of discoveries.
func (m *Metrics) Discovery(figures func() []Discovery) {
	m.registry.MustRegister(discovering{figures})
}

// Describe implements prometheus.Collector.
func (d discovering) Describe(to chan<- *prometheus.Desc) {
	for _, of := range []*prometheus.Desc{discoveryCurrent, discoveryEngines, discoveryHeard, discoveryLists, discoveryEvents} {
		to <- of
	}
}

// Collect implements prometheus.Collector.
func (d discovering) Collect(to chan<- prometheus.Metric) {
	for _, of := range d.figures() {
		current := 0.0
		if of.Current {
			current = 1
		}
		gauge := func(desc *prometheus.Desc, v float64) {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, of.Source)
		}
		gauge(discoveryCurrent, current)
		gauge(discoveryEngines, float64(of.Engines))
		if !of.Heard.IsZero() {
			gauge(discoveryHeard, float64(of.Heard.UnixMilli())/1e3)
		}
		to <- prometheus.MustNewConstMetric(discoveryLists, prometheus.CounterValue, float64(of.Lists), of.Source)
		to <- prometheus.MustNewConstMetric(discoveryEvents, prometheus.CounterValue, float64(of.Events), of.Source)
	}
}
