package sim

// queue is the waiting queue of a rank: the highest priority first, and within a priority
// the order of arrival. Retracted requests go before all others of their priority. It is a
// binary heap.
type queue struct {
	heap        []waiting
	next, front int64 // orders to be given out, upwards and downwards
}

type waiting struct {
	priority int
	order    int64
	ref      Ref
}

func (w waiting) before(x waiting) bool {
	return w.priority > x.priority || w.priority == x.priority && w.order < x.order
}

func (q *queue) len() int { return len(q.heap) }

func (q *queue) push(r Ref, priority int) {
	q.next++
	q.add(waiting{priority, q.next, r})
}

// pushFront puts a request before all others of its priority.
func (q *queue) pushFront(r Ref, priority int) {
	q.front--
	q.add(waiting{priority, q.front, r})
}

func (q *queue) add(w waiting) {
	q.heap = append(q.heap, w)
	for i := len(q.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.heap[i].before(q.heap[parent]) {
			break
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// last returns, from the requests that want accepts, the one that is furthest back.
func (q *queue) last(want func(Ref) bool) (at waiting, ok bool) {
	for _, w := range q.heap {
		if want(w.ref) && (!ok || at.before(w)) {
			at, ok = w, true
		}
	}
	return at, ok
}

// peek returns the request at the front.
func (q *queue) peek() Ref { return q.heap[0].ref }

func (q *queue) pop() Ref {
	ref := q.heap[0].ref
	last := len(q.heap) - 1
	q.heap[0] = q.heap[last]
	q.heap = q.heap[:last]
	q.sink(0)
	return ref
}

func (q *queue) sink(i int) {
	for {
		first := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(q.heap); child++ {
			if q.heap[child].before(q.heap[first]) {
				first = child
			}
		}
		if first == i {
			return
		}
		q.heap[i], q.heap[first] = q.heap[first], q.heap[i]
		i = first
	}
}

// keep removes the requests that keep rejects.
func (q *queue) keep(keep func(Ref) bool) {
	kept := q.heap[:0]
	for _, w := range q.heap {
		if keep(w.ref) {
			kept = append(kept, w)
		}
	}
	q.heap = kept
	for i := len(q.heap)/2 - 1; i >= 0; i-- {
		q.sink(i)
	}
}
