package pool

import (
	"container/heap"
	"math/bits"

	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
)

// job is one call of Run.
type job struct {
	fn    func(yield func())
	cost  int
	class int   // of its cost
	order int64 // the smallest goes first
	index int   // in its heap; -1 once it has left
	times Times
	// lent is the time, in nanoseconds, of the jobs that ran while this job yielded.
	// given is the part of it for jobs that are not small.
	lent, given int64
	done        chan struct{}
	who         *tenancy.Caller
	member      *member // whose it is while it waits
	turn        fair.Turn
	// failed is why the job has no result.
	failed *failure
}

// classOf returns the class of a cost: class k holds costs above 1<<(k-1), up to 1<<k.
func classOf(cost int) int { return min(bits.Len(uint(cost-1)), classes-1) }

// classes are enough for the cost of any body.
const classes = 40

// patience is how long a job waits in turn, for each unit of its cost: a job
// goes before every later one that arrives more than patience*(difference of
// their costs) after it. At 50 ns of work a unit it is about eight times the
// work itself.
const patience = 400 // nanoseconds

// queue is the order of waiting jobs. It is pure: times come in.
//
// A job's order is its arrival plus patience for its cost. Among jobs that
// arrive together the shortest goes first; a long one ages into its turn, and
// is overtaken by those that arrive within its patience and by no others. Each
// class of costs has a heap of its own, because a running job lets by only what
// is much shorter than itself.
type queue struct {
	heaps [classes]jobHeap
	costs [classes]int64 // of the jobs in each
	jobs  int
}

func (q *queue) len() int { return q.jobs }

// cost is that of all waiting jobs up to a class.
func (q *queue) cost(upTo int) (sum int64) {
	for _, c := range q.costs[:upTo+1] {
		sum += c
	}
	return sum
}

func (q *queue) push(j *job) {
	j.class = classOf(j.cost)
	j.order = j.times.Queued + patience*int64(j.cost)
	heap.Push(&q.heaps[j.class], j)
	q.count(j, 1)
}

// pop takes the job whose turn it is among those up to a class, or gives nil.
func (q *queue) pop(upTo int) *job {
	best := q.next(upTo)
	if best < 0 {
		return nil
	}
	j := heap.Pop(&q.heaps[best]).(*job)
	q.count(j, -1)
	return j
}

// peek returns the job that pop would take.
func (q *queue) peek(upTo int) *job {
	best := q.next(upTo)
	if best < 0 {
		return nil
	}
	return q.heaps[best][0]
}

// next returns the class of the job whose turn it is among those up to a class, or -1.
func (q *queue) next(upTo int) int {
	best := -1
	if q.jobs == 0 {
		return best
	}
	for k := range q.heaps[:upTo+1] {
		if h := q.heaps[k]; len(h) > 0 && (best < 0 || h[0].order < q.heaps[best][0].order) {
			best = k
		}
	}
	return best
}

// remove takes out a waiting job, and says whether it was waiting.
func (q *queue) remove(j *job) bool {
	if j.index < 0 {
		return false
	}
	heap.Remove(&q.heaps[j.class], j.index)
	q.count(j, -1)
	return true
}

// oldest is when the job that has waited longest arrived; 0 with none waiting.
func (q *queue) oldest() int64 {
	var at int64
	for _, h := range q.heaps {
		for _, j := range h {
			if at == 0 || j.times.Queued < at {
				at = j.times.Queued
			}
		}
	}
	return at
}

func (q *queue) count(j *job, sign int) {
	q.jobs += sign
	q.costs[j.class] += int64(sign) * int64(j.cost)
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
