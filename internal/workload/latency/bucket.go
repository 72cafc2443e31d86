package latency

import "math"

// Bucket returns the index of the bucket that holds a quantile: the first one up to which
// at least a share of all values lies. counts are the numbers of values in each bucket, in
// ascending order of the values. ok is false if there are none.
//
// It serves histograms whose buckets are given, such as those of the Go runtime, of a
// metric, or of a counter without a lock. A [Recorder] has buckets of its own.
func Bucket[N int64 | uint64](counts []N, share float64) (i int, ok bool) {
	var n, seen N
	for _, c := range counts {
		n += c
	}
	want := max(1, math.Ceil(share*float64(n)))
	for i, c := range counts {
		if seen += c; float64(seen) >= want {
			return i, true
		}
	}
	return 0, false
}
