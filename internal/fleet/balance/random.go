package balance

// Random draws one of the candidates.
type Random struct{}

// Name implements Policy.
func (Random) Name() string { return "random" }

// Pick implements Policy.
func (Random) Pick(q *Request, candidates []Candidate, d *Decision) int {
	n := q.left(candidates)
	if n == 0 {
		return d.Note(q, candidates, -1, NoneLeft)
	}
	return d.Note(q, candidates, q.nth(candidates, below(q.Random, n)), Chance)
}
