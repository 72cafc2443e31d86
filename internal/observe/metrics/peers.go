package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Peers has the figures of the other gateways.
type Peers struct {
	Known, Followed int           // gateways
	Oldest          time.Duration // since the gateway was heard that has been silent longest
	Sent, Received  uint64        // updates
	Missed          uint64        // updates that slow followers were not sent
	Prompts         uint64        // of others, placed in the index
	LeftOut         uint64        // prompts that other gateways were not sent
}

var (
	peersKnown   = prometheus.NewDesc("weir_peers", "Other gateways whose addresses are known, by whether they are followed.", []string{"state"}, nil)
	peersOldest  = prometheus.NewDesc("weir_peer_silence_seconds", "Time since the other gateway was heard that has been silent longest, of those that are followed.", nil, nil)
	peersUpdates = prometheus.NewDesc("weir_peer_updates_total", "Updates that were sent to other gateways, received from them, or missed by those that read too slowly.", []string{"direction"}, nil)
	peersPrompts = prometheus.NewDesc("weir_peer_prompts_total", "Prompts that other gateways have sent to engines, and that were placed in this one's index.", nil, nil)
	peersLeftOut = prometheus.NewDesc("weir_peer_prompts_left_out_total", "Prompts that other gateways were not told of, because too many came at once.", nil, nil)
)

// peersOf collects the figures of the other gateways.
type peersOf struct{ figures func() Peers }

// Peers exports the figures of the other gateways.
func (m *Metrics) Peers(figures func() Peers) { m.registry.MustRegister(peersOf{figures}) }

// Describe implements prometheus.Collector.
func (p peersOf) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{peersKnown, peersOldest, peersUpdates, peersPrompts, peersLeftOut} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (p peersOf) Collect(to chan<- prometheus.Metric) {
	of := p.figures()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge(peersKnown, float64(of.Followed), "followed")
	gauge(peersKnown, float64(of.Known-of.Followed), "unreachable")
	gauge(peersOldest, of.Oldest.Seconds())
	count(peersUpdates, of.Sent, "sent")
	count(peersUpdates, of.Received, "received")
	count(peersUpdates, of.Missed, "missed")
	count(peersPrompts, of.Prompts)
	count(peersLeftOut, of.LeftOut)
}
