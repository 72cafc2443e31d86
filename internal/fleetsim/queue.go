package fleetsim

import (
	"errors"
	"slices"
	"strings"

	"weir/internal/balance"
	"weir/internal/cost"
	"weir/internal/queue"
)

// Queued is what the name of a policy ends with whose requests wait in the gateway until an
// engine has room for them; those of the others are given to engines at once.
const Queued = "+queue"

// WithQueue gives the name of a policy behind the queue.
func WithQueue(policy string) string { return strings.TrimSuffix(policy, Queued) + Queued }

// holding is a gateway's queue.
type holding struct {
	*queue.Queue
	patient bool  // the policy knows what it costs to wait for an engine that is full
	wake    int64 // when the gateway looks again; 0: at no time
}

// limits are those that engines state of themselves.
func (r *run) limits(e *engine) cost.Limits {
	return cost.Limits{Running: e.o.MaxRunning, Budget: true, Ranks: e.o.DPSize}
}

// Room implements queue.Ranks.
func (g *gateway) Room(q *queue.Request, now int64) bool {
	r := q.Owner.(*request)
	for i := range g.candidates {
		if k := g.candidates[i].Rank; !slices.Contains(r.tried, k) && k.Fits(now, 1) {
			return true
		}
	}
	return false
}

// Takes implements queue.Ranks.
func (g *gateway) Takes(q *queue.Request, rank *cost.Rank) bool {
	r := q.Owner.(*request)
	return !slices.Contains(r.tried, rank) && slices.ContainsFunc(g.candidates, func(c balance.Candidate) bool { return c.Rank == rank })
}

// Frees implements queue.Ranks.
func (g *gateway) Frees(q *queue.Request, now int64) (first int64) {
	r := q.Owner.(*request)
	for i := range g.candidates {
		if k := g.candidates[i].Rank; !slices.Contains(r.tried, k) {
			if at := k.Frees(now); at != 0 && (first == 0 || at < first) {
				first = at
			}
		}
	}
	return first
}

var errTooLate = errors.New("no engine had room in time")

// ask has a request come to the gateway.
func (g *gateway) ask(r *request) {
	if g.held == nil {
		g.choose(r, false)
		return
	}
	now := g.run.now
	r.ticket = queue.Request{Owner: r, Place: r.ticket.Place, Answers: 1}
	if len(r.tried) > 0 {
		r.ticket.Class = 1
	} else if bound := g.run.o.Patience; bound > 0 {
		r.ticket.Expires = now + int64(bound)
	}
	if g.held.Enter(&r.ticket) {
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

// turn has those that wait decide, and ends the wait of those whose time is over.
func (g *gateway) turn() {
	if g.held == nil || g.held.Len() == 0 {
		return
	}
	now := g.run.now
	for q := g.held.Expire(now); q != nil; q = g.held.Expire(now) {
		g.refused(q.Owner.(*request), queue.Expired)
	}
	if len(g.candidates) == 0 {
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

// choose has a request choose an engine, and go there where it may.
func (g *gateway) choose(r *request, queued bool) {
	at := g.pick(r, queued)
	if !queued {
		if at < 0 {
			r.Failed = true
			g.run.over(r)
			return
		}
		g.run.hand(r, g.book(r, at))
		return
	}
	now := g.run.now
	if at < 0 {
		if len(g.candidates) == 0 || !slices.ContainsFunc(g.candidates, func(c balance.Candidate) bool { return !slices.Contains(r.tried, c.Rank) }) {
			g.held.Cancel(&r.ticket, now)
			r.Failed = true
			g.run.over(r)
			return
		}
		g.refused(r, g.held.Wait(&r.ticket, now))
		return
	}
	rank := g.candidates[at].Rank
	switch {
	case g.held.Give(&r.ticket, rank, now):
		g.run.hand(r, g.book(r, at))
	case g.held.patient && g.Room(&r.ticket, now):
		g.refused(r, g.held.Park(&r.ticket, rank, g.decision.Choice().Prefill, now))
	default:
		g.refused(r, g.held.Wait(&r.ticket, now))
	}
}

// roomy gives a policy those candidates alone that have room, while it picks.
func (g *gateway) roomy(pick func() int) int {
	up, candidates := g.up, g.candidates
	var places, some []int
	var fit []balance.Candidate
	for i := range candidates {
		if candidates[i].Rank.Fits(g.run.now, 1) {
			fit, some, places = append(fit, candidates[i]), append(some, up[i]), append(places, i)
		}
	}
	if len(fit) == 0 {
		return -1
	}
	g.candidates, g.up = fit, some
	at := pick()
	g.candidates, g.up = candidates, up
	if at < 0 {
		return -1
	}
	return places[at]
}
