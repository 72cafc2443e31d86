package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/engine"
	"weir/internal/health"
	"weir/internal/route"
	"weir/internal/trace"
)

// Fleet reports the engines of the snapshot at scrape time: their readiness, and what
// their adapters count.
func (m *Metrics) Fleet(snapshot func() *route.Snapshot) {
	m.registry.MustRegister(
		&readiness{snapshot, prometheus.NewDesc("weir_engine_ready", "1 when requests can be handed to the engine.", []string{"engine", "kind"}, nil)},
		&healths{snapshot,
			prometheus.NewDesc("weir_engine_state", "1 for the state of the engine's health: up, soft, suspect, probing, draining or down.", []string{"engine", "state"}, nil),
			prometheus.NewDesc("weir_engine_silence_seconds", "For how long the engine has owed progress to requests that it has.", []string{"engine"}, nil)},
		&retries{snapshot, prometheus.NewDesc("weir_retry_budget", "How many requests of the model could go to another engine now after a failure; negative while some wait for their turn.", []string{"model"}, nil)},
		&adapters{snapshot}, newBooks(snapshot), newKVEvents(snapshot))
}

// Lateness reports for how long weir itself was late, as total says.
func (m *Metrics) Lateness(total func() time.Duration) {
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "weir_own_lateness_seconds_total",
		Help: "For how long weir itself stood still or was late to look. No engine owes progress for it.",
	}, func() float64 { return total().Seconds() }))
}

type readiness struct {
	snapshot func() *route.Snapshot
	ready    *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *readiness) Describe(ch chan<- *prometheus.Desc) { ch <- c.ready }

// Collect implements prometheus.Collector.
func (c *readiness) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.snapshot().Engines {
		v := 0.0
		if e.Ready {
			v = 1
		}
		ch <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, v, e.Name, e.Kind)
	}
}

// healths reports what is thought of engines that are connected.
type healths struct {
	snapshot       func() *route.Snapshot
	state, silence *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *healths) Describe(ch chan<- *prometheus.Desc) { ch <- c.state; ch <- c.silence }

// Collect implements prometheus.Collector.
func (c *healths) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.snapshot().Engines {
		if !e.Ready || e.Health == nil {
			continue
		}
		v := e.Health.View()
		for s := range health.NumStates {
			is := 0.0
			if s == v.State {
				is = 1
			}
			ch <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, is, e.Name, s.String())
		}
		ch <- prometheus.MustNewConstMetric(c.silence, prometheus.GaugeValue, v.Silence.Seconds(), e.Name)
	}
}

// retries reports what is left of models' budgets.
type retries struct {
	snapshot func() *route.Snapshot
	left     *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *retries) Describe(ch chan<- *prometheus.Desc) { ch <- c.left }

// Collect implements prometheus.Collector. An alias is no model of its own.
func (c *retries) Collect(ch chan<- prometheus.Metric) {
	now := trace.Now()
	for name, m := range c.snapshot().Models {
		if name == m.Name && m.Retries != nil {
			ch <- prometheus.MustNewConstMetric(c.left, prometheus.GaugeValue, m.Retries.Left(now), name)
		}
	}
}

// adapters reports what the engines' adapters count. It describes nothing, because
// which adapters there are may show only while weir runs.
type adapters struct{ snapshot func() *route.Snapshot }

// Describe implements prometheus.Collector.
func (c *adapters) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector. The engine's name is the first label.
func (c *adapters) Collect(ch chan<- prometheus.Metric) {
	descs := map[string]*prometheus.Desc{} // by the metric's name
	for _, e := range c.snapshot().Engines {
		if e.Metrics == nil {
			continue
		}
		for _, m := range e.Metrics() {
			labels, values := []string{"engine"}, []string{e.Name}
			if m.Label != "" {
				labels, values = append(labels, m.Label), append(values, m.LabelValue)
			}
			desc := descs[m.Name]
			if desc == nil {
				desc = prometheus.NewDesc(m.Name, m.Help, labels, nil)
				descs[m.Name] = desc
			}
			ch <- constMetric(desc, &m, values)
		}
	}
}

func constMetric(desc *prometheus.Desc, m *engine.Metric, labels []string) prometheus.Metric {
	kind := prometheus.GaugeValue
	if m.Counter {
		kind = prometheus.CounterValue
	}
	c, err := prometheus.NewConstMetric(desc, kind, m.Value, labels...)
	if err != nil {
		return prometheus.NewInvalidMetric(desc, err)
	}
	return c
}
