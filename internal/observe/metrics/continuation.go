package metrics

import "github.com/prometheus/client_golang/prometheus"

// continuations are the streams that go on at another engine when theirs has failed.
type continuations struct {
	done, refused     *prometheus.CounterVec
	underWay, waiting prometheus.Gauge
	gap               *latency
}

func newContinuations(r prometheus.Registerer, counter func(name, help string, labels ...string) *prometheus.CounterVec, histogram func(name, help string, labels ...string) *latencies) (c continuations) {
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
		r.MustRegister(g)
		return g
	}
	c.done = counter("weir_continuations_total", "Streams that were given to another engine behind the tokens that their clients had, by the engine that failed and why: lost, silence (of the stream, or of an engine that is out), integrity.", "engine", "why")
	c.refused = counter("weir_continuations_refused_total", "Streams that ended with an error although their clients had a part of them, by model and why they could not go on at another engine (docs/continuation.md).", "model", "why")
	c.underWay = gauge("weir_continuations_under_way", "Streams that have their turn to go on at another engine and have had nothing from it yet (--continuations).")
	c.waiting = gauge("weir_continuations_waiting", "Streams that wait for their turn to go on at another engine.")
	c.gap = histogram("weir_continuation_gap_seconds", "From the failure of a stream's engine to the next token, which another engine gave.").with()
	return c
}

// Continued counts a stream that is given to another engine.
func (m *Metrics) Continued(engine, why string) {
	m.continuations.done.WithLabelValues(engine, why).Inc()
}

// ContinuationRefused counts a stream that could not go on.
func (m *Metrics) ContinuationRefused(model, why string) {
	m.continuations.refused.WithLabelValues(m.models.label(model), why).Inc()
}

// ContinuationsUnderWay and ContinuationsWaiting count continuations that run and that
// wait.
func (m *Metrics) ContinuationsUnderWay(n int) { m.continuations.underWay.Add(float64(n)) }

// ContinuationsWaiting is described with ContinuationsUnderWay.
func (m *Metrics) ContinuationsWaiting(n int) { m.continuations.waiting.Add(float64(n)) }

// ContinuationGap notes for how long a stream had nothing, in nanoseconds.
func (m *Metrics) ContinuationGap(ns int64) { m.continuations.gap.observe(ns) }
