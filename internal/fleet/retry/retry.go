// Package retry decides whether and when a request that failed at an engine is sent to
// another one. It is pure: the failure, the time and a random number are arguments, and the
// decision is the result.
//
// A retry is repeated work: a few retries hide a failing engine from its clients, and many
// overload the healthy ones. Each model therefore has a budget. It is a token bucket that
// each request fills by Share of a retry and that time fills at the rate Floor, so that a
// model with few requests has retries too. Unspent retries expire within Memory, so the
// bucket never holds more than the last seconds have earned. A retry that finds the bucket
// empty waits for its turn, up to Patience; after that the client gets the failure. If all
// engines fail, they receive at most Share of their requests a second time, and Floor
// retries per second.
package retry

import (
	"cmp"
	"math"
	"sync"
	"time"
)

// Limits bound the retries of one model. A zero field has its default. A negative one
// means none.
type Limits struct {
	// Share is how many retries each request earns (0.2).
	Share float64
	// Floor is how many retries a second there may be besides (10).
	Floor float64
}

// Defaults.
const (
	// Memory is how long unspent retries are kept: an unused bucket falls or rises to
	// Memory times Floor with this time constant.
	Memory = 10 * time.Second
	// Patience is how long a retry waits for its turn.
	Patience = 10 * time.Second
	// Jitter is the spread of retries in time if the bucket is empty. With a full
	// bucket there is none.
	Jitter = 250 * time.Millisecond
	// AbortGrace is the time between the abort of a silent attempt and the beginning of
	// the next one.
	AbortGrace = 100 * time.Millisecond
	// MaxAttempts bounds the attempts of a request. MaxBegun bounds those at which an
	// engine may have begun, because the content of the request may be what crashes
	// engines.
	MaxAttempts, MaxBegun = 4, 2
	// MaxContinued bounds how often a stream continues at another engine.
	MaxContinued = 8
	// Proven is the number of ids after which a failed attempt was not caused by the
	// content of the request: a request that crashes engines crashes the next one at the
	// same point as the previous one.
	Proven = 16
)

// Budget is the budget of retries of one model. It may be used by several goroutines.
// nil is no bound. Times are nanoseconds on any one clock.
type Budget struct {
	share, floor float64 // by request, and by nanosecond

	mu     sync.Mutex
	tokens float64 // below 0: retries wait for their turns
	at     int64
}

// New returns a full budget.
func New(l Limits, now int64) *Budget {
	b := &Budget{share: max(cmp.Or(l.Share, 0.2), 0), floor: max(cmp.Or(l.Floor, 10), 0) / 1e9, at: now}
	b.tokens = b.rest()
	return b
}

// rest is what a bucket holds that nobody has used for long.
func (b *Budget) rest() float64 { return b.floor * float64(Memory) }

// pass lets time pass: debts are paid by the floor, and what is above or below rest
// tends to it.
func (b *Budget) pass(now int64) {
	passed := float64(now - b.at)
	if passed <= 0 {
		return // clocks are read at several places
	}
	b.at = now
	if b.tokens < 0 {
		if b.floor == 0 {
			return
		}
		paid := min(passed, -b.tokens/b.floor)
		b.tokens += paid * b.floor
		passed -= paid
	}
	if passed > 0 {
		b.tokens = b.rest() + (b.tokens-b.rest())*math.Exp(-passed/float64(Memory))
	}
}

// Requested records a request that goes to its first engine.
func (b *Budget) Requested(now int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pass(now)
	b.tokens += b.share
}

// Left is how many retries could begin now.
func (b *Budget) Left(now int64) float64 {
	if b == nil {
		return math.Inf(1)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pass(now)
	return b.tokens
}

// take takes a retry out of the budget, and says when its turn is.
func (b *Budget) take(now int64, random float64) (wait time.Duration, ok bool) {
	if b == nil {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pass(now)
	left := b.tokens - 1
	if left < 0 {
		if b.floor == 0 || -left/b.floor > float64(Patience) {
			return 0, false
		}
		wait = time.Duration(math.Ceil(-left / b.floor))
	}
	b.tokens = left
	full := 1.0
	if rest := b.rest(); rest > 0 {
		full = min(max((left+1)/rest, 0), 1)
	}
	return wait + time.Duration(random*(1-full)*float64(Jitter)), true
}

// Failure describes a request whose attempt has failed.
type Failure struct {
	// Final is set if no engine can do better, and Seen if the client has received a
	// part of the answer.
	Final, Seen bool
	// NotRun is set if the engine cannot have begun the request. Silent is set if the
	// engine sent nothing and may still be working on it.
	NotRun, Silent bool
	// Effects is set if engines may do more than compute an answer, so that what may
	// have run must not be repeated.
	Effects bool
	// Attempts is the number of attempts, and Begun of those in which an engine may have
	// begun. An attempt with Proven ids or more resets Begun.
	Attempts, Begun int
	// Goes is set if the client has had some of the answer and another engine can
	// continue it; Seen is then not set. Continued is how often the answer was
	// continued.
	Goes      bool
	Continued int
}

// Refusal is why a request is not repeated.
type Refusal uint8

// The refusals.
const (
	Granted   Refusal = iota
	Final             // no engine could do better
	Seen              // the client has some of the answer
	Effects           // it may have run and has effects
	Exhausted         // it was tried often enough
	Spent             // the model's budget is
)

// String returns the word for metrics.
func (r Refusal) String() string {
	return [...]string{"granted", "final", "seen", "may_have_run", "attempts", "budget"}[r]
}

// Allow reports whether the request may be repeated at all, whatever is left of the
// budget.
func (f *Failure) Allow() Refusal {
	switch {
	case f.Final:
		return Final
	case f.Seen:
		return Seen
	case f.Effects && !f.NotRun:
		return Effects
	case f.Goes && f.Continued >= MaxContinued, !f.Goes && f.Attempts >= MaxAttempts, f.Begun >= MaxBegun:
		return Exhausted
	}
	return Granted
}

// spends reports whether the retry takes from the budget. If a stream ends, its client
// loses the output so far and requests all of it again. Each stream therefore continues
// once even without a budget; the gateway bounds the number that do so at once.
func (f *Failure) spends() bool { return !f.Goes || f.Continued > 0 }

// Decide returns whether the request is repeated, and the wait before that. random is
// from 0 to 1. A granted retry is taken from the budget.
func (b *Budget) Decide(now int64, f *Failure, random float64) (wait time.Duration, why Refusal) {
	if why = f.Allow(); why != Granted {
		return 0, why
	}
	if f.spends() {
		var ok bool
		if wait, ok = b.take(now, random); !ok {
			return 0, Spent
		}
	}
	if f.Silent {
		wait = max(wait, AbortGrace)
	}
	return wait, Granted
}
