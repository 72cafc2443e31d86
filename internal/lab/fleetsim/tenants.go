package fleetsim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"weir/internal/sim"
	"weir/internal/tenancy"
)

// Overload is a fleet under a multiple of its capacity, from many tenants, one of which
// sends nearly all requests.
type Overload struct {
	Engines    int
	Engine     sim.Options
	MaxRunning int    // requests of an engine at once
	Strict     bool   // they are given no more than that
	Work       string // of each request: input and output, as for NewSessions
	Policy     string
	Load       float64 // a multiple of what the fleet can do
	Tenants    int
	Greedy     float64       // the share of the requests that one of them sends
	For        time.Duration // how long requests come
	Warm       time.Duration // requests before this time do not count, because an idle fleet fills at once
	Patience   time.Duration // how long each waits
	Seed       uint64
}

// Served is what became of the requests of the tenants that are not greedy.
type Served struct {
	Name string `json:"name"`
	// Least is the share of its demand that the worst served tenant got. Each tenant demands
	// less than its share of the fleet.
	Least  float64 `json:"least_served"`
	Asked  int     `json:"asked"`
	Served int     `json:"served"`
	TTFT   Spread  `json:"ttft_ms"`
	// Greedy is how many of the greedy tenant's were served, a second.
	Greedy float64 `json:"greedy_per_s"`
}

// The three runs of an Overload.
const (
	ByShares  = "by shares"
	ByArrival = "by arrival"
	Without   = "without the greedy one"
)

// Capacity is how many requests the fleet can serve in a second, if it always has enough.
func (o *Overload) Capacity(ctx context.Context) (float64, error) {
	users := 2 * o.Engines * o.MaxRunning
	p, err := NewSessions(fmt.Sprintf("concurrency=%d,requests=%d,%s", users, 10*users, o.Work), o.Seed)
	if err != nil {
		return 0, err
	}
	r, err := Run(ctx, o.options(p))
	if err != nil {
		return 0, err
	}
	return float64(r.Finished) / r.VirtualSeconds, nil
}

func (o *Overload) options(p *Plan) Options {
	engine := o.Engine
	engine.MaxRunning = o.MaxRunning
	return Options{Plan: p, Engine: engine, Engines: make([]Engine, o.Engines), Policy: WithQueue(o.Policy), Strict: o.Strict, Stamps: true, Seed: o.Seed}
}

// Run offers the load three times: to a queue that gives turns by shares, to one that gives
// them by arrival, and without the greedy tenant.
func (o *Overload) Run(ctx context.Context, capacity float64) (all []Served, err error) {
	p, err := NewSessions(fmt.Sprintf("rate=%.3f,duration=%v,%s", capacity*o.Load, o.For, o.Work), o.Seed)
	if err != nil {
		return nil, err
	}
	callers := make([]*tenancy.Caller, o.Tenants)
	for i := range callers {
		callers[i] = &tenancy.Caller{Tenant: fmt.Sprint("tenant ", i), Band: "default", Share: 1}
	}
	of := func(session int) int {
		r := rand.New(rand.NewPCG(o.Seed, uint64(session)))
		if r.Float64() < o.Greedy {
			return 0
		}
		return 1 + r.IntN(o.Tenants-1)
	}
	for _, name := range []string{ByShares, ByArrival, Without} {
		run := o.options(p)
		run.Patience = o.Patience
		run.Tenant = func(session int) *tenancy.Caller {
			switch i := of(session); {
			case name == ByArrival:
				return tenancy.Anyone
			case i == 0 && name == Without:
				return nil
			default:
				return callers[i]
			}
		}
		asked, served := make([]int, o.Tenants), make([]int, o.Tenants)
		var ttft []float64
		run.OnRequest = func(r *Record) {
			i := of(r.Session)
			if r.Arrival < int64(o.Warm) {
				return
			}
			asked[i]++
			if r.Finish == 0 {
				return
			}
			if i == 0 {
				if r.Finish <= int64(o.For) {
					served[0]++
				}
				return
			}
			served[i]++
			ttft = append(ttft, r.TTFT())
		}
		if _, err := Run(ctx, run); err != nil {
			return nil, err
		}
		s := Served{Name: name, Least: math.Inf(1), TTFT: spread(ttft), Greedy: float64(served[0]) / (o.For - o.Warm).Seconds()}
		for i := 1; i < o.Tenants; i++ {
			if asked[i] > 0 {
				s.Least = min(s.Least, float64(served[i])/float64(asked[i]))
			}
			s.Asked, s.Served = s.Asked+asked[i], s.Served+served[i]
		}
		all = append(all, s)
	}
	return all, nil
}

// Judge reports what is wrong with a run beside the one without the greedy tenant; nil if each
// tenant gets its share within off, and TTFT p99 is no more than so many times as long.
func (s *Served) Judge(without *Served, off, times float64) (wrong []string) {
	if !(s.Least >= 1-off) {
		wrong = append(wrong, fmt.Sprintf("the tenant that is served worst gets %.1f %% of its share", 100*s.Least))
	}
	if !(s.TTFT.P99 <= times*without.TTFT.P99) {
		wrong = append(wrong, fmt.Sprintf("TTFT p99 is %.2f times that without the greedy one", s.TTFT.P99/without.TTFT.P99))
	}
	return wrong
}
