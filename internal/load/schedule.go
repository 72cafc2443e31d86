package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Arrival names an arrival process of the open loop.
type Arrival string

// The arrival processes.
const (
	// Poisson draws independent exponential gaps: users who do not know of each
	// other. It is the default.
	Poisson Arrival = "poisson"
	// Constant sends at equal gaps.
	Constant Arrival = "constant"
)

// Schedule is an absolute plan of arrivals: offsets from the start of the run,
// never decreasing, a function of the seed alone. It is never re-anchored: a
// generator that fell behind sends at once and its lateness shows as slip,
// instead of thinning the load it was asked for.
type Schedule struct {
	arrival Arrival
	gap     float64 // mean gap in seconds
	rng     *rand.Rand
	n       int
	at      float64 // seconds, of the last Poisson arrival
}

// NewSchedule builds the schedule of an arrival process at rate requests per
// second.
func NewSchedule(arrival Arrival, rate float64, seed uint64) (*Schedule, error) {
	if !(rate > 0) || math.IsInf(rate, 0) {
		return nil, fmt.Errorf("rate %v: must be a positive number of requests per second", rate)
	}
	switch arrival {
	case "":
		arrival = Poisson
	case Poisson, Constant:
	default:
		return nil, fmt.Errorf("arrival %q: must be %q or %q", arrival, Poisson, Constant)
	}
	return &Schedule{
		arrival: arrival,
		gap:     1 / rate,
		rng:     rand.New(rand.NewPCG(seed, scheduleStream)),
	}, nil
}

// scheduleStream separates the draws of the arrival process from those of the
// prompts, which use the same seed.
const scheduleStream = 0x61727269766c

// Next gives the next arrival as an offset from the start of the run.
func (s *Schedule) Next() time.Duration {
	// Constant arrivals multiply instead of adding up, so that a million of them
	// do not gather rounding error.
	at := float64(s.n) * s.gap
	if s.arrival == Poisson {
		s.at += s.rng.ExpFloat64() * s.gap
		at = s.at
	}
	s.n++
	if at >= math.MaxInt64/1e9 {
		return math.MaxInt64
	}
	return time.Duration(at * 1e9)
}

// Process describes an arrival process as it was realised, from the intended
// times of the requests that were sent.
type Process struct {
	// Rate is arrivals per second.
	Rate float64 `json:"rate"`
	// CV is the gaps' coefficient of variation: 0 for constant arrivals, 1 for a
	// Poisson process.
	CV float64 `json:"gap_cv"`
	// Lag1 is the correlation of each gap with the next: 0 for both.
	Lag1 float64 `json:"gap_lag1"`
}

// realised accumulates a Process from intended times in order.
type realised struct {
	n, pairs             int
	first, last, gap     float64
	sum, sumSq, products float64
}

// add takes the next intended time, in seconds.
func (r *realised) add(at float64) {
	r.n++
	if r.n == 1 {
		r.first, r.last = at, at
		return
	}
	gap := at - r.last
	r.sum += gap
	r.sumSq += gap * gap
	if r.n > 2 {
		r.products += gap * r.gap
		r.pairs++
	}
	r.last, r.gap = at, gap
}

// process gives the figures; they are zero where there are too few arrivals.
func (r *realised) process() Process {
	gaps := float64(r.n - 1)
	if gaps < 2 || r.last <= r.first {
		return Process{}
	}
	mean := r.sum / gaps
	p := Process{Rate: 1 / mean}
	variance := r.sumSq/gaps - mean*mean
	if variance <= mean*mean*1e-12 {
		return p // constant: a correlation of rounding errors means nothing
	}
	p.CV = math.Sqrt(variance) / mean
	p.Lag1 = (r.products/float64(r.pairs) - mean*mean) / variance
	return p
}
