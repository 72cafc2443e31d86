package queue

import "time"

// Reason is why a request does not wait, or not on.
type Reason uint8

// The reasons.
const (
	None    Reason = iota
	Full           // as many of its model wait as may
	Bytes          // what waits holds as much as it may
	TooLate        // it would not leave within its time
	Expired        // its time is over
	numReasons
)

// String returns the word for metrics and headers.
func (r Reason) String() string {
	return [...]string{"none", "queue_full", "queue_bytes", "too_late", "timeout"}[r]
}

// Reasons are all of them, but for None.
func Reasons() []Reason { return []Reason{Full, Bytes, TooLate, Expired} }

// Refuses reports whether a request for the model would be refused now if it had to wait,
// and the time until the requests that wait now have left; 0 if unknown.
func (q *Queue) Refuses(name string, expires, bytes, now int64) (Reason, time.Duration) {
	m := q.models[name]
	if m == nil || m.Waiting == 0 {
		switch { // whatever the limits, one may wait
		case expires != 0 && expires <= now:
			return Expired, 0
		case q.limits.Bytes > 0 && q.n > 0 && q.bytes+bytes > q.limits.Bytes:
			return Bytes, 0
		}
		return None, 0
	}
	drained := m.drained(now)
	switch {
	case expires != 0 && expires <= now:
		return Expired, drained
	case q.limits.Requests > 0 && m.Waiting >= q.limits.Requests:
		return Full, drained
	case q.limits.Bytes > 0 && q.bytes+bytes > q.limits.Bytes:
		return Bytes, drained
	case expires != 0 && drained > time.Duration(expires-now):
		return TooLate, drained
	}
	return None, drained
}

// Early is like Refuses, for a request before it is prepared: it is refused if the requests
// before it wait for any rank, so that it would wait too.
func (q *Queue) Early(name string, expires, bytes, now int64) (Reason, time.Duration) {
	if m := q.models[name]; m == nil || m.undecided == 0 {
		return None, 0
	}
	return q.Refuses(name, expires, bytes, now)
}

// Refuse counts a request that its owner refuses for a reason of the queue's.
func (q *Queue) Refuse(name string, why Reason) { q.model(name).Refused[why]++ }

// Drained returns the time until the requests of a model that wait now have left, by the rate
// at which they leave; 0 if none wait, or if it is unknown.
func (q *Queue) Drained(name string, now int64) time.Duration {
	if m := q.models[name]; m != nil {
		return m.drained(now)
	}
	return 0
}

func (m *model) drained(now int64) time.Duration {
	perSecond := m.drain.perSecond(now)
	if m.Waiting == 0 || perSecond == 0 {
		return 0
	}
	return time.Duration(min(float64(m.Waiting)/perSecond, 1e9) * 1e9)
}
