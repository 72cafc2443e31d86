package judge

import "time"

const (
	// compareEvery is the time between two looks at the progress of each stream. It is longer
	// than the gaps of streams that advance.
	compareEvery = time.Second
	// atOnce is how many streams are visited without giving the lock to those who wait for it,
	// some 0.1 ms.
	atOnce = 512
)

// visiting is a walk over the attempts that are open at a rank. The lock may be given away
// between two steps: an attempt that ends meanwhile is left out (Attempt.leave), and one that
// begins is not visited.
type visiting struct {
	next     *Attempt
	counting bool // the attempts are counted; otherwise they are compared
	under    bool // the walk is under way
}

// compare finds the streams that stand still at ranks that go on with others. Each look costs a
// stream two uncontended locks, and its tokens cost nothing. The ranks have different ticks.
// Requests that begin and end take the same lock, so it is held for a few streams at a time.
func (j *Judge) compare(now int64) {
	if j.opts.Stall <= 0 {
		return
	}
	j.looks++
	var due []*Rank
	j.mu.Lock()
	for i, r := range j.ranks {
		if (i+j.looks)%int(compareEvery/j.tick) != 0 || r.open == nil || r.several {
			continue
		}
		r.visits = visiting{next: r.open, counting: true, under: true}
		due = append(due, r)
	}
	j.mu.Unlock()
	for _, r := range due {
		for r.visit(now, atOnce) {
		}
	}
}

// visit takes the walk some attempts further, and reports whether there are more.
func (r *Rank) visit(now int64, most int) (more bool) {
	j := r.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	v := &r.visits
	roomy := !v.counting && r.books != nil && r.books.Roomy()
	for ; v.next != nil && most > 0; most-- {
		a := v.next
		v.next = a.next
		switch {
		case a.waiting == nil:
		case v.counting:
			a.request.Counted(a.waiting.Had())
		default:
			a.request.Compare(roomy)
			if d := a.request.Still(); d >= j.opts.Stall {
				a.request.Told()
				a.waiting.Stalled(d)
			}
		}
	}
	switch {
	case v.next != nil:
	case v.counting:
		r.own.Look(now)
		*v = visiting{next: r.open, under: true}
	default:
		*v = visiting{}
	}
	return v.under
}
