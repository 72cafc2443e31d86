package tenancy

import (
	"encoding/json"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// Limits are what a key may use; 0 is no limit.
type Limits struct {
	Requests          int64 `json:"max_requests,omitzero"` // at once
	RequestsPerMinute int64 `json:"requests_per_minute,omitzero"`
	TokensPerMinute   int64 `json:"tokens_per_minute,omitzero"` // of prompts and answers
	TokensPerDay      int64 `json:"tokens_per_day,omitzero"`    // likewise, from midnight to midnight UTC
	PromptTokens      int64 `json:"max_prompt_tokens,omitzero"` // of one prompt
	OutputTokens      int64 `json:"max_output_tokens,omitzero"` // of one answer
}

// String writes the limits that there are, as a keys file does.
func (l Limits) String() string {
	if l == (Limits{}) {
		return "none"
	}
	data, err := json.Marshal(l)
	if err != nil {
		return err.Error() // never
	}
	return strings.Trim(strings.ReplaceAll(string(data), `"`, ""), "{}")
}

// The reasons of a Refusal, as callers see them.
const (
	OverRequests          = "key_max_requests"
	OverRequestsPerMinute = "key_requests_per_minute"
	OverTokensPerMinute   = "key_tokens_per_minute"
	OverTokensPerDay      = "key_tokens_per_day"
	Uncounted             = "limits_store" // the count of several gateways is not to be had
)

// Refusal is the reason why a request may not begin now. The zero value is no
// refusal.
type Refusal struct {
	Reason string
	Limit  int64
	After  time.Duration // when to ask again; 0: not known
}

// Account holds the usage of a key. Tokens are charged as they come, and a request that has begun
// is not cut. So a limit on tokens is exceeded by no more than the tokens that the requests under
// way still get. A charge is two additions; Enter books them.
//
// Times are those of time.Now. Rates use its monotonic part, so that a clock that steps changes
// nothing. A day ends by the wall clock, but not sooner than minDay after the last one: a clock
// that is set back and forth over midnight does not renew a budget each time.
type Account struct {
	used   atomic.Int64 // tokens of the day
	unpaid atomic.Int64 // tokens that the rate does not know yet
	salt   atomic.Pointer[salted]

	mu      sync.Mutex
	limits  Limits
	running int64
	rates   rates
	day     int64     // of the wall clock
	renewed time.Time // when it began, if it did within this process's life
	share   *Share    // in a count of several gateways; nil: the account is counted here alone
}

// rates are what a minute has of requests and tokens; one without a limit is nil.
type rates struct {
	requests *rate.Limiter
	tokens   *rate.Limiter
}

// minDay is the least time between two renewals of a budget.
const minDay = 23 * time.Hour

// NewAccount returns the account of a key that has used nothing.
func NewAccount(l Limits, now time.Time) *Account {
	a := &Account{day: dayOf(now)}
	a.Set(l, now)
	return a
}

func dayOf(now time.Time) int64 { return now.Unix() / 86400 }

// Set changes the limits. What was used counts against the new ones.
func (a *Account) Set(l Limits, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.limits = l
	a.setRates(now)
}

// setRates gives the rates this gateway's part of the limits. a.mu is held.
func (a *Account) setRates(now time.Time) {
	a.rates.requests = limiter(a.rates.requests, a.part(a.limits.RequestsPerMinute), now)
	a.rates.tokens = limiter(a.rates.tokens, a.part(a.limits.TokensPerMinute), now)
}

// limiter returns a rate its new limit; one without a limit needs none.
func limiter(r *rate.Limiter, perMinute int64, now time.Time) *rate.Limiter {
	switch {
	case perMinute == 0:
		return nil
	case r == nil:
		return rate.NewLimiter(rate.Limit(float64(perMinute)/60), int(perMinute))
	}
	r.SetLimitAt(now, rate.Limit(float64(perMinute)/60))
	r.SetBurstAt(now, int(perMinute))
	return r
}

// Limits returns the limits in force.
func (a *Account) Limits() Limits {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limits
}

// Unused reports whether the account is like a new one.
func (a *Account) Unused(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(now, dayOf(now))
	full := func(r *rate.Limiter) bool { return r == nil || r.TokensAt(now) >= float64(r.Burst()) }
	return a.running == 0 && a.used.Load() == 0 && full(a.rates.requests) && full(a.rates.tokens) && a.share.reported()
}

// Usage is what is used of each limit of an account, and what is left.
type Usage struct {
	Running     int64  `json:"running"` // requests under way
	TokensToday int64  `json:"tokens_today"`
	Day         string `json:"day"` // of the budget, in UTC
	Left        Left   `json:"left"`
}

// Left is what is left of each limit, nil if there is no limit. A negative number is debt:
// requests that have begun are not cut.
type Left struct {
	Requests          *int64 `json:"max_requests,omitzero"`
	RequestsPerMinute *int64 `json:"requests_per_minute,omitzero"`
	TokensPerMinute   *int64 `json:"tokens_per_minute,omitzero"`
	TokensPerDay      *int64 `json:"tokens_per_day,omitzero"`
}

// Usage returns what is used now.
func (a *Account) Usage(now time.Time) Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(now, dayOf(now))
	if s := a.share; s != nil && s.known() {
		return s.usage(now)
	}
	u := Usage{Running: a.running, TokensToday: a.used.Load(), Day: time.Unix(a.day*86400, 0).UTC().Format(time.DateOnly)}
	if l := a.part(a.limits.Requests); l > 0 {
		u.Left.Requests = new(l - a.running)
	}
	if l := a.limits.TokensPerDay; l > 0 {
		u.Left.TokensPerDay = new(l - a.usedOfDay(a.day))
	}
	if r := a.rates.requests; r != nil {
		u.Left.RequestsPerMinute = new(int64(math.Floor(r.TokensAt(now))))
	}
	if r := a.rates.tokens; r != nil {
		u.Left.TokensPerMinute = new(int64(math.Floor(r.TokensAt(now))) - a.unpaid.Load())
	}
	return u
}

