package balance

import "math"

// Regret is by how much more the request is predicted to cost where the policy has it go than
// where it would cost least, in milliseconds, of the candidates that it was asked about.
func (d *Decision) Regret(p Policy, q *Request, candidates []Candidate) float64 {
	if d.Chosen < 0 || len(candidates) < 2 {
		return 0
	}
	if !Patient(p) { // it has looked at no cost
		d.price(q, candidates, nil)
	}
	least := math.Inf(1)
	for _, total := range d.costs {
		least = min(least, total)
	}
	return max(d.costs[d.Chosen]-least, 0)
}
