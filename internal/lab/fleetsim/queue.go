package fleetsim

import (
	"errors"
	"strings"

	"weir/internal/fleet/cost"
	"weir/internal/fleet/queue"
	"weir/internal/fleet/route"
	"weir/internal/gateway/place"
)

// Queued is the suffix of a policy whose requests wait in the gateway until an engine has
// room for them. Other policies pass requests to engines at once.
const Queued = "+queue"

// WithQueue returns the name of a policy behind the queue.
func WithQueue(policy string) string { return strings.TrimSuffix(policy, Queued) + Queued }

// holding is a gateway's queue.
type holding struct {
	*queue.Queue
	patient bool  // the policy knows what it costs to wait for an engine that is full
	wake    int64 // when the gateway looks again; 0: at no time
}

// limits returns the limits that engines report of themselves.
func (r *run) limits(e *engine) cost.Limits {
	return cost.Limits{Running: e.o.MaxRunning, Strict: r.o.Strict, Budget: true, Ranks: e.o.DPSize}
}

// Room implements queue.Ranks.
func (g *gateway) Room(q *queue.Request, now int64) bool {
	return g.model.Room(route.Needs{}, q.Owner.(*request).tried, 1, now)
}

// Takes implements queue.Ranks.
func (g *gateway) Takes(q *queue.Request, rank *cost.Rank) bool {
	return g.model.Takes(route.Needs{}, q.Owner.(*request).tried, rank)
}

// Frees implements queue.Ranks.
func (g *gateway) Frees(q *queue.Request, now int64) (first int64) {
	return g.model.Frees(route.Needs{}, q.Owner.(*request).tried, now)
}

var errTooLate = errors.New("no engine had room in time")

// ask has a request come to the gateway.
func (g *gateway) ask(r *request) {
	if g.held == nil {
		g.choose(r, false)
		return
	}
	now := g.run.now
	r.ticket = queue.Request{Owner: r, Caller: r.caller, Place: r.ticket.Place, Due: r.ticket.Due, Answers: 1}
	if len(r.tried) > 0 {
		r.ticket.Class, r.ticket.Again = 1, true
	} else if bound := g.run.o.Patience; bound > 0 {
		r.ticket.Expires = now + int64(bound)
	}
	if g.held.Enter(&r.ticket, now) {
		g.choose(r, true)
	} else {
		g.refused(r, g.held.Wait(&r.ticket, now))
	}
	g.turn()
}

// refused ends a request that does not wait, if there is a reason against it.
func (g *gateway) refused(r *request, why queue.Reason) {
	if why != queue.None {
		r.Refused = errTooLate
		g.run.over(r)
	}
}

// turn lets waiting requests decide, and ends those whose time is over.
func (g *gateway) turn() {
	if g.held == nil || g.held.Len() == 0 {
		return
	}
	now := g.run.now
	for q := g.held.Expire(now); q != nil; q = g.held.Expire(now) {
		g.refused(q.Owner.(*request), queue.Expired)
	}
	if !g.model.Has(route.Needs{}, nil) {
		var all []*request
		g.held.Heads(func(q *queue.Request) bool { all = append(all, q.Owner.(*request)); return true })
		for _, r := range all {
			g.held.Cancel(&r.ticket, now)
			r.Failed = true
			g.run.over(r)
		}
	}
	g.held.Turn(now, func(q *queue.Request) { g.choose(q.Owner.(*request), true) })
	if due := g.held.Due(now); due != 0 && (g.held.wake <= now || due < g.held.wake) {
		g.held.wake = max(due, now+1)
		g.run.timers.add(g.held.wake, timer{look: g})
	}
}

// choose has a request choose an engine, or two, and go there where it may.
func (g *gateway) choose(r *request, queued bool) {
	target, partner, ok := g.pick(r, queued, false)
	// Beside other tenants it waits for a full engine only if its prompt is there.
	if queued && ok && g.held.patient && g.choice.Decision.Choice().Work.New > g.choice.Request.Length/2 && g.held.Contended(&r.ticket) && !target.Books.Rank.Fits(g.run.now, 1) {
		if a, b, other := g.pick(r, queued, true); other {
			target, partner = a, b
		} else {
			target, partner, ok = g.pick(r, queued, false)
		}
	}
	if !queued {
		if !ok {
			r.Failed = true
			g.run.over(r)
			return
		}
		g.book(r, target, partner)
		g.run.hand(r)
		return
	}
	now := g.run.now
	if ok {
		beside := g.choice.Decision.Choice().Decoders
		r.ticket.Cost = r.prompt.footprint.Charge(target.Books.Rank, place.Resident(&g.choice), beside, g.choice.Request.Output)
	}
	full, chosen := &target, &g.choice.Decision
	if partner != nil && !g.held.Open(&r.ticket, partner.Books.Rank, now) {
		full, chosen = partner, &g.choice.Prefill
	}
	switch {
	case !ok && !g.model.Has(route.Needs{}, r.tried):
		g.held.Cancel(&r.ticket, now)
		r.Failed = true
		g.run.over(r)
	case !ok:
		g.refused(r, g.held.Wait(&r.ticket, now))
	case chosen == &g.choice.Decision && g.held.Give(&r.ticket, full.Books.Rank, now):
		g.book(r, target, partner)
		g.run.hand(r)
	case g.held.patient && g.Room(&r.ticket, now):
		g.refused(r, g.held.Park(&r.ticket, full.Books.Rank, chosen.Choice().Prefill, now))
	default:
		g.refused(r, g.held.Wait(&r.ticket, now))
	}
}
