package metrics

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"pgregory.net/rapid"
)

// native returns the native buckets that hold anything, by their indices.
func native(h *dto.Histogram) map[int]int64 {
	by := map[int]int64{}
	at, next, count := 0, 0, int64(0)
	for _, span := range h.GetPositiveSpan() {
		at += int(span.GetOffset())
		for range span.GetLength() {
			if count += h.GetPositiveDelta()[next]; count != 0 {
				by[at] = count
			}
			at, next = at+1, next+1
		}
	}
	return by
}

func written(t rapid.TB, m prometheus.Metric) *dto.Histogram {
	t.Helper()
	var to dto.Metric
	if err := m.Write(&to); err != nil {
		t.Fatal(err)
	}
	return to.GetHistogram()
}

// Counts are in the buckets in which client_golang would count them, tallied or not.
func TestDistribution(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		of := rapid.SampledFrom([]*scale{scaleSeconds, scaleShort, scaleCount}).Draw(t, "scale")
		other := newDistribution(of)
		d := newDistribution(of)
		reference := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x", Buckets: []float64{1}, NativeHistogramBucketFactor: 1.1, NativeHistogramZeroThreshold: math.Exp2(float64(of.exponent))})
		most := int64(math.Exp2(float64(of.exponent+doublings)) / of.unit)
		var values []float64
		var tally Tally
		for range rapid.IntRange(0, 50).Draw(t, "n") {
			v := rapid.Int64Range(0, most).Draw(t, "value") >> rapid.IntRange(0, 40).Draw(t, "less")
			n := rapid.IntRange(1, 3).Draw(t, "times")
			for range n {
				reference.Observe(float64(v) * of.unit)
				values = append(values, float64(v)*of.unit)
			}
			switch rapid.IntRange(0, 3).Draw(t, "way") {
			case 0:
				d.Add(v, n)
			case 1:
				tally.Add(other, v, n)
				tally.Add(d, v, n)
			case 2:
				tally.Add(d, v, n)
				tally.Tell()
			default:
				tally.Add(d, v, n)
			}
		}
		tally.Tell()
		got, want := written(t, d.metric(prometheus.NewDesc("x", "", nil, nil))), written(t, reference)
		if diff := cmp.Diff(native(want), native(got)); diff != "" || got.GetZeroCount() != want.GetZeroCount() || got.GetSchema() != want.GetSchema() || got.GetZeroThreshold() != want.GetZeroThreshold() {
			t.Fatalf("%v, %d nothing of %d; %s", got, got.GetZeroCount(), want.GetZeroCount(), diff)
		}
		if got.GetSampleCount() != want.GetSampleCount() || math.Abs(got.GetSampleSum()-want.GetSampleSum()) > 1e-6*math.Abs(want.GetSampleSum()) {
			t.Fatalf("%d adding up to %v, want %d and %v", got.GetSampleCount(), got.GetSampleSum(), want.GetSampleCount(), want.GetSampleSum())
		}
		if len(got.GetBucket()) != of.last-of.first+1 {
			t.Fatalf("%d classic buckets", len(got.GetBucket()))
		}
		for _, b := range got.GetBucket() {
			n := uint64(0)
			for _, v := range values {
				if v <= b.GetUpperBound() {
					n++
				}
			}
			if b.GetCumulativeCount() != n {
				t.Fatalf("%d at most %v, want %d", b.GetCumulativeCount(), b.GetUpperBound(), n)
			}
		}
	})
}

// Adding costs the output path nanoseconds, and nothing is allocated.
func BenchmarkDistribution(b *testing.B) {
	values := make([]int64, 1024)
	for i := range values {
		values[i] = 20_000_000 + int64(i)*7919
	}
	b.Run("tally", func(b *testing.B) {
		d, t, i := newDistribution(scaleSeconds), Tally{}, 0
		b.ReportAllocs()
		for b.Loop() {
			t.Add(d, values[i%len(values)], 1)
			if i++; i%32 == 0 {
				t.Tell()
			}
		}
	})
	b.Run("add", func(b *testing.B) {
		d, i := newDistribution(scaleSeconds), 0
		for b.Loop() {
			d.Add(values[i%len(values)], 1)
			i++
		}
	})
	b.Run("latency", func(b *testing.B) {
		l, i := newLatencies("x", "").with(), 0
		b.ReportAllocs()
		for b.Loop() {
			l.observe(values[i%len(values)])
			i++
		}
	})
	b.Run("client_golang", func(b *testing.B) {
		h, i := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x", Buckets: durations[:], NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 160}), 0
		for b.Loop() {
			h.Observe(float64(values[i%len(values)]) / 1e9)
			i++
		}
	})
}
