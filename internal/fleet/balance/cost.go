package balance

import (
	"math"

	"weir/internal/fleet/cost"
)

// Cost chooses the candidate with the least cost: the request's own delay plus the
// delay of others.
type Cost struct{}

// Name implements Policy.
func (*Cost) Name() string { return "cost" }

// Pick implements Policy.
func (*Cost) Pick(q *Request, candidates []Candidate, d *Decision) int {
	return d.leastCost(q, candidates, nil)
}

// alike is the share by which costs may differ that are alike.
const alike = 0.05

// leastCost chooses by cost. last is where the request's session was, nil if nowhere.
func (d *Decision) leastCost(q *Request, candidates []Candidate, last *stay) int {
	d.Chosen, d.Of, d.Why, d.N = -1, len(candidates), NoneLeft, 0
	n, fastest := d.price(q, candidates, last)
	if n == 0 {
		return -1
	}
	d.look(q, candidates, last)
	d.settle(q, candidates, last, n, fastest)
	d.include(q, candidates, last)
	return d.Chosen
}

// Settle chooses by the given costs, which are not negative. fastest is the shortest step of any
// candidate. A candidate of infinite cost cannot be chosen; if there is no other, Settle returns
// -1.
func (d *Decision) Settle(q *Request, candidates []Candidate, costs []float64, fastest float64) int {
	d.Chosen, d.Of, d.Why, d.N = -1, len(candidates), NoneLeft, 0
	d.grow(len(candidates))
	copy(d.costs, costs)
	n := 0
	for i, total := range costs {
		d.fresh[i] = int32(q.work(&candidates[i], nil).New)
		if !math.IsInf(total, 0) {
			n++
		}
		d.best(i, total)
	}
	if n == 0 {
		return -1
	}
	d.look(q, candidates, nil)
	d.settle(q, candidates, nil, n, fastest)
	d.include(q, candidates, nil)
	return d.Chosen
}

// grow makes place for n candidates.
func (d *Decision) grow(n int) {
	if cap(d.costs) < n {
		d.costs, d.fresh = make([]float64, n), make([]int32, n)
	}
	d.costs, d.fresh = d.costs[:n], d.fresh[:n]
}

// settle chooses among the n candidates that have a cost, of which the best are known.
func (d *Decision) settle(q *Request, candidates []Candidate, last *stay, n int, fastest float64) {
	d.Why, d.Chosen = Only, d.Best[0].Index
	if n == 1 {
		return
	}
	d.Why = LeastCost
	// The decoding on the fastest engine is in every cost alike, and says nothing of it.
	least, at := d.costs[d.Chosen], candidates[0].Rank.Model().Moment(q.Now)
	own := max(least-min(q.Output, at.Horizon)*fastest, 0)
	bound := least + max(slack, alike*own, min(candidates[d.Chosen].Rank.Error(d.Best[0].Work), own))
	// Work that is done twice is lost, so the candidate with the least to compute comes first.
	fresh, share, ties := q.Length, math.Inf(1), 0
	x, block := q.Random, max(q.BlockTokens, 1)
	for i, total := range d.costs {
		if !(math.Abs(total) <= bound) {
			continue
		}
		if total < 0 {
			if total, _ = d.exactly(q, &candidates[i], &at, last, i); !(total <= bound) {
				continue
			}
		}
		n := int(d.fresh[i])
		if n >= fresh+block {
			continue
		}
		used := candidates[i].used()
		if q.Answers > 0 && !candidates[i].Rank.Fits(q.Now, q.Answers) {
			used += full
		}
		switch {
		case n <= fresh-block || used < share:
			fresh, share, ties = n, used, 1
			d.Chosen = i
		case used == share:
			ties++
			if x = draw(x); x%uint64(ties) == 0 {
				d.Chosen = i
			}
		}
	}
	switch {
	case ties > 1:
		d.Why = Chance
	case d.Chosen != d.Best[0].Index:
		d.Why = LeastKV
	}
}

// full is more than any share of KV, so that of those that would compute as much the ones
// that have room come first.
const full = 1e12

