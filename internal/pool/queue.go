package pool

import "container/heap"

// job is one call of Run.
type job struct {
	fn    func(yield func())
	cost  int
	order int64 // the smallest goes first
	index int   // in its heap; -1 once it has left
	small bool
	times Times
	done  chan struct{}
	// failed is what the job panicked with.
	failed *failure
}

// patience is how long a job waits in turn, for each unit of its cost: a job
// goes before every later one that arrives more than patience*(difference of
// their costs) after it. At 50 ns of work a unit it is about eight times the
// work itself.
const patience = 400 // nanoseconds

// queue is the order of waiting jobs. It is pure: times come in.
//
// A job's order is its arrival plus patience for its cost. Among jobs that
// arrive together the shortest goes first; a long one ages into its turn, and
// is overtaken by those that arrive within its patience and by no others.
// Small jobs have a heap of their own, because a running large job lets them
// by.
type queue struct {
	small, large jobHeap
	cost         int64 // of all waiting jobs
	smallCost    int64
}

func (q *queue) len() int { return len(q.small) + len(q.large) }

func (q *queue) push(j *job) {
	j.order = j.times.Queued + patience*int64(j.cost)
	heap.Push(q.heapOf(j), j)
	q.count(j, 1)
}

// pop takes the job whose turn it is, or nil.
func (q *queue) pop() *job {
	switch {
	case q.len() == 0:
		return nil
	case len(q.large) == 0 || len(q.small) > 0 && q.small[0].order <= q.large[0].order:
		return q.popSmall()
	}
	j := heap.Pop(&q.large).(*job)
	q.count(j, -1)
	return j
}

// popSmall takes the small job whose turn it is, or nil.
func (q *queue) popSmall() *job {
	if len(q.small) == 0 {
		return nil
	}
	j := heap.Pop(&q.small).(*job)
	q.count(j, -1)
	return j
}

// remove takes out a waiting job, and says whether it was waiting.
func (q *queue) remove(j *job) bool {
	if j.index < 0 {
		return false
	}
	heap.Remove(q.heapOf(j), j.index)
	q.count(j, -1)
	return true
}

// ahead is the cost of the work that goes before a new job of a size class,
// roughly: small jobs pass large ones.
func (q *queue) ahead(small bool) int64 {
	if small {
		return q.smallCost
	}
	return q.cost
}

// oldest is when the job that has waited longest arrived; 0 with none waiting.
func (q *queue) oldest() int64 {
	var at int64
	for _, h := range []jobHeap{q.small, q.large} {
		for _, j := range h {
			if at == 0 || j.times.Queued < at {
				at = j.times.Queued
			}
		}
	}
	return at
}

func (q *queue) heapOf(j *job) *jobHeap {
	if j.small {
		return &q.small
	}
	return &q.large
}

func (q *queue) count(j *job, sign int64) {
	q.cost += sign * int64(j.cost)
	if j.small {
		q.smallCost += sign * int64(j.cost)
	}
}

// jobHeap implements heap.Interface by order.
type jobHeap []*job

func (h jobHeap) Len() int           { return len(h) }
func (h jobHeap) Less(a, b int) bool { return h[a].order < h[b].order }

func (h jobHeap) Swap(a, b int) {
	h[a], h[b] = h[b], h[a]
	h[a].index, h[b].index = a, b
}

func (h *jobHeap) Push(x any) {
	j := x.(*job)
	j.index = len(*h)
	*h = append(*h, j)
}

func (h *jobHeap) Pop() any {
	old := *h
	n := len(old) - 1
	j := old[n]
	old[n] = nil
	*h = old[:n]
	j.index = -1
	return j
}
