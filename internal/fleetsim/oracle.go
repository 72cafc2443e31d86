package fleetsim

import (
	"math"

	"weir/internal/balance"
	"weir/internal/cost"
)

// Oracle is the policy that sees what is true: it chooses by the same cost, from the
// engines' own coefficients, caches and remaining work, and the request's own output.
// It is greedy, so that it bounds nothing.
const Oracle = "oracle"

type oracle struct {
	costs []float64
	works []cost.Work
	told  []cost.Estimate
}

func (p *oracle) pick(g *gateway, q *balance.Request, r *request) int {
	n, moment := len(g.candidates), g.model.Moment(g.run.now)
	p.costs, p.works, p.told = p.costs[:0], p.works[:0], p.told[:0]
	fastest := math.Inf(1)
	q.Output = float64(r.turns[r.Turn].Output)
	for at := range n {
		e := g.run.engines[g.up[at]]
		c := e.now()
		wait := e.wait(g.run.now, c)
		resident := e.core.Resident(0, &r.prompt.request)
		if m := q.Matches.Of(g.candidates[at].Cache); m.Ready > g.run.now && float64(m.Ready-g.run.now) <= (wait+1)*1e6 {
			resident = max(resident, int(m.Soon)*q.BlockTokens)
		}
		w := cost.Work{Length: q.Length, New: max(q.Length-resident, 1), Output: q.Output}
		told := c.Estimate(cost.State{
			Wait: wait, Decoders: e.decoding + len(e.unstarted), Horizon: moment.Horizon, Later: moment.Later, Budget: float64(e.o.StepTokens), Shared: len(e.unstarted) > 1,
		}, w)
		if g.tried(q, at) {
			told.Total = math.Inf(1)
		}
		fastest = min(fastest, told.StepTime)
		p.costs, p.works, p.told = append(p.costs, told.Total), append(p.works, w), append(p.told, told)
	}
	at := g.decision.Settle(q, g.candidates, p.costs, fastest)
	if at >= 0 {
		choice := g.decision.Choice()
		choice.Work, choice.Estimate = p.works[at], p.told[at]
	}
	return at
}

// wait is how long it takes from now until the engine has prefilled all that it was
// given, in milliseconds.
func (e *engine) wait(now int64, c cost.Coefficients) float64 {
	wait := 0.0
	if due, busy := e.core.Due(); busy {
		wait = float64(max(due-now, 0)) / 1e6
	}
	var all cost.Amount
	for _, r := range e.unstarted {
		left, admitted := e.core.Left(r.ref)
		if !admitted {
			left = r.work.New
		}
		n := float64(left)
		all.Tokens += n
		all.Pairs += n * (float64(r.Input) - n/2)
	}
	if all.Tokens == 0 {
		return wait
	}
	k := float64(e.decoding)
	all.Steps = math.Ceil(all.Tokens / max(float64(e.o.StepTokens)-k, 1))
	if k > 0 {
		all.Decodes, all.Decoded = all.Steps, all.Steps*k
	}
	return wait + c.Of(all)
}

// tried says whether the candidate has failed the request.
func (g *gateway) tried(q *balance.Request, at int) bool {
	for _, r := range q.Tried {
		if r == g.candidates[at].Rank {
			return true
		}
	}
	return false
}
