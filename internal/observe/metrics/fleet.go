package metrics

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/engine"
	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/route"
	"weir/internal/trace"
)

// Fleet reports the engines of the snapshot at scrape time: their readiness, and what
// their adapters count.
func (m *Metrics) Fleet(snapshot func() *route.Snapshot) {
	m.registry.MustRegister(
		&readiness{snapshot, prometheus.NewDesc("weir_engine_ready", "1 when requests can be handed to the engine.", []string{"engine", "kind"}, nil)},
		newHealths(snapshot), newLoads(snapshot),
		&retries{&m.models, snapshot, prometheus.NewDesc("weir_retry_budget", "How many requests of the model could go to another engine now after a failure; negative while some wait for their turn.", []string{"model"}, nil)},
		&adapters{snapshot}, newBooks(snapshot), newKVEvents(snapshot))
}

// Lateness exports how long weir itself was late in total.
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

// healths exports the health of connected engines, and of their ranks if the wire names
// any.
type healths struct {
	snapshot func() *route.Snapshot
	// Descriptions for engines and for ranks.
	engine, rank healthDescs
	ready, given *prometheus.Desc // of ranks: whether they are there, and what they were handed
	probes, all  *prometheus.Desc // of engines
}

// healthDescs are the metrics of one health.
type healthDescs struct{ state, since, cause, silence *prometheus.Desc }

func newHealths(snapshot func() *route.Snapshot) *healths {
	desc := func(of string, labels ...string) healthDescs {
		prefix := "weir_" + strings.Join(labels, "_")
		desc := func(name, help string, more ...string) *prometheus.Desc {
			return prometheus.NewDesc(prefix+name, help, append(slices.Clone(labels), more...), nil)
		}
		return healthDescs{
			state:   desc("_state", "1 for the state of the health of "+of+": up, soft, suspect, probing, draining or down.", "state"),
			since:   desc("_state_seconds", "For how long "+of+" has been in its state of health."),
			cause:   desc("_cause", "1 for what keeps "+of+" from being up: silence, starts (requests are not begun, while others go on), transport or faults.", "cause"),
			silence: desc("_silence_seconds", "For how long "+of+" has owed progress to requests that it has."),
		}
	}
	return &healths{
		snapshot: snapshot, engine: desc("the engine's best rank", "engine"), rank: desc("the engine's data-parallel rank", "engine", "rank"),
		ready:  prometheus.NewDesc("weir_engine_rank_ready", "1 when requests can be handed to the engine's data-parallel rank.", []string{"engine", "rank"}, nil),
		probes: prometheus.NewDesc("weir_probes_total", "Probes of the engine, none of which is a client's request: page asks whether it is there, fence for a turn of its loop, generation for one token.", []string{"engine", "kind", "result"}, nil),
		all:    prometheus.NewDesc("weir_engine_requests_total", "Attempts that were handed to the engine.", []string{"engine"}, nil),
		given:  prometheus.NewDesc("weir_engine_rank_requests_total", "Attempts that were handed to the engine's data-parallel rank.", []string{"engine", "rank"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *healths) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []healthDescs{c.engine, c.rank} {
		ch <- d.state
		ch <- d.since
		ch <- d.cause
		ch <- d.silence
	}
	ch <- c.ready
	ch <- c.given
	ch <- c.probes
	ch <- c.all
}

// Collect implements prometheus.Collector.
func (c *healths) Collect(ch chan<- prometheus.Metric) {
	for _, e := range c.snapshot().Engines {
		if v, ok := e.Condition(); ok {
			c.engine.collect(ch, &v, e.Name)
		}
		c.collectProbes(ch, e)
		given := 0.0
		for _, r := range e.Ranks {
			if r.Health != nil {
				given += float64(r.Health.View().Given)
			}
		}
		ch <- prometheus.MustNewConstMetric(c.all, prometheus.CounterValue, given, e.Name)
		for _, r := range e.Ranks {
			if r.Number < 0 {
				continue
			}
			number := strconv.Itoa(r.Number)
			there := 0.0
			if e.Ready && r.There {
				there = 1
			}
			if r.Health != nil {
				v := r.Health.View()
				if there == 1 {
					c.rank.collect(ch, &v, e.Name, number)
				}
				ch <- prometheus.MustNewConstMetric(c.given, prometheus.CounterValue, float64(v.Given), e.Name, number)
			}
			ch <- prometheus.MustNewConstMetric(c.ready, prometheus.GaugeValue, there, e.Name, number)
		}
	}
}

// collectProbes gives how the probes of an engine have ended, of all of its ranks together.
func (c *healths) collectProbes(ch chan<- prometheus.Metric, e *route.Engine) {
	var sum judge.ProbeCounts
	for _, r := range e.Ranks {
		if r.Health == nil {
			continue
		}
		counts := r.Health.Probes()
		for kind := range counts {
			for end, n := range counts[kind] {
				sum[kind][end] += n
			}
		}
	}
	for kind := range judge.NumProbeKinds {
		for end := range judge.NumProbeEnds {
			if n := sum[kind][end]; n > 0 {
				ch <- prometheus.MustNewConstMetric(c.probes, prometheus.CounterValue, float64(n), e.Name, kind.String(), end.String())
			}
		}
	}
}

func (d *healthDescs) collect(ch chan<- prometheus.Metric, v *health.View, labels ...string) {
	gauge := func(d *prometheus.Desc, x float64, more ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, x, append(slices.Clone(labels), more...)...)
	}
	for s := range health.NumStates {
		is := 0.0
		if s == v.State {
			is = 1
		}
		gauge(d.state, is, s.String())
	}
	gauge(d.since, time.Duration(trace.Now()-v.Since).Seconds())
	gauge(d.silence, v.Silence.Seconds())
	if v.Cause != "" {
		gauge(d.cause, 1, v.Cause)
	}
}

// retries exports what is left of models' retry budgets.
type retries struct {
	models   *names
	snapshot func() *route.Snapshot
	left     *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *retries) Describe(ch chan<- *prometheus.Desc) { ch <- c.left }

// Collect implements prometheus.Collector. An alias is no model of its own.
func (c *retries) Collect(ch chan<- prometheus.Metric) {
	now := trace.Now()
	left := map[string]float64{} // by label
	for name, m := range c.snapshot().Models {
		if name == m.Name && m.Retries != nil {
			left[c.models.label(name)] += m.Retries.Left(now)
		}
	}
	for label, n := range left {
		ch <- prometheus.MustNewConstMetric(c.left, prometheus.GaugeValue, n, label)
	}
}

// adapters exports the counts of the engines' adapters. It describes nothing, because
// adapters may appear while weir runs.
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
