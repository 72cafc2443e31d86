package judge

import "time"

// compareEvery is the time between two looks at the progress of each stream. It is longer
// than the gaps of streams that advance.
const compareEvery = time.Second

// compare finds the streams that stand still at ranks that go on with others. The lock is
// held. Each look costs a stream two uncontended locks, and its tokens cost nothing. The ranks
// have different ticks, so that nobody waits for the looks at all streams together.
func (j *Judge) compare(now int64) {
	if j.opts.Stall <= 0 {
		return
	}
	j.looks++
	for i, r := range j.ranks {
		if (i+j.looks)%int(compareEvery/j.tick) != 0 || r.open == nil || r.several {
			continue
		}
		for a := r.open; a != nil; a = a.next {
			if a.waiting != nil {
				a.request.Counted(a.waiting.Had())
			}
		}
		r.own.Look(now, r.books != nil && r.books.Roomy())
		for a := r.open; a != nil; a = a.next {
			if d := a.request.Still(); d >= j.opts.Stall {
				a.request.Told()
				a.waiting.Stalled(d)
			}
		}
	}
}
