package load

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"weir/internal/workload"
)

// moment is what the judgement of a whole run needs from each request.
type moment struct {
	intended, started, last int64
	outcome                 Outcome
}

// Arrivals is the arrival process as the generator carried it out.
type Arrivals struct {
	workload.Process
	// Dispersion is the variance over the mean of the number of arrivals in windows
	// of ten mean gaps: 1 for a Poisson process, more for bursts.
	Dispersion float64 `json:"dispersion"`
	// Stretch is the time in which the requests were begun over the time in which
	// they should have been: 1 where the generator kept up.
	Stretch float64 `json:"stretch"`
}

// Steady is the part of a run after the first requests have been answered and before the
// last one was begun, in which arrivals and answers should be in balance.
type Steady struct {
	// Why is the reason if there is no such part; then the figures are zero.
	Why      string  `json:"why,omitempty"`
	From     float64 `json:"from_seconds"` // since the first intended time
	To       float64 `json:"to_seconds"`
	Requests int     `json:"requests"` // begun in it

	Arriving float64 `json:"arriving_per_second"`
	Ending   float64 `json:"ending_per_second"`
	// InFlight is the mean number of requests in flight, by integrating it over time.
	// Little is the same by Little's law: the rate of arrivals times their mean time. In
	// balance the two are equal.
	InFlight float64 `json:"in_flight"`
	Little   float64 `json:"little"`
	// InFlightThirds is InFlight in the thirds of the part.
	InFlightThirds [3]float64 `json:"in_flight_thirds"`
	// Unstable is the evidence that more requests arrived than were answered. Latencies
	// then depend on the length of the run, and are refused.
	Unstable string `json:"unstable,omitempty"`
}

// leastSteady is the number of requests below which a part of a run reveals nothing about
// balance.
const leastSteady = 30

// describe fills in the report's statements about the run as a whole.
func (a *account) describe(r *Report) {
	// Requests end out of order; the arrival process is that of their beginning.
	slices.SortFunc(a.moments, func(x, y moment) int { return cmp.Compare(x.started, y.started) })
	r.Realised = describeArrivals(a.moments)
	if r.Steady = findSteady(a.moments); r.Complete == 0 {
		r.Steady = Steady{Why: "no request was complete"}
	}
}

// describeArrivals describes requests in the order in which they were begun.
func describeArrivals(all []moment) Arrivals {
	if len(all) == 0 {
		return Arrivals{}
	}
	first := all[0].started
	seconds := func(yield func(float64) bool) {
		for _, m := range all {
			if !yield(float64(m.started-first) / 1e9) {
				return
			}
		}
	}
	out := Arrivals{Process: workload.Describe(seconds), Stretch: 1}
	if out.Rate > 0 {
		out.Dispersion = workload.Dispersion(seconds, 10/out.Rate)
	}
	low, high := all[0].intended, all[0].intended
	for _, m := range all {
		low, high = min(low, m.intended), max(high, m.intended)
	}
	if high > low {
		out.Stretch = float64(all[len(all)-1].started-first) / float64(high-low)
	}
	return out
}

// findSteady finds the steady part of requests in the order in which they were
// begun, and judges it.
func findSteady(all []moment) Steady {
	if len(all) < leastSteady {
		return Steady{Why: fmt.Sprintf("%d requests are fewer than %d", len(all), leastSteady)}
	}
	first, last := all[0].started, all[len(all)-1].started
	// The number in flight has filled up after the time of the first requests. The time of
	// all requests would be no measure if it grows.
	early := all[:max(leastSteady/3, len(all)/10)]
	var sum float64
	for _, m := range early {
		sum += float64(m.last - m.started)
	}
	from := first + int64(sum/float64(len(early)))
	if last-from < (last-first)/4 {
		return Steady{Why: "requests take longer than they are being begun: the run is too short"}
	}
	s := Steady{From: float64(from-first) / 1e9, To: float64(last-first) / 1e9}
	length := float64(last - from)
	var times float64
	ended := 0
	var begun [3]int // in the thirds
	for _, m := range all {
		if m.started >= from && m.started < last {
			s.Requests++
			begun[min(2, int(3*float64(m.started-from)/length))]++
			times += float64(m.last - m.started)
		}
		if m.last >= from && m.last < last {
			ended++
		}
	}
	if s.Requests < leastSteady {
		return Steady{Why: fmt.Sprintf("%d requests after the first were answered are fewer than %d", s.Requests, leastSteady)}
	}
	s.Arriving, s.Ending = float64(s.Requests)/length*1e9, float64(ended)/length*1e9
	s.InFlight = inFlight(all, from, last)
	s.Little = float64(s.Requests) / length * (times / float64(s.Requests))
	for i := range s.InFlightThirds {
		at := func(k int) int64 { return from + int64(length*float64(k)/3) }
		s.InFlightThirds[i] = inFlight(all, at(i), at(i+1))
	}
	a, b, c := s.InFlightThirds[0], s.InFlightThirds[1], s.InFlightThirds[2]
	// A load that grows is no server that falls behind.
	if float64(begun[2]) > 1.2*float64(begun[0])+2*math.Sqrt(float64(begun[0])) {
		return s
	}
	// If nothing queues, the number in flight varies like a Poisson number. Growth beyond
	// that, through all thirds, with answers falling behind, is a queue that has no end.
	if c > b && b > a && c-a > 4.5*math.Sqrt(a+1) && c > 1.3*a && s.Ending < 0.95*s.Arriving {
		s.Unstable = fmt.Sprintf("%.1f requests a second arrive and %.1f end; in flight grows from %.0f to %.0f", s.Arriving, s.Ending, a, c)
	}
	return s
}

// littleTolerance is the share by which Little's law may be missed in any part.
const littleTolerance = 0.1

// tolerance is the deviation from Little's law that is allowed: requests across an end of
// the part are counted on one side of it and not on the other.
func (s *Steady) tolerance() float64 {
	return max(s.InFlight, 1) * (littleTolerance + 2*s.InFlight/float64(max(1, s.Requests)))
}

// inFlight is the mean number of requests in flight between two times.
func inFlight(all []moment, from, to int64) float64 {
	var sum int64
	for _, m := range all {
		sum += max(0, min(m.last, to)-max(m.started, from))
	}
	return float64(sum) / float64(to-from)
}
