package gateway

import (
	"weir/internal/trace"
)

// route is stage 6: it picks the engine from the snapshot.
func (x *exchange) route() error {
	x.enter(trace.Route)
	target, ok := x.model.Pick(x.needs, x.tried)
	if !ok {
		return x.noEngine()
	}
	x.target = target
	x.rec.Attempts = append(x.rec.Attempts, trace.Attempt{
		Legs: []trace.Leg{{Role: "full", Engine: target.Name, DPRank: -1}},
	})
	x.rec.Routed = trace.Now()
	return nil
}
