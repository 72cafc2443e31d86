package workload

import (
	"fmt"
	"math"
	"time"
)

// Rate is how many requests per second are wanted, as it changes with time.
// The zero value is no rate at all; make one with ConstantRate, RampRate or
// StepRates.
type Rate struct {
	segments []segment
}

// segment goes from one rate to another in a time, in seconds; the last
// segment's to goes on for ever.
type segment struct{ from, to, length float64 }

// RateStep is a rate and how long it is held.
type RateStep struct {
	Rate float64 // requests per second
	For  time.Duration
}

// ConstantRate is perSecond, always.
func ConstantRate(perSecond float64) Rate {
	return Rate{[]segment{{from: perSecond, to: perSecond}}}
}

// RampRate rises or falls evenly from one rate to another in a time, and stays
// there.
func RampRate(from, to float64, in time.Duration) Rate {
	return Rate{[]segment{{from, to, in.Seconds()}}}
}

// StepRates holds each rate for its time, and the last one for ever.
func StepRates(steps ...RateStep) Rate {
	r := Rate{make([]segment, 0, len(steps))}
	for _, s := range steps {
		r.segments = append(r.segments, segment{s.Rate, s.Rate, s.For.Seconds()})
	}
	return r
}

// Length is the time in which the rate changes; a constant rate has none.
func (r Rate) Length() time.Duration {
	var sum float64
	for _, s := range r.segments {
		sum += s.length
	}
	return time.Duration(sum * 1e9)
}

// flat returns the mean gap in seconds of a rate that never changes.
func (r Rate) flat() (gap float64, ok bool) {
	if len(r.segments) == 1 && r.segments[0].length == 0 {
		return 1 / r.segments[0].to, true
	}
	return 0, false
}

func (r Rate) check() error {
	some := false
	for _, s := range r.segments {
		for _, v := range []float64{s.from, s.to} {
			if !(v >= 0) || math.IsInf(v, 0) {
				return fmt.Errorf("rate %v: must be a positive number of requests per second", v)
			}
		}
		if s.length < 0 || s.length == 0 && len(r.segments) > 1 {
			return fmt.Errorf("rate %v: each rate must be held for a positive time", s.to)
		}
		some = some || s.from > 0 || s.to > 0
	}
	if !some {
		return fmt.Errorf("rate 0: must be a positive number of requests per second")
	}
	return nil
}

// integral inverts the rate's integral: it gives the time by which a number of
// arrivals is expected. It walks forward: mass must not fall between calls.
type integral struct {
	segments []segment
	start    float64 // of the current segment, in seconds
	before   float64 // arrivals expected until then
}

func (g *integral) when(mass float64) float64 {
	for {
		s := g.segments[0]
		m := mass - g.before
		last := len(g.segments) == 1
		if whole := (s.from + s.to) / 2 * s.length; m > whole || s.length == 0 {
			g.before += whole
			g.start += s.length
			if last {
				g.segments = []segment{{from: s.to, to: s.to, length: math.Inf(1)}}
			} else {
				g.segments = g.segments[1:]
			}
			continue
		}
		// from y + slope y²/2 = m; this form of the root loses no digits where
		// the slope is small, and has no division by it.
		var slope float64
		if s.from != s.to {
			slope = (s.to - s.from) / s.length
		}
		if m <= 0 {
			return g.start
		}
		root := math.Sqrt(max(0, s.from*s.from+2*slope*m))
		return g.start + 2*m/(s.from+root)
	}
}
