package fleetsim

import (
	"math"
	"slices"

	engineapi "weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
)

// Oracle is the policy that knows the true state. It compares the same cost, from the
// engines' own coefficients, caches and remaining work, and the request's actual output. It
// is greedy, so it is not a bound.
const Oracle = "oracle"

type oracle struct {
	costs []float64
	works []cost.Work
	told  []cost.Estimate
}

func (p *oracle) pick(g *gateway, q *balance.Request, candidates []balance.Candidate, d *balance.Decision) int {
	p.costs, p.works, p.told = p.costs[:0], p.works[:0], p.told[:0]
	moment := g.cost.Moment(g.run.now)
	fastest := math.Inf(1)
	r := g.asking
	q.Output = float64(r.turns[r.Turn].Output)
	for at := range candidates {
		e := g.run.engines[g.at[candidates[at].Rank]]
		c := e.now()
		wait := e.wait(g.run.now, c)
		resident := e.core.Resident(0, &r.prompt.request)
		if m := q.Matches.Of(candidates[at].Cache); m.Ready > g.run.now && float64(m.Ready-g.run.now) <= (wait+1)*1e6 {
			resident = max(resident, int(m.Soon)*q.BlockTokens)
		}
		w := cost.Work{Length: q.Length, New: max(q.Length-resident, 1), Output: q.Output}
		s := cost.State{
			Wait: wait, Decoders: e.decoding + len(e.unstarted) + e.coming, Horizon: moment.Horizon, Later: moment.Later, Budget: float64(e.o.StepTokens), Shared: len(e.unstarted) > 1,
		}
		if h := q.Halves; h != nil && h.Asks { // nobody decodes there, and what comes waits for it
			w.Part, w.Output = cost.PrefillPart, 0
			s.Decoders, s.Later = 0, float64(len(e.unstarted))
		}
		told := c.Estimate(s, w)
		if h := q.Halves; h != nil && h.Partner && candidates[at].Does != balance.All {
			half := w
			if g.run.o.Way == engineapi.ByRoom {
				half.New = q.Length
			}
			half.Part, half.After = cost.DecodePart, float32(h.Ready+e.transfer(half.New))
			if also := c.Estimate(s, half); candidates[at].Does == balance.Decode || also.Total+h.Delays < told.Total {
				w, told = half, also
				told.Others, told.Total = told.Others+h.Delays, told.Total+h.Delays
			}
		}
		if tried(q, &candidates[at]) {
			told.Total = math.Inf(1)
		}
		fastest = min(fastest, told.StepTime)
		p.costs, p.works, p.told = append(p.costs, told.Total), append(p.works, w), append(p.told, told)
	}
	at := d.Settle(q, candidates, p.costs, fastest)
	if at >= 0 {
		choice := d.Choice()
		choice.Work, choice.Estimate = p.works[at], p.told[at]
	}
	return at
}

// transfer is how long the KV of n tokens is on its way to the engine, in milliseconds.
func (e *engine) transfer(n int) float64 {
	t := &e.o.Transfer
	ms := t.Latency.Seconds() * 1e3
	if t.Bandwidth > 0 {
		ms += float64(n) * float64(t.BytesPerToken) / t.Bandwidth * 1e3
	}
	return ms
}

// wait is how long it takes from now until the engine has prefilled all that it was
// given, in milliseconds.
func (e *engine) wait(now int64, c cost.Coefficients) float64 {
	wait := 0.0
	if due, busy := e.core.Due(); busy {
		wait = float64(max(due-now, 0)) / 1e6
	}
	var all cost.Amount
	for _, l := range e.unstarted {
		left, admitted := e.core.Left(l.ref)
		if !admitted {
			left = l.fresh
		}
		n := float64(left)
		all.Tokens += n
		all.Pairs += n * (float64(l.of.Input) - n/2)
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

// tried reports whether the candidate has failed the request.
func tried(q *balance.Request, c *balance.Candidate) bool {
	return slices.Contains(q.Tried, c.Rank)
}
