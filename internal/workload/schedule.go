package workload

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
	// Gamma draws independent gaps of a gamma distribution with a given
	// coefficient of variation: below 1 they are more even than Poisson's, above
	// it requests come in bursts.
	Gamma Arrival = "gamma"
)

// Loop describes the arrivals of an open loop.
type Loop struct {
	// Arrival is the process; empty means Poisson.
	Arrival Arrival
	// Rate is requests per second.
	Rate Rate
	// CV is the coefficient of variation of the gaps, for Gamma only: standard deviation
	// divided by mean. If the rate changes over time, it applies to the gaps measured in
	// expected arrivals.
	CV float64
}

// Schedule is an absolute plan of arrivals: offsets from the start of the run, never
// decreasing, a function of the seed alone. It is never re-anchored: a generator that fell
// behind sends at once, and its lateness shows as slip instead of a lower load.
//
// A process is drawn at a rate of one and its time is stretched by the rate's integral, so
// ramps and steps have the process's own character everywhere.
type Schedule struct {
	loop Loop
	rng  *rand.Rand
	n    int
	at   float64 // of the last arrival that was drawn; seconds, or arrivals where the rate changes
	gap  float64 // mean gap in seconds, of a rate that never changes
	rate *integral
}

// NewSchedule builds the schedule of an open loop.
func NewSchedule(l Loop, seed uint64) (*Schedule, error) {
	if err := l.Rate.check(); err != nil {
		return nil, err
	}
	switch l.Arrival {
	case "":
		l.Arrival = Poisson
	case Poisson, Constant:
	case Gamma:
		if !(l.CV > 0) || math.IsInf(l.CV, 0) {
			return nil, fmt.Errorf("arrival gamma: the coefficient of variation is %v; it must be positive (1 is a Poisson process)", l.CV)
		}
	default:
		return nil, fmt.Errorf("arrival %q: must be %q, %q or %q", l.Arrival, Poisson, Constant, Gamma)
	}
	s := &Schedule{loop: l, rng: rand.New(rand.NewPCG(seed, scheduleStream))}
	if gap, ok := l.Rate.flat(); ok {
		s.gap = gap
	} else {
		s.rate = &integral{segments: l.Rate.segments}
	}
	return s, nil
}

// scheduleStream separates the draws of the arrival process from those of the prompts,
// which use the same seed.
const scheduleStream = 0x61727269766c

// Next returns the next arrival as an offset from the start of the run;
// math.MaxInt64 means never.
func (s *Schedule) Next() time.Duration {
	unit := s.gap
	if s.rate != nil {
		unit = 1
	}
	var at float64
	switch s.loop.Arrival {
	case Constant:
		// Multiplied instead of added up, so that a million equal gaps do not
		// gather rounding error.
		at = float64(s.n) * unit
	case Gamma:
		shape := 1 / (s.loop.CV * s.loop.CV)
		s.at += gamma(s.rng, shape) / shape * unit
		at = s.at
	default:
		s.at += s.rng.ExpFloat64() * unit
		at = s.at
	}
	s.n++
	if s.rate != nil {
		at = s.rate.when(at)
	}
	if !(at < math.MaxInt64/1e9) {
		return math.MaxInt64
	}
	return time.Duration(at * 1e9)
}

// gamma draws from the gamma distribution of a shape and scale 1, by the
// method of Marsaglia and Tsang (A Simple Method for Generating Gamma
// Variables, 2000).
func gamma(rng *rand.Rand, shape float64) float64 {
	if shape < 1 {
		// A draw of shape+1 times U^(1/shape) has the shape.
		return gamma(rng, shape+1) * math.Exp(math.Log(1-rng.Float64())/shape)
	}
	d := shape - 1.0/3
	c := 1 / math.Sqrt(9*d)
	for {
		x := rng.NormFloat64()
		v := 1 + c*x
		if v <= 0 {
			continue
		}
		v = v * v * v
		if math.Log(1-rng.Float64()) < x*x/2+d-d*v+d*math.Log(v) {
			return d * v
		}
	}
}
