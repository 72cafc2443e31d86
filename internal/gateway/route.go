package gateway

import (
	"weir/internal/route"
	"weir/internal/trace"
)

// route is stage 6: it picks the engine from the snapshot, and books the request
// there at once, so that the next pick knows of it.
func (x *exchange) route() error {
	now := x.enter(trace.Route)
	c, _ := x.g.choices.Get().(*route.Choice)
	if c == nil {
		c = new(route.Choice)
	}
	defer x.g.choices.Put(c)
	output := x.footprint.expected(x.model.Lengths)
	target, ok := x.pick(c, now, &x.footprint, x.g.session(x.response.r.Header), output)
	if !ok {
		return x.noEngine(now)
	}
	x.target = target
	x.rec.Attempts = append(x.rec.Attempts, trace.Attempt{
		Legs: []trace.Leg{{Role: "full", Engine: target.Name, DPRank: target.Number}}, Choice: x.chosen(c),
	})
	if len(x.tried) == 0 {
		x.model.Retries.Requested(now)
	}
	x.book(c, now, &x.request, output)
	x.rec.Routed = trace.Now()
	return nil
}