// used is the share of the candidate's KV in use by requests.
func (c *Candidate) used() float64 {
	if c.KV <= 0 {
		return float64(c.Rank.Held())
	}
	return float64(c.Rank.Held()) / float64(c.KV)
}

// price computes the cost of the request at each candidate, and returns the number of candidates
// and the shortest step. For a candidate that costs more than the best ones, it only stores a
// lower bound of the cost, as a negative number. If the bound equals the cost, as on a thousand
// idle ranks, the cost is not computed again.
func (d *Decision) price(q *Request, candidates []Candidate, last *stay) (n int, fastest float64) {
	d.grow(len(candidates))
	if len(candidates) == 0 {
		return 0, 0
	}
	if q.Halves != nil {
		return d.priceHalves(q, candidates, last)
	}
	at := candidates[0].Rank.Model().Moment(q.Now)
	fastest = d.bounds(q, candidates, &at, last)
	worst := math.Inf(1)
	for i, bound := range d.costs {
		if -bound > worst {
			continue
		}
		c := &candidates[i]
		if q.retry() && q.tried(c) {
			d.costs[i] = math.Inf(1)
			n--
			continue
		}
		total := -bound * (1 / inexact)
		if fresh, same := q.least(c); same && bound < 0 && !q.Claims && c.Rank.Told(float64(fresh)) {
			d.costs[i], d.fresh[i] = total, int32(fresh)
		} else {
			var step float64
			if total, step = d.exactly(q, c, &at, last, i); step < fastest { // min would look for NaN
				fastest = step
			}
		}
		if total < worst {
			worst = d.best(i, total)
		}
	}
	return n + len(candidates), fastest
}

// bounds stores a lower bound of each candidate's cost, as a negative number, or 0 if none is
// known, and returns the shortest step of the others. For most of a thousand candidates a
// decision does nothing else, so it calls no function and reads one cache line of each rank.
func (d *Decision) bounds(q *Request, candidates []Candidate, at *cost.Moment, last *stay) (fastest float64) {
	fastest = math.Inf(1)
	if q.retry() { // no bound and no step of those that were tried may count
		clear(d.costs)
		return fastest
	}
	length, later, outputs := float64(q.Length), 1+at.Later, min(q.Output, at.Horizon)
	costs, matches := d.costs[:len(candidates)], q.Matches
	for i := range candidates {
		c := &candidates[i]
		crowd, ok := c.Rank.Plain(at.Now)
		if !ok {
			costs[i] = 0
			continue
		}
		fresh := length
		if int(c.Cache) < len(matches) {
			if soon := matches[c.Cache].Soon; soon > 0 {
				fresh = float64(max(q.Length-int(soon)*q.BlockTokens, 1))
			}
		}
		step, drag := c.Rank.Steps()
		bound := c.Rank.Busy(at.Now) + c.Rank.Fill(fresh, fresh*(length-fresh/2))*(crowd+later) + c.Rank.Mixed() + outputs*(step+drag)
		costs[i] = bound * -inexact
		if step < fastest { // min would look for NaN
			fastest = step
		}
	}
	if last != nil && last.tokens > 0 {
		for i := range candidates {
			if candidates[i].Cache == last.cache {
				costs[i] = 0
			}
		}
	}
	return fastest
}

// least is the fewest tokens that the candidate may have to compute, with which it is bounded, and
// whether it is sure that it has to compute no more.
func (q *Request) least(c *Candidate) (fresh int, same bool) {
	if int(c.Cache) >= len(q.Matches) {
		return q.Length, true
	}
	m := &q.Matches[c.Cache]
	if m.Soon <= 0 {
		return q.Length, true
	}
	return max(q.Length-int(m.Soon)*q.BlockTokens, 1), m.Soon == m.Resident
}

// inexact is for what rounding may add to a bound.
const inexact = 1 - 1e-9