// Spent is what an account has used of a day's budget, in a form that outlives the process.
type Spent struct {
	Day    int64 `json:"day"` // since 1970, of the wall clock
	Tokens int64 `json:"tokens"`
	// Renewed is when the budget was renewed last, in Unix seconds; 0 if it was not since its
	// account was first made.
	Renewed int64 `json:"renewed,omitzero"`
}

// Spent returns what is used of the day, and the limit that it counts against.
func (a *Account) Spent(now time.Time) (s Spent, limit int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn(now, dayOf(now))
	s = Spent{Day: a.day, Tokens: a.used.Load()}
	if !a.renewed.IsZero() {
		s.Renewed = a.renewed.Unix()
	}
	return s, a.limits.TokensPerDay
}

// Restore gives a new account what another process has used. If the day has ended since, the
// budget is renewed as in that process: not sooner than minDay after the last time. A wall clock
// that was set back since counts as if no time had passed.
func (a *Account) Restore(s Spent, now time.Time) { a.restore(s, now, now.Unix()) }

// restore is Restore at a time of the wall clock.
func (a *Account) restore(s Spent, now time.Time, wall int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.day = s.Day
	a.used.Add(s.Tokens)
	if s.Renewed != 0 {
		a.renewed = now.Add(-time.Duration(min(max(wall-s.Renewed, 0), 2*86400)) * time.Second)
	}
	a.turn(now, wall/86400)
}

// Join adds what other processes have used of the same budget.
func (a *Account) Join(tokens int64) { a.used.Add(tokens) }

// turn begins a new day if it is time. a.mu is held.
func (a *Account) turn(now time.Time, day int64) {
	if day == a.day {
		return
	}
	if day > a.day && (a.renewed.IsZero() || now.Sub(a.renewed) >= minDay) {
		a.renewed = now
		a.used.Store(0)
	} else if day > a.day {
		return // too soon: it begins when minDay has passed
	}
	a.day = day
}

// Enter lets a request begin, unless a limit forbids it. Each one that may begin must Leave.
func (a *Account) Enter(now time.Time) Refusal {
	if s := a.share; s != nil {
		return s.enter(now)
	}
	return a.enter(now, dayOf(now))
}

// enter is Enter on a day of the wall clock.
func (a *Account) enter(now time.Time, day int64) Refusal {
	a.mu.Lock()
	defer a.mu.Unlock()
	l, r := &a.limits, &a.rates
	a.turn(now, day)
	if l.Requests > 0 && a.running >= a.part(l.Requests) {
		return Refusal{OverRequests, l.Requests, 0}
	}
	if l.TokensPerDay > 0 && a.usedOfDay(day) >= l.TokensPerDay {
		return Refusal{OverTokensPerDay, l.TokensPerDay, time.Duration(86400-now.Unix()%86400) * time.Second}
	}
	a.pay(now)
	if r.tokens != nil {
		if has := r.tokens.TokensAt(now); has < 1 {
			return Refusal{OverTokensPerMinute, l.TokensPerMinute, wait(1-has, r.tokens)}
		}
	}
	if r.requests != nil && !r.requests.AllowN(now, 1) {
		return Refusal{OverRequestsPerMinute, l.RequestsPerMinute, wait(1-r.requests.TokensAt(now), r.requests)}
	}
	a.running++
	return Refusal{}
}

// pay takes the tokens that were charged since the last call from the minute's rate. a.mu is held.
func (a *Account) pay(now time.Time) {
	unpaid := a.unpaid.Swap(0)
	if a.share != nil {
		a.share.charged(unpaid)
	}
	if a.rates.tokens != nil {
		pay(a.rates.tokens, a.share.owed(unpaid, a.rates.tokens, now), now)
	}
}

// longestWait bounds what a caller is told: more would be no time.Duration.
const longestWait = 100 * 365 * 24 * time.Hour

// wait is how long a rate needs for the lacking amount.
func wait(lacks float64, r *rate.Limiter) time.Duration {
	return time.Duration(min(lacks/float64(r.Limit()), longestWait.Seconds()) * float64(time.Second))
}

// pay takes tokens that were used from what a rate has, which may fall below 0. A limiter takes
// at most its burst at once, which is therefore as large for that moment. An engine states the
// number, so the time does not depend on it.
func pay(r *rate.Limiter, tokens int64, now time.Time) {
	if tokens <= 0 {
		return
	}
	burst := r.Burst()
	r.SetBurstAt(now, max(burst, int(tokens)))
	r.ReserveN(now, int(tokens))
	r.SetBurstAt(now, burst)
}

// Leave ends a request that Enter let begin.
func (a *Account) Leave() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
	if a.share != nil {
		a.share.left()
	}
}

// Charge adds tokens to what is used; a negative number takes back what was estimated too high.
func (a *Account) Charge(tokens int64) {
	a.used.Add(tokens)
	a.unpaid.Add(tokens)
}
