package sim

// queue is a first-in first-out ring of requests.
type queue struct {
	ring []Ref // length is a power of two, or zero
	head int
	len  int
}

func (q *queue) push(r Ref) {
	if q.len == len(q.ring) {
		bigger := make([]Ref, max(16, 2*len(q.ring)))
		for i := range q.len {
			bigger[i] = q.at(i)
		}
		q.ring, q.head = bigger, 0
	}
	q.ring[(q.head+q.len)&(len(q.ring)-1)] = r
	q.len++
}

func (q *queue) at(i int) Ref { return q.ring[(q.head+i)&(len(q.ring)-1)] }

func (q *queue) pop() Ref {
	r := q.ring[q.head]
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.len--
	return r
}

// keep removes what keep says no to, and keeps the order.
func (q *queue) keep(keep func(Ref) bool) {
	n := 0
	for i := range q.len {
		if r := q.at(i); keep(r) {
			q.ring[(q.head+n)&(len(q.ring)-1)] = r
			n++
		}
	}
	q.len = n
}
