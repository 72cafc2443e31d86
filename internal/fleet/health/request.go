package health

// Request is one attempt at one rank, for as long as it is unfinished there. The zero
// value is ready for Rank.HandedOver; it belongs to the owner of the attempt.
type Request struct {
	rank     *Rank
	at       int64   // handed over
	work     float64 // predicted
	epoch    int     // of the rank's work that it is counted in
	life     int     // of the rank, between two returns
	started  bool
	links    [2]link // by lane
	progress progress
}

type link struct{ prev, next *Request }

// The lanes of a rank.
const (
	anyToken = iota // requests that are unfinished: some token is owed
	firstOne        // those of them without a first token: one of these is
)

// lane is one kind of progress that a rank owes, and the requests that wait for it,
// the oldest first.
type lane struct {
	of         int
	head, tail *Request
	n          int
	// witnessed is when the oldest request was handed over that was given up since the
	// latest progress, while others went on waiting; 0 is none.
	witnessed int64
	shown     int64   // when there was some last
	gap       float64 // how long it usually takes, in nanoseconds
	work      int64   // that explains a silence, in nanoseconds
}

// gapWeight is the share of the latest gap in the usual one.
const gapWeight = 1.0 / 16

func (l *lane) add(q *Request) {
	q.links[l.of] = link{prev: l.tail}
	if l.tail == nil {
		l.head = q
	} else {
		l.tail.links[l.of].next = q
	}
	l.tail = q
	l.n++
}

// remove removes a request. A request that was given up still counts as a witness of
// the silence.
func (l *lane) remove(q *Request, gaveUp bool) {
	at := q.links[l.of]
	if at.prev == nil {
		l.head = at.next
	} else {
		at.prev.links[l.of].next = at.next
	}
	if at.next == nil {
		l.tail = at.prev
	} else {
		at.next.links[l.of].prev = at.prev
	}
	if l.n--; l.n == 0 {
		l.witnessed = 0
	} else if gaveUp && l.witnessed == 0 {
		l.witnessed = q.at
	}
}

// since is when the silence began: with the latest progress, or with the oldest request
// that has waited for it.
func (l *lane) since() int64 {
	switch {
	case l.head == nil:
		return l.shown
	case l.witnessed > 0:
		return max(l.shown, min(l.witnessed, l.head.at))
	}
	return max(l.shown, l.head.at)
}

// silence is how long the rank has owed progress.
func (l *lane) silence(at int64) int64 {
	if l.head == nil {
		return 0
	}
	return max(at-l.since(), 0)
}

// show records progress.
func (l *lane) show(at int64) {
	if gap := float64(l.silence(at)); gap > 0 {
		if l.gap == 0 {
			l.gap = gap
		}
		l.gap += (gap - l.gap) * gapWeight
	}
	l.shown = max(l.shown, at)
	l.witnessed = 0
}
