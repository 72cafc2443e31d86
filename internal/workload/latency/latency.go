// Package latency summarises latencies for reports: every tool of weir prints the same
// figures under the same names.
//
// A [Summary] has all figures of a recorder, as for a simulation without measurement error.
// A measurement has too few values for some of them: [Recorder.Judge] refuses those and
// adds confidence intervals to the others.
package latency

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Summary summarises one kind of latency, in milliseconds.
type Summary struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// Recorder collects one kind of latency. Percentiles are of microseconds at three digits;
// mean and maximum are exact.
type Recorder struct {
	hist *hdrhistogram.Histogram
	top  int64 // us
	sum  int64 // ns, for an exact mean
	max  int64 // ns
	// squares is the sum of squares, in ms², for an interval of the mean.
	squares float64
	loose   *loose // nil while every value is known
}

// New makes a recorder for latencies from 1 us to longest; a longer one stands
// at the edge in the percentiles.
func New(longest time.Duration) Recorder {
	top := longest.Microseconds()
	return Recorder{hist: hdrhistogram.New(1, top, 3), top: top}
}

// Add records ns; negative values count as 0.
func (r *Recorder) Add(ns int64) { r.AddN(ns, 1) }

// AddN records the same latency n times.
func (r *Recorder) AddN(ns, n int64) {
	ns = max(ns, 0)
	r.sum += ns * n
	ms := float64(ns) / 1e6
	r.squares += ms * ms * float64(n)
	r.max = max(r.max, ns)
	_ = r.hist.RecordValues(r.bucketed(ns), n) // in range
}

// bucketed returns the value of ns in the histograms, in microseconds.
func (r *Recorder) bucketed(ns int64) int64 { return min((ns+500)/1000, r.top) }

// Summary returns the figures so far.
func (r *Recorder) Summary() Summary {
	n := r.hist.TotalCount()
	if n == 0 {
		return Summary{}
	}
	most := float64(r.max) / 1e6
	// A bucket's upper edge may lie above the largest value recorded.
	at := func(q float64) float64 { return min(float64(r.hist.ValueAtQuantile(q))/1e3, most) }
	return Summary{
		Count: n,
		Mean:  float64(r.sum) / float64(n) / 1e6,
		P50:   at(50), P90: at(90), P99: at(99), P999: at(99.9),
		Max: most,
	}
}
