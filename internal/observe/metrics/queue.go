package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/fleet/queue"
)

// QueueStats describes the requests that wait for the engines of a model.
type QueueStats struct {
	queue.Stats
	OldestSeconds float64 // how long the one has waited that has waited longest
	DrainSeconds  float64 // until what waits now has left, as predicted
}

// Queue reports at scrape time what waits for engines, by model.
func (m *Metrics) Queue(stats func() map[string]QueueStats) {
	m.sources.queue = stats
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"model"}, labels...), nil)
	}
	m.registry.MustRegister(&waiting{
		models:   &m.models,
		stats:    stats,
		requests: desc("weir_queue_requests", "Requests that wait until an engine has room."),
		bytes:    desc("weir_queue_bytes", "What requests that wait until an engine has room hold: bodies and ids."),
		oldest:   desc("weir_queue_oldest_wait_seconds", "How long the request has waited that waits longest."),
		drain:    desc("weir_queue_drain_seconds", "How long it takes until what waits now has left, by the rate at which requests leave while some wait; 0 where nothing waits or nobody knows."),
		released: desc("weir_queue_released_total", "Requests that were given an engine, those among them that did not wait."),
		held:     desc("weir_queue_held_total", "Requests that have waited until an engine had room."),
		refused:  desc("weir_queue_refused_total", "Requests that were refused rather than kept waiting, by reason: queue_full, queue_bytes, too_late (it could not have been served in its time), timeout (its time was over).", "reason"),
	})
}

// Tenants reports at scrape time the waiting and the served requests of tenants. The queue
// distinguishes a bounded number of tenants.
func (m *Metrics) Tenants(stats func() []queue.Tenant) {
	m.sources.tenants = stats
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"band", "tenant"}, nil)
	}
	m.registry.MustRegister(&tenants{
		stats:    stats,
		requests: desc("weir_tenant_queue_requests", "Requests of a tenant that wait until an engine has room. Beyond 1,000 tenants the rest of a band is \"other\"."),
		seconds:  desc("weir_tenant_queue_seconds", "What those requests are predicted to take of engines: prefill and decode, at the model's median rates."),
		served:   desc("weir_tenant_served_seconds_total", "What a tenant's requests have taken of engines, in the same unit, by which turns are given."),
		refused:  desc("weir_tenant_refused_total", "Requests of a tenant that were refused rather than kept waiting, put out for others, or have waited too long."),
	})
}

type tenants struct {
	stats                              func() []queue.Tenant
	requests, seconds, served, refused *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *tenants) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.requests, c.seconds, c.served, c.refused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *tenants) Collect(ch chan<- prometheus.Metric) {
	for _, t := range c.stats() {
		metric := func(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
			ch <- prometheus.MustNewConstMetric(d, kind, v, strings.ToValidUTF8(t.Band, "?"), strings.ToValidUTF8(t.Name, "?"))
		}
		metric(c.requests, prometheus.GaugeValue, float64(t.Waiting))
		metric(c.seconds, prometheus.GaugeValue, t.WaitingMS/1e3)
		metric(c.served, prometheus.CounterValue, t.ServedMS/1e3)
		metric(c.refused, prometheus.CounterValue, float64(t.Refused))
	}
}

type waiting struct {
	models                                                  *names
	stats                                                   func() map[string]QueueStats
	requests, bytes, oldest, drain, released, held, refused *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *waiting) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.requests, c.bytes, c.oldest, c.drain, c.released, c.held, c.refused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *waiting) Collect(ch chan<- prometheus.Metric) {
	of := map[string]QueueStats{} // by label
	for model, s := range c.stats() {
		label := c.models.label(model)
		sum := of[label]
		sum.Waiting, sum.Bytes, sum.Released, sum.Held = sum.Waiting+s.Waiting, sum.Bytes+s.Bytes, sum.Released+s.Released, sum.Held+s.Held
		sum.OldestSeconds, sum.DrainSeconds = max(sum.OldestSeconds, s.OldestSeconds), max(sum.DrainSeconds, s.DrainSeconds)
		for why, n := range s.Refused {
			sum.Refused[why] += n
		}
		of[label] = sum
	}
	for model, s := range of {
		gauge := func(d *prometheus.Desc, v float64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, model)
		}
		counter := func(d *prometheus.Desc, n int64, more ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), append([]string{model}, more...)...)
		}
		gauge(c.requests, float64(s.Waiting))
		gauge(c.bytes, float64(s.Bytes))
		gauge(c.oldest, s.OldestSeconds)
		gauge(c.drain, s.DrainSeconds)
		counter(c.released, s.Released)
		counter(c.held, s.Held)
		for _, why := range queue.Reasons() {
			counter(c.refused, s.Refused[why], why.String())
		}
	}
}
