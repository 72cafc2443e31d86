package timeline

import "testing"

// BenchmarkAppend is the line of a request that a token engine has served, the best of four.
func BenchmarkAppend(b *testing.B) {
	rec := served(1, 84_000_123_456_789)
	var line []byte
	b.ReportAllocs()
	for b.Loop() {
		line = Append(line[:0], rec, "0123456789ab-cdef")
	}
	b.ReportMetric(float64(len(line)), "bytes")
}