// exactly finds what the request costs at the candidate in place i, and its step.
func (d *Decision) exactly(q *Request, c *Candidate, at *cost.Moment, last *stay, i int) (total, step float64) {
	w := cost.Work{Length: q.Length, New: q.Length, Output: q.Output}
	if int(c.Cache) < len(q.Matches) {
		if m := &q.Matches[c.Cache]; m.Soon > 0 {
			w.New = q.fresh(m, c.Rank)
		}
	}
	if last != nil {
		w.New = min(w.New, q.Length-last.known(q, c))
	}
	total, step = c.Rank.Total(at, &w)
	if q.Claims {
		total += q.claimed(c)
	}
	d.costs[i], d.fresh[i] = total, int32(w.New)
	return total, step
}

// claimed is how long the candidate will be kept by requests that wait for it and go there
// before this one.
func (q *Request) claimed(c *Candidate) float64 {
	if c.Rank == q.First {
		return 0
	}
	return c.Rank.Claimed()
}

// with is what the request costs at the candidate, if its session was last there.
func (q *Request) with(c *Candidate, last *stay) (cost.Work, cost.Estimate) {
	w := q.work(c, last)
	e := q.estimate(c, &w)
	if q.Claims {
		claimed := q.claimed(c)
		e.Wait, e.Total = e.Wait+claimed, e.Total+claimed
	}
	return w, e
}

// work returns the request's work at the candidate, given whether its session was last
// there. If the candidate can do it in several ways, it is the cheaper one.
func (q *Request) work(c *Candidate, last *stay) cost.Work {
	w := q.whole(c)
	if last != nil {
		w.New = min(w.New, q.Length-last.known(q, c))
	}
	if q.Halves == nil {
		return w
	}
	half := w
	if q.Halves.of(&half, c); half.Part != cost.DecodePart || c.Does == Decode || q.estimate(c, &half).Total < q.estimate(c, &w).Total {
		return half
	}
	return w
}

// priceHalves is price where the candidates may have half of the request.
func (d *Decision) priceHalves(q *Request, candidates []Candidate, last *stay) (n int, fastest float64) {
	fastest = math.Inf(1)
	for i := range candidates {
		c := &candidates[i]
		if q.tried(c) {
			d.costs[i] = math.Inf(1)
			continue
		}
		w, e := q.with(c, last)
		n++
		d.costs[i], d.fresh[i], fastest = e.Total, int32(w.New), min(fastest, e.StepTime)
		d.best(i, e.Total)
	}
	return n, fastest
}

// best inserts a candidate of this cost among the cheapest ones, if it is one of them, and
// returns the cost below which a candidate is one of them.
func (d *Decision) best(i int, total float64) (worst float64) {
	if d.N < len(d.Best) || total < d.costs[d.Best[d.N-1].Index] {
		at := min(d.N, len(d.Best)-1)
		for ; at > 0 && total < d.costs[d.Best[at-1].Index]; at-- {
			d.Best[at].Index = d.Best[at-1].Index
		}
		d.Best[at].Index = i
		d.N = min(d.N+1, len(d.Best))
	}
	if d.N < len(d.Best) {
		return math.Inf(1)
	}
	return d.costs[d.Best[d.N-1].Index]
}

// look finds out all that is known of the best.
func (d *Decision) look(q *Request, candidates []Candidate, last *stay) {
	for i := range d.Best[:d.N] {
		o := &d.Best[i]
		o.Work, o.Estimate = q.with(&candidates[o.Index], last)
	}
}

// include puts the choice among the best.
func (d *Decision) include(q *Request, candidates []Candidate, last *stay) {
	for i := range d.Best[:d.N] {
		if d.Best[i].Index == d.Chosen {
			return
		}
	}
	o := &d.Best[d.N-1]
	o.Index = d.Chosen
	o.Work, o.Estimate = q.with(&candidates[d.Chosen], last)
}

// Choice returns the chosen candidate, with its predicted cost.
func (d *Decision) Choice() *Option {
	for i := range d.Best[:d.N] {
		if d.Best[i].Index == d.Chosen {
			return &d.Best[i]
		}
	}
	return nil
}
