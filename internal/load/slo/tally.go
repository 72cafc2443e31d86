package slo

import "math"

// z is the normal distribution's quantile of a 99 % interval. It is wider than
// that of reports, because a search decides many times.
const z = 2.575829

// batches is the number of batches of neighbours that a trial is counted in.
const batches = 12

// Count is how many requests of a batch could be judged and how many of them missed the
// objective.
type Count struct{ N, Bad int }

// Tally counts for one objective, in batches of requests that were sent one after another.
type Tally []Count

// Take counts the requests of a trial, in the order of their sending, for one
// objective.
func (o *Objective) Take(requests []Request) Tally {
	t := make(Tally, min(batches, max(1, len(requests))))
	for i := range requests {
		kept, counts := o.keeps(&requests[i])
		if !counts {
			continue
		}
		b := &t[i*len(t)/len(requests)]
		b.N++
		if !kept {
			b.Bad++
		}
	}
	return t
}

// Estimate is the share of requests that missed an objective, and the confidence
// interval of the true share.
type Estimate struct {
	N, Bad int
	// Share is Bad of N; without requests it is 0, and the interval everything.
	Share, Low, High float64
	// Effect is how many requests are worth one independent request.
	Effect float64
}

// Estimate returns the share and its 99 % interval.
func (t Tally) Estimate() Estimate { return t.Within(z) }

// Within returns the share and its interval, this many standard deviations of the normal
// distribution to each side. It is Wilson's interval with the number of requests reduced by
// the design effect, which is the chi-square of the batches per degree of freedom.
func (t Tally) Within(z float64) Estimate {
	var e Estimate
	for _, b := range t {
		e.N += b.N
		e.Bad += b.Bad
	}
	e.Effect, e.High = 1, 1
	if e.N == 0 {
		return e
	}
	e.Share = float64(e.Bad) / float64(e.N)
	if p := e.Share; p > 0 && p < 1 {
		chi, full := 0.0, 0
		for _, b := range t {
			if b.N == 0 {
				continue
			}
			full++
			d := float64(b.Bad) - p*float64(b.N)
			chi += d * d / (p * (1 - p) * float64(b.N))
		}
		if full > 1 {
			e.Effect = max(1, chi/float64(full-1))
		}
	}
	n := float64(e.N) / e.Effect
	middle := (e.Share + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(e.Share*(1-e.Share)/n+z*z/(4*n*n))
	e.Low, e.High = max(0, middle-half), min(1, middle+half)
	if e.Bad == 0 {
		e.Low = 0
	}
	return e
}

// Decision is whether a load meets its objectives.
type Decision uint8

// The decisions.
const (
	Undecided Decision = iota
	Meets
	Misses
	// Void is a load that could not be offered, so that nothing is known about it.
	Void
)

var decisionNames = [...]string{"undecided", "meets", "misses", "void"}

// String returns the decision's name in reports.
func (d Decision) String() string { return decisionNames[d] }

// MarshalText implements encoding.TextMarshaler.
func (d Decision) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Decision) UnmarshalText(text []byte) error {
	for i, name := range decisionNames {
		if name == string(text) {
			*d = Decision(i)
		}
	}
	return nil
}

// Decide reports whether the share of an objective is decided.
func (o *Objective) Decide(e Estimate) Decision {
	allowed := 1 - o.Share
	switch {
	case e.High < allowed:
		return Meets
	case e.Low > allowed:
		return Misses
	}
	return Undecided
}
