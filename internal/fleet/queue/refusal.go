package queue

import (
	"time"

	"weir/internal/tenancy"
)

// Reason is why a request may not wait, or no longer.
type Reason uint8

// The reasons.
const (
	None    Reason = iota
	Full           // the bound on waiting requests of its model is reached
	Bytes          // the bound on the memory of waiting requests is reached
	TooLate        // it would not leave before it expires
	Expired        // its time is over
	numReasons
)

// String returns the word for metrics and headers.
func (r Reason) String() string {
	return [...]string{"none", "queue_full", "queue_bytes", "too_late", "timeout"}[r]
}

// Reasons are all reasons except None.
func Reasons() []Reason { return []Reason{Full, Bytes, TooLate, Expired} }

// Refuses reports whether a request of a caller for the model would be refused now if it had
// to wait, and the time until the tenant's requests that wait now have left; 0 if unknown. At a
// bound it is refused if no other tenant uses more of its share.
func (q *Queue) Refuses(who *tenancy.Caller, name string, expires, bytes, now int64) (Reason, time.Duration) {
	m := q.models[name]
	drained := time.Duration(0)
	if m != nil && m.Waiting > 0 {
		drained = m.own(who).drained(now)
	}
	switch { // whatever the limits, one may wait
	case expires != 0 && expires <= now:
		return Expired, drained
	case m != nil && m.Waiting > 0 && q.limits.Requests > 0 && m.Waiting >= q.limits.Requests && m.users.Yields(m.users.User(who), 1, 1) == nil:
		return Full, drained
	case q.limits.Bytes > 0 && q.n > 0 && q.bytes+bytes > q.limits.Bytes && q.users.Yields(q.users.User(who), bytes, q.bytes+bytes-q.limits.Bytes) == nil:
		return Bytes, drained
	case expires != 0 && drained > time.Duration(expires-now):
		return TooLate, drained
	}
	return None, drained
}

// own is the account of a tenant that may have none.
func (m *model) own(who *tenancy.Caller) *account {
	if m.clock == nil {
		return nil
	}
	t := m.clock.Find(who)
	if t == nil {
		return nil
	}
	a, _ := t.Of.(*account)
	return a
}

// Early is like Refuses, for a request before it is prepared: it is refused if the requests
// of its tenant before it wait for any rank, so that it would wait too.
func (q *Queue) Early(who *tenancy.Caller, name string, expires, bytes, now int64) (Reason, time.Duration) {
	m := q.models[name]
	if m == nil || m.Waiting == 0 {
		return None, 0
	}
	if a := m.own(who); a == nil || a.undecided == 0 {
		return None, 0
	}
	return q.Refuses(who, name, expires, bytes, now)
}

// Refuse counts a request that its owner refuses for one of these reasons.
func (q *Queue) Refuse(name string, why Reason) { q.model(name).Refused[why]++ }

// Drained returns the time until the requests of a model that wait now have left, by the rate
// at which they leave; 0 if none wait, or if it is unknown.
func (q *Queue) Drained(name string, now int64) time.Duration {
	if m := q.models[name]; m != nil {
		return drained(m.Waiting, &m.drain, now)
	}
	return 0
}

// DrainedFor is Drained for the requests of one tenant, by the rate at which those leave. Where
// that is unknown it is the model's.
func (q *Queue) DrainedFor(who *tenancy.Caller, name string, now int64) time.Duration {
	if m := q.models[name]; m != nil {
		if own := m.own(who).drained(now); own > 0 {
			return own
		}
	}
	return q.Drained(name, now)
}

func (a *account) drained(now int64) time.Duration {
	if a == nil {
		return 0
	}
	return drained(a.waiting, &a.drain, now)
}

func drained(waiting int, r *rate, now int64) time.Duration {
	perSecond := r.perSecond(now)
	if waiting == 0 || perSecond == 0 {
		return 0
	}
	return time.Duration(min(float64(waiting)/perSecond, 1e9) * 1e9)
}
