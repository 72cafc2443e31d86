package balance

import "sync/atomic"

// RoundRobin chooses the candidates in turn.
type RoundRobin struct{ next atomic.Uint64 }

// Name implements Policy.
func (*RoundRobin) Name() string { return "round-robin" }

// Pick implements Policy.
func (p *RoundRobin) Pick(q *Request, candidates []Candidate, d *Decision) int {
	n := q.left(candidates)
	if n == 0 {
		return d.Note(q, candidates, -1, NoneLeft)
	}
	turn := p.next.Load()
	if !q.retry() && !q.Dry {
		turn = p.next.Add(1) - 1
	}
	return d.Note(q, candidates, q.nth(candidates, int(turn%uint64(n))), Turn)
}
