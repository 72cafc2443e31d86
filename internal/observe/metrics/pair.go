package metrics

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/trace"
)

// pairSeries are the histograms of requests that two engines served. A request has up to a
// dozen values for them, so that no series is looked up by its label again.
type pairSeries struct {
	prefill, handover lazySeries
	points            [trace.NumPairPoints]lazySeries
	stages            [trace.NumPairStages]lazySeries
}

// lazySeries is a series of a histogram that exists from its first value on: a gateway without
// pairs has none, and neither has a point that no engine reports.
type lazySeries struct {
	of    *prometheus.HistogramVec
	label string
	once  sync.Once
	is    prometheus.Observer
}

func (s *lazySeries) observe(ns int64) {
	if ns < 0 {
		return
	}
	s.once.Do(func() { s.is = s.of.WithLabelValues(s.label) })
	s.is.Observe(seconds(ns))
}

func newPairSeries(histogram func(name, help string, labels ...string) *prometheus.HistogramVec) *pairSeries {
	parts := histogram("weir_pair_seconds", "Parts of requests that two engines served, by the gateway's clock: prefill is from the hand-over to the prefill engine's answer, handover from there to the decode engine's first output.", "part")
	points := histogram("weir_pair_point_seconds", "From the hand-over of a request that two engines served to a point: its halves met (a), the prompt was prefilled (b), its KV transferred (c), it was running at the decode engine (d), and its first_output received (e). Points that nobody tells are left out.", "point")
	stages := histogram("weir_pair_stage_seconds", "Time between the points of weir_pair_point_seconds, by stage, and decode until the end.", "stage")
	s := &pairSeries{}
	s.prefill.of, s.prefill.label = parts, "prefill"
	s.handover.of, s.handover.label = parts, "handover"
	for at := range s.points {
		s.points[at].of, s.points[at].label = points, trace.PairPoint(at).String()
	}
	for i := range s.stages {
		s.stages[i].of, s.stages[i].label = stages, trace.PairStages[i]
	}
	return s
}

// ended counts the parts of a request that a pair has served to the client.
func (s *pairSeries) ended(r *trace.Record) {
	p, ok := r.Pair()
	if !ok {
		return
	}
	s.prefill.observe(p.Prefill())
	s.handover.observe(p.Handover())
	for at := range s.points {
		s.points[at].observe(p.Since(trace.PairPoint(at)))
	}
	for i, ns := range p.Stages() {
		s.stages[i].observe(ns)
	}
}
