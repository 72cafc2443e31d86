package timeline

import (
	"math"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// Numbers are written as strconv writes them, wherever the memory ends.
func TestAppendInt(t *testing.T) {
	check := func(t interface{ Errorf(string, ...any) }, v int64, room int) {
		b := append(make([]byte, 0, room+1), '-')
		if got, want := string(appendInt(b, v)), "-"+strconv.FormatInt(v, 10); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	for most := int64(1); most > 0 && most < math.MaxInt64/10; most *= 10 {
		for _, v := range []int64{most - 1, most, most + 1, 9 * most, -most} {
			check(t, v, 0)
		}
	}
	check(t, math.MaxInt64, 3)
	check(t, math.MinInt64, 3)
	rapid.Check(t, func(t *rapid.T) {
		check(t, rapid.Int64().Draw(t, "v"), rapid.IntRange(0, 24).Draw(t, "room"))
		check(t, rapid.Int64Range(0, 1e6).Draw(t, "small"), 0)
	})
}

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
