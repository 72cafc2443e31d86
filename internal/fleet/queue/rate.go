package queue

import "math"

// rate is how many requests leave in a second, of the times in which some wait: else it would
// be how many come.
type rate struct {
	n, seconds float64 // with what is long ago counting less
	busy       bool    // something waits
	at         int64   // then up to when seconds counts
}

const (
	// rateHalf is the time, in seconds, after which what was counted counts half, where more
	// than enough was.
	rateHalf = 5.0
	// enough is what is kept however long it takes to count, and fewest is how much must
	// have been counted to say anything.
	enough, fewest = 8.0, 3.0
)

// begin reports that something waits from now on.
func (r *rate) begin(now int64) { r.busy, r.at = true, now }

// end reports that nothing waits any more.
func (r *rate) end(now int64) {
	r.pass(now)
	r.busy = false
}

// count counts a request that leaves.
func (r *rate) count(now int64) {
	r.pass(now)
	r.n++
}

func (r *rate) pass(now int64) {
	if !r.busy || now <= r.at {
		return
	}
	dt := float64(now-r.at) / 1e9
	r.seconds, r.at = r.seconds+dt, now
	if r.n > enough {
		keep := max(math.Exp2(-dt/rateHalf), enough/r.n)
		r.n, r.seconds = r.n*keep, r.seconds*keep
	}
}

// perSecond is 0 where nobody knows.
func (r *rate) perSecond(now int64) float64 {
	s := r.seconds
	if r.busy && now > r.at {
		s += float64(now-r.at) / 1e9
	}
	if r.n < fewest || s <= 0 {
		return 0
	}
	return r.n / s
}
