package fleetsim

import (
	"errors"
	"strings"

	"weir/internal/fleet/cost"
	"weir/internal/gateway/place"
	"weir/internal/infer"
	"weir/internal/sim"
)

// Queued is the suffix of a policy whose requests wait in the gateway until an engine has
// room for them. Other policies pass requests to engines at once.
const Queued = "+queue"

// WithQueue returns the name of a policy behind the queue.
func WithQueue(policy string) string { return strings.TrimSuffix(policy, Queued) + Queued }

// limits returns the limits that engines report of themselves.
func (r *run) limits(e *engine) cost.Limits {
	return cost.Limits{Running: e.o.MaxRunning, Strict: r.o.Strict, Budget: true, Ranks: e.o.DPSize}
}

var errTooLate = errors.New("no engine had room in time")

// ask has a request come to the gateway.
func (g *gateway) ask(r *request) {
	if bound := g.run.o.Patience; bound > 0 && r.need.Expires == 0 {
		r.need.Expires = g.run.now + int64(bound)
	}
	_ = r.Refresh()
	g.ends(r, g.line.Ask(&r.ticket, &r.need, place.Ask{Caller: r.caller, Footprint: &r.prompt.footprint, Session: r.session}, r, g.run.now))
	g.turn()
}

// ends ends a request that gets no engine, if there is a reason against it.
func (g *gateway) ends(r *request, err error) {
	if err == nil {
		return
	}
	if g.line.Leave(&r.ticket, g.run.now); infer.AsError(err).Code == infer.CodeUnavailable {
		r.Failed = true
	} else {
		r.Refused = errTooLate
	}
	g.run.over(r)
}

// turn lets waiting requests decide, and ends those whose time is over.
func (g *gateway) turn() {
	for {
		next, waits := g.line.Turn(g.run.now)
		if len(g.woken) == 0 {
			if waits && (g.wake <= g.run.now || next < g.wake) {
				g.wake = next
				g.run.timers.add(g.wake, timer{look: g})
			}
			return
		}
		woken := g.woken
		g.woken = nil
		for _, r := range woken {
			_, err := g.line.Look(&r.ticket, true, g.run.now)
			g.ends(r, err)
		}
	}
}

// Soon implements place.Keeper: each event is followed by a turn.
func (g *gateway) Soon() {}

// Woken implements place.Keeper.
func (g *gateway) Woken(t *place.Ticket) { g.woken = append(g.woken, t.Of.(*request)) }

// Panicked implements place.Keeper.
func (g *gateway) Panicked(_ *place.Ticket, v any) error { panic(v) }

// Routes implements place.Owner.
func (r *request) Routes() (now int64) {
	r.gateway.asking = r
	return r.gateway.run.now
}

// Decides implements place.Owner.
func (r *request) Decides() (now int64, err error) { return r.Routes(), r.Refresh() }

// Waits implements place.Owner.
func (r *request) Waits(bool) {}

// Refresh implements place.Owner.
func (r *request) Refresh() error {
	r.need.Fleet, r.need.Model = r.gateway.fleet, r.gateway.model
	return nil
}

// Given implements place.Owner. It books the request at the engine that was chosen, or at both, and
// hands it over.
func (r *request) Given(p place.Placement) {
	g := r.gateway
	g.choice, r.charged, r.handed = p.Choice, p.Turn, p.At
	kind := sim.Whole
	if p.Partner != nil {
		kind = sim.LegDecode
	}
	r.serves, r.fills = g.enter(r, p.Target, p.Choice.Decision.Choice(), kind), nil
	if p.Partner != nil {
		r.fills = g.enter(r, *p.Partner, p.Choice.Prefill.Choice(), sim.LegPrefill)
	}
	g.run.hand(r)
}
