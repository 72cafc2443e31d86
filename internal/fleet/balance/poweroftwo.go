package balance

// PowerOfTwo draws two candidates and chooses the one with fewer requests.
type PowerOfTwo struct{}

// Name implements Policy.
func (PowerOfTwo) Name() string { return "power-of-two" }

// Pick implements Policy.
func (PowerOfTwo) Pick(q *Request, candidates []Candidate, d *Decision) int {
	n := q.left(candidates)
	switch n {
	case 0:
		return d.Note(q, candidates, -1, NoneLeft)
	case 1:
		return d.Note(q, candidates, q.nth(candidates, 0), Only)
	}
	first := below(q.Random, n)
	second := below(draw(q.Random), n-1)
	if second >= first {
		second++
	}
	a, b := q.nth(candidates, first), q.nth(candidates, second)
	if candidates[b].Rank.InFlight() < candidates[a].Rank.InFlight() {
		a = b
	}
	return d.Note(q, candidates, a, FewestRequests)
}
