package workload

import (
	"iter"
	"math"
)

// Process describes an arrival process as it was realised.
type Process struct {
	// Rate is arrivals per second.
	Rate float64 `json:"rate"`
	// CV is the gaps' coefficient of variation: 0 for constant arrivals, 1 for a
	// Poisson process.
	CV float64 `json:"gap_cv"`
	// Lag1 is the correlation of each gap with the next: 0 for both.
	Lag1 float64 `json:"gap_lag1"`
}

// Describe returns the figures of arrivals in order, in seconds. They are zero
// where there are too few.
func Describe(arrivals iter.Seq[float64]) Process {
	var n, pairs int
	var first, last, before, sum, sumSq, products float64
	for at := range arrivals {
		n++
		if n == 1 {
			first, last = at, at
			continue
		}
		gap := at - last
		sum += gap
		sumSq += gap * gap
		if n > 2 {
			products += gap * before
			pairs++
		}
		last, before = at, gap
	}
	gaps := float64(n - 1)
	if gaps < 2 || last <= first {
		return Process{}
	}
	mean := sum / gaps
	p := Process{Rate: 1 / mean}
	variance := sumSq/gaps - mean*mean
	if variance <= mean*mean*1e-12 {
		return p // constant: a correlation of rounding errors means nothing
	}
	p.CV = math.Sqrt(variance) / mean
	p.Lag1 = (products/float64(pairs) - mean*mean) / variance
	return p
}

// Dispersion returns the index of dispersion of arrivals in order, in seconds: the variance
// of the number of arrivals in a window of that many seconds, divided by its mean. It is 1
// for a Poisson process, 0 for constant arrivals, and above 1 for bursts, even for those
// that the gaps alone do not show. Windows are counted from the first arrival; the
// incomplete last one is left out. It is 0 if fewer than two windows are complete.
func Dispersion(arrivals iter.Seq[float64], window float64) float64 {
	var windows, sum, sumSq, count float64
	var end float64
	started := false
	for at := range arrivals {
		if !started {
			started, end = true, at+window
		}
		for ; at >= end; end += window {
			windows++
			sum += count
			sumSq += count * count
			count = 0
			if skipped := math.Floor((at - end) / window); skipped > 1 { // empty windows
				windows += skipped - 1
				end += window * (skipped - 1)
			}
			if end+window == end {
				return 0 // the window is nothing beside the time
			}
		}
		count++
	}
	if windows < 2 || sum == 0 {
		return 0
	}
	mean := sum / windows
	return (sumSq/windows - mean*mean) / mean
}
