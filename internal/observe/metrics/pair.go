package metrics

import "weir/internal/trace"

// pairSeries are the histograms of requests that two engines served. A request has up to a
// dozen values for them, so that no series is looked up by its label again.
type pairSeries struct {
	prefill, handover lazy[*latency]
	points            [trace.NumPairPoints]lazy[*latency]
	stages            [trace.NumPairStages]lazy[*latency]
}

func newPairSeries(histogram func(name, help string, labels ...string) *latencies) *pairSeries {
	parts := histogram("weir_pair_seconds", "Parts of requests that two engines served, by the gateway's clock: prefill is from the hand-over to the prefill engine's answer, handover from there to the decode engine's first output.", "part")
	points := histogram("weir_pair_point_seconds", "From the hand-over of a request that two engines served to a point: its halves met (a), the prompt was prefilled (b), its KV transferred (c), it was running at the decode engine (d), and its first_output received (e). Points that nobody tells are left out.", "point")
	stages := histogram("weir_pair_stage_seconds", "Time between the points of weir_pair_point_seconds, by stage, and decode until the end.", "stage")
	s := &pairSeries{}
	s.prefill, s.handover = lazyLatency(parts, "prefill"), lazyLatency(parts, "handover")
	for at := range s.points {
		s.points[at] = lazyLatency(points, trace.PairPoint(at).String())
	}
	for i := range s.stages {
		s.stages[i] = lazyLatency(stages, trace.PairStages[i])
	}
	return s
}

// observed counts a value where there is one. A gateway without pairs has no series, and neither
// has a point that no engine reports.
func observed(s *lazy[*latency], ns int64) {
	if ns >= 0 {
		s.get().observe(ns)
	}
}

// ended counts the parts of a request that a pair has served to the client.
func (s *pairSeries) ended(r *trace.Record) {
	p, ok := r.Pair()
	if !ok {
		return
	}
	observed(&s.prefill, p.Prefill())
	observed(&s.handover, p.Handover())
	for at := range s.points {
		observed(&s.points[at], p.Since(trace.PairPoint(at)))
	}
	for i, ns := range p.Stages() {
		observed(&s.stages[i], ns)
	}
}
