package balance

import "math"

// Regret is the predicted cost of the request at the candidate that the policy chose, minus
// the cost at the cheapest candidate, in milliseconds.
func (d *Decision) Regret(p Policy, q *Request, candidates []Candidate) float64 {
	if d.Chosen < 0 || len(candidates) < 2 {
		return 0
	}
	if !Patient(p) { // it has looked at no cost
		best, n := d.Best, d.N
		d.N = 0
		d.price(q, candidates, nil)
		d.Best, d.N = best, n
	}
	least := math.Inf(1)
	for _, total := range d.costs {
		if total >= 0 { // the others are bounds
			least = min(least, total)
		}
	}
	chosen := d.costs[d.Chosen]
	if chosen < 0 {
		at := candidates[d.Chosen].Rank.Model().Moment(q.Now)
		chosen, _ = d.exactly(q, &candidates[d.Chosen], &at, nil, d.Chosen)
	}
	return max(chosen-least, 0)
}
