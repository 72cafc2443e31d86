package tenancy

import (
	"math"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

// Outage is what happens to a request while the count of several gateways cannot be had in time.
type Outage string

// The outages that an operator can choose.
const (
	OutageLocal  Outage = "local"  // each gateway allows its part of the limits
	OutageAllow  Outage = "allow"  // limits do not hold
	OutageRefuse Outage = "refuse" // callers with limits are refused
)

// Counter counts accounts together with other gateways.
type Counter interface {
	// Ask has the count decide about the questions of a share, and returns when a channel is
	// closed, when its bound of time is over, or at once if the count does not answer now.
	Ask(s *Share, decided <-chan struct{})
	// Alone reports how to decide a request without the count, and among how many gateways.
	Alone() (o Outage, gateways int)
	// Changed asks for an exchange of a share, at once or with others of the next interval.
	Changed(s *Share, now bool)
	// Known reports whether the last answer of the count still holds.
	Known() bool
}

// Share is the part that this gateway has in an account that several gateways count together. The
// lock of the account guards it. It asks no store by itself: a Counter carries its Calls there
// one at a time.
type Share struct {
	Name    string // of the account, in all gateways
	account *Account
	counter Counter

	asked  []*question
	report report
	seen   seen
	parts  int64 // gateways among which the limits are divided without the count
}

// question is a request that waits for the count.
type question struct {
	decided chan struct{} // closed when refusal holds
	closed  bool
	gone    bool // nobody waits for it any more
	refusal Refusal
}

// report is what the count does not know yet.
type report struct {
	took int64 // requests that have begun without it; below 0: places that nobody has taken
	paid int64 // tokens, for the minute's rate
	// total are the tokens of the day of this process, in the sense of seen.epoch. It is not a
	// difference, so that an exchange which fails or is repeated loses and doubles none.
	total int64
	sent  int64 // of total, at the last answer
	shown int64 // requests under way, at the last answer
}

// seen is the last answer of the count.
type seen struct {
	at     time.Time // zero: there was none
	others int64     // requests under way at other gateways
	left   [2]float64
	used   int64 // tokens of the day, of all gateways
	day    int64
	epoch  int64
}

// Call is what a gateway asks and reports of an account in one exchange.
type Call struct {
	Limits                    Limits
	Running, Want, Took, Paid int64
	Day, Epoch, Total         int64

	questions []*question
}

// Answer is the count's answer to a Call.
type Answer struct {
	Granted  int64   // of the requests that were asked for
	Refusal  Refusal // of the others
	Others   int64   // requests under way at other gateways
	Requests float64 // left of the minute
	Tokens   float64 // likewise
	Used     int64   // tokens of the day
	Day      int64
	Epoch    int64 // another one after the count was renewed or lost
	Total    int64 // of this process within Used
}

// Share makes an account part of a count of several gateways, before it is used.
func (a *Account) Share(name string, c Counter) *Share {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.share = &Share{Name: name, account: a, counter: c, parts: 1}
	return a.share
}

// Shared returns the account's part in a count of several gateways; nil if it has none.
func (a *Account) Shared() *Share { return a.share }

// counted reports whether a limit has to be counted among gateways.
func (l *Limits) counted() bool {
	return l.Requests > 0 || l.RequestsPerMinute > 0 || l.TokensPerMinute > 0 || l.TokensPerDay > 0
}

// part is this gateway's part of a limit while it decides without the count. a.mu is held.
func (a *Account) part(limit int64) int64 {
	if a.share == nil || limit == 0 {
		return limit
	}
	return max(1, limit/a.share.parts)
}

// usedOfDay is what is used of the day's budget, as far as this gateway knows: what all had used
// at the count's last answer, and since then as many tokens at each gateway as at this one. a.mu
// is held, and it is the day of the wall clock.
func (a *Account) usedOfDay(day int64) int64 {
	s := a.share
	switch {
	case s == nil:
		return a.used.Load()
	case s.seen.at.IsZero() || day > s.seen.day: // the count has not been heard of this day
		return a.used.Load() * s.parts
	}
	return s.seen.used + s.unsaid()*s.parts
}

// unsaid are the tokens of the day that the count does not know of.
func (s *Share) unsaid() int64 { return s.report.total - s.report.sent + s.account.unpaid.Load() }

// charged notes tokens that the count is to be told of.
func (s *Share) charged(tokens int64) {
	s.report.total += tokens
	s.report.paid += tokens
}

// owed is how much this gateway's part of a minute's rate pays of tokens: what it has. It owes
// nothing, because the part is not what the tokens were allowed from.
func (s *Share) owed(tokens int64, r *rate.Limiter, now time.Time) int64 {
	if s == nil {
		return tokens
	}
	return min(tokens, max(0, int64(r.TokensAt(now))))
}

// reported reports whether the count knows all that there is to know.
func (s *Share) reported() bool {
	return s == nil || len(s.asked) == 0 && s.report.took == 0 && s.report.paid == 0 && s.unsaid() == 0 && s.report.shown == s.account.running
}

// left is called when a request of the account has ended. Where the number of requests is limited,
// another gateway may wait for its place.
func (s *Share) left() { s.counter.Changed(s, s.account.limits.Requests > 0) }

// enter lets a request begin, unless the count forbids it, or this gateway alone where the count
// is not to be had.
func (s *Share) enter(now time.Time) Refusal {
	a := s.account
	a.mu.Lock()
	if !a.limits.counted() {
		a.mu.Unlock()
		return a.enter(now, dayOf(now))
	}
	q := &question{decided: make(chan struct{})}
	s.asked = append(s.asked, q)
	a.mu.Unlock()

	s.counter.Ask(s, q.decided)

	a.mu.Lock()
	if q.closed {
		defer a.mu.Unlock()
		return q.refusal
	}
	q.gone = true
	if i := slices.Index(s.asked, q); i >= 0 { // no Call comes for it while the count is out
		s.asked = slices.Delete(s.asked, i, i+1)
	}
	a.mu.Unlock()
	r := s.alone(now)
	s.counter.Changed(s, false)
	return r
}

// alone decides without the count. It is told of the request afterwards.
func (s *Share) alone(now time.Time) (r Refusal) {
	a := s.account
	outage, gateways := s.counter.Alone()
	a.mu.Lock()
	if parts := int64(max(1, gateways)); parts != s.parts {
		s.parts = parts
		a.setRates(now)
	}
	if outage == OutageAllow {
		a.running++
		s.report.took++
	}
	a.mu.Unlock()
	switch outage {
	case OutageAllow:
		return Refusal{}
	case OutageRefuse:
		return Refusal{Uncounted, 0, time.Second}
	}
	if r = a.enter(now, dayOf(now)); r.Reason == "" {
		a.mu.Lock()
		s.report.took++
		a.mu.Unlock()
	}
	return r
}

// Call returns what to ask and report next, and reports whether there is anything. Its answer, or
// its failure, comes before the next Call. A share is idle if nothing will be there to report
// before the next request. Always asks for a call without anything to report.
func (s *Share) Call(now time.Time, always bool) (c *Call, ok, idle bool) {
	a := s.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.limits.counted() {
		return nil, false, a.running == 0
	}
	if s.reported() && !always {
		return nil, false, a.running == 0
	}
	a.pay(now)
	c = &Call{Limits: a.limits, Running: a.running, Took: s.report.took, Paid: s.report.paid, Day: s.seen.day, Epoch: s.seen.epoch, Total: s.report.total}
	if s.seen.at.IsZero() {
		c.Day = dayOf(now)
	}
	for _, q := range s.asked {
		if !q.gone {
			c.questions = append(c.questions, q)
		}
	}
	c.Want, s.asked = int64(len(c.questions)), nil
	s.report.took, s.report.paid = 0, 0
	return c, true, false
}

// Answered takes the answer to a Call.
func (s *Share) Answered(c *Call, n Answer, now time.Time) {
	a := s.account
	a.mu.Lock()
	defer a.mu.Unlock()
	s.report.total += n.Total - c.Total // what came since the call stays to be reported
	s.report.sent, s.report.shown = n.Total, c.Running+n.Granted
	s.seen = seen{at: now, others: n.Others, left: [2]float64{n.Requests, n.Tokens}, used: n.Used, day: n.Day, epoch: n.Epoch}
	granted := n.Granted
	for _, q := range c.questions {
		switch {
		case q.gone: // it was decided without the count
			continue
		case granted > 0:
			granted--
			a.running++
			if r := a.rates.requests; r != nil {
				r.AllowN(now, 1) // so that an outage begins with what is left of this gateway's part
			}
		default:
			q.refusal = n.Refusal
		}
		q.closed = true
		close(q.decided)
	}
	s.report.took -= granted
}

// Failed takes back the questions of a Call without an answer. What it reported for the minute is
// left out, because the count may have it; what it reported for the day is reported again.
func (s *Share) Failed(c *Call) {
	a := s.account
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, q := range c.questions {
		if !q.gone {
			s.asked = append(s.asked, q)
		}
	}
}

// Lost drops what was used for the minute's rates while the count was not to be had: several
// gateways would report it at once, after a time that has filled the rates once only.
func (s *Share) Lost(now time.Time) {
	a := s.account
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pay(now)
	s.report.took, s.report.paid = 0, 0
}

// known reports whether the last answer shows the account as it is.
func (s *Share) known() bool { return !s.seen.at.IsZero() && s.counter.Known() }

// usage is the account's in all gateways. The lock is held.
func (s *Share) usage(now time.Time) Usage {
	a, l := s.account, &s.account.limits
	u := Usage{Running: s.seen.others + a.running, TokensToday: s.seen.used + s.unsaid(), Day: time.Unix(s.seen.day*86400, 0).UTC().Format(time.DateOnly)}
	if l.Requests > 0 {
		u.Left.Requests = new(l.Requests - u.Running)
	}
	if l.TokensPerDay > 0 {
		u.Left.TokensPerDay = new(l.TokensPerDay - u.TokensToday)
	}
	minutes := now.Sub(s.seen.at).Minutes()
	left := func(had float64, limit, since int64) *int64 {
		if limit == 0 {
			return nil
		}
		return new(int64(math.Floor(min(had+minutes*float64(limit), float64(limit)))) - since)
	}
	u.Left.RequestsPerMinute = left(s.seen.left[0], l.RequestsPerMinute, s.report.took)
	u.Left.TokensPerMinute = left(s.seen.left[1], l.TokensPerMinute, s.report.paid+a.unpaid.Load())
	return u
}
