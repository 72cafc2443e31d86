package load

import (
	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latency summarises one kind of latency, in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p999"`
	Max   float64 `json:"max"`
}

// Recorded are microseconds from 1 us to 2 h at three digits.
const maxMicros = 2 * 3600 * 1e6

// recorder collects one kind of latency.
type recorder struct {
	hist *hdrhistogram.Histogram
	sum  int64 // ns, for an exact mean
	max  int64 // ns
}

func newRecorder() recorder { return recorder{hist: hdrhistogram.New(1, maxMicros, 3)} }

// add records ns. What lies outside the histogram's range is put at its edge;
// mean and maximum stay exact.
func (r *recorder) add(ns int64) {
	ns = max(ns, 0)
	r.sum += ns
	r.max = max(r.max, ns)
	// The clamped value is always in range.
	_ = r.hist.RecordValue(min((ns+500)/1000, maxMicros))
}

// summary gives the figures so far.
func (r *recorder) summary() Latency {
	n := r.hist.TotalCount()
	if n == 0 {
		return Latency{}
	}
	most := float64(r.max) / 1e6
	// A bucket's upper edge may lie above the largest value recorded.
	at := func(q float64) float64 { return min(float64(r.hist.ValueAtQuantile(q))/1e3, most) }
	return Latency{
		Count: n,
		Mean:  float64(r.sum) / float64(n) / 1e6,
		P50:   at(50), P90: at(90), P99: at(99), P999: at(99.9),
		Max: most,
	}
}
