// Package admission decides whether a request is admitted. It has a lock and counters,
// but no goroutine and no clock.
package admission

import (
	"sync"
	"time"

	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
)

// Limits bound the requests in the gateway; zero means no bound.
type Limits struct {
	Requests int   // requests between gate and finish
	Tokens   int64 // their prompt and output tokens, first estimated, then exact
	// Bands are the shares of bands in both limits.
	Bands fair.Bands
}

// Gate refuses requests before any expensive work is done for them. A request
// reserves its estimated tokens at the gate, corrects the estimate later, and returns
// everything when it ends.
type Gate struct {
	limits Limits

	mu       sync.Mutex
	draining bool
	drained  int64 // when Drain was called
	requests *fair.Room
	tokens   *fair.Room
}

// NewGate makes a gate.
func NewGate(limits Limits) *Gate {
	return &Gate{limits: limits, requests: fair.NewRoom(limits.Bands), tokens: fair.NewRoom(limits.Bands)}
}

// Reservation is a request's share of the limits. It belongs to the goroutine
// that serves the request.
type Reservation struct {
	gate   *Gate
	place  *fair.Holder
	among  *fair.Holder // of tokens
	tokens int64
}

// retryAfter is the wait suggested on overload. The time until room appears is
// not known here; a second spreads retries without losing the client.
const retryAfter = time.Second

// Enter reserves room for a caller's request that arrived at a time, or refuses with CodeOverloaded,
// or with CodeUnavailable if it arrived after Drain.
func (g *Gate) Enter(who *tenancy.Caller, arrived, tokens int64) (*Reservation, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.check(who, arrived, tokens); err != nil {
		return nil, err
	}
	r := &Reservation{g, g.requests.Holder(who, arrived), g.tokens.Holder(who, arrived), tokens}
	g.requests.Hold(r.place, 1)
	g.tokens.Hold(r.among, tokens)
	return r, nil
}

// Check returns the error that Enter would give now to the smallest request of a caller that
// arrived at a time. It reserves nothing.
//
// A request counts from the gate on and not from its arrival, because one whose body
// arrives slowly would hold a place that another could use. Check refuses it on
// arrival, before its body is read, if there is no place then.
func (g *Gate) Check(who *tenancy.Caller, arrived int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.check(who, arrived, 0)
}

func (g *Gate) check(who *tenancy.Caller, arrived, tokens int64) error {
	requests, all := g.requests.Held(), g.tokens.Held()
	switch {
	case g.draining && arrived >= g.drained:
		return &infer.Error{Code: infer.CodeUnavailable, RetryAfter: retryAfter, Reason: "draining", Message: "the gateway is shutting down"}
	case g.limits.Requests > 0 && !g.requests.Admits(g.requests.Holder(who, arrived), 1, int64(g.limits.Requests)):
		message := "%d requests are in flight, which is the limit; try again later"
		if requests < int64(g.limits.Requests) {
			message = "%d requests are in flight, and the rest of the limit is for tenants with less than their share; try again later"
		}
		e := infer.Errorf(infer.CodeOverloaded, message, requests)
		e.RetryAfter, e.Reason = retryAfter, "max_requests"
		return e
	case g.limits.Tokens > 0 && all > 0 && !g.tokens.Admits(g.tokens.Holder(who, arrived), tokens, g.limits.Tokens):
		// A request larger than the whole limit still gets in alone: refusing it
		// for ever would be no overload but a wrong answer.
		e := infer.Errorf(infer.CodeOverloaded, "%d tokens are in flight and about %d more would pass the limit of %d; try again later",
			all, tokens, g.limits.Tokens)
		e.RetryAfter, e.Reason = retryAfter, "max_inflight_tokens"
		return e
	}
	return nil
}

// Settle replaces the estimate. It never refuses, because the work is done by then.
func (r *Reservation) Settle(tokens int64) {
	r.gate.mu.Lock()
	defer r.gate.mu.Unlock()
	r.gate.tokens.Hold(r.among, tokens-r.tokens)
	r.tokens = tokens
}

// Leave returns the reservation. Only the first call counts.
func (r *Reservation) Leave() {
	if r.gate == nil {
		return
	}
	g := r.gate
	r.gate = nil
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests.Hold(r.place, -1)
	g.tokens.Hold(r.among, -r.tokens)
}

// Drain refuses every request that arrives from now on. A request that has arrived before may
// still enter.
func (g *Gate) Drain(now int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.draining, g.drained = true, now
}

// Load returns what is reserved now.
func (g *Gate) Load() (requests int, tokens int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return int(g.requests.Held()), g.tokens.Held()
}
