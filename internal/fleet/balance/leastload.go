package balance

// LeastLoad chooses the candidate with the fewest requests, and among several such
// candidates one at random.
type LeastLoad struct{}

// Name implements Policy.
func (LeastLoad) Name() string { return "least-load" }

// Pick implements Policy.
func (LeastLoad) Pick(q *Request, candidates []Candidate, d *Decision) int {
	best, least, alike := -1, int64(0), 0
	x := q.Random
	for i := range candidates {
		c := &candidates[i]
		if q.retry() && q.tried(c) {
			continue
		}
		switch n := c.Rank.InFlight(); {
		case best < 0 || n < least:
			best, least, alike = i, n, 1
		case n == least:
			alike++
			if x = draw(x); x%uint64(alike) == 0 {
				best = i
			}
		}
	}
	if best < 0 {
		return d.Note(q, candidates, -1, NoneLeft)
	}
	return d.Note(q, candidates, best, FewestRequests)
}
