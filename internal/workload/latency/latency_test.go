package latency

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestSummary holds the figures against a sorted list of the same values.
func TestSummary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.Int64Range(-1e6, 2e13), 1, 300).Draw(t, "ns")
		r := New(2 * time.Hour)
		var sum float64
		for i, v := range values {
			r.Add(v)
			values[i] = max(v, 0)
			sum += float64(values[i]) / 1e6
		}
		slices.Sort(values)
		s := r.Summary()
		n := len(values)
		if s.Count != int64(n) || s.Max != float64(values[n-1])/1e6 || math.Abs(s.Mean*float64(n)-sum) > 1e-6*sum+1e-9 {
			t.Fatalf("%+v of %v", s, values)
		}
		for q, got := range map[float64]float64{0.5: s.P50, 0.9: s.P90, 0.99: s.P99, 0.999: s.P999} {
			rank := max(1, int(q*float64(n)+0.5)) // the histogram's rule: the nearest
			want := min(float64(values[rank-1])/1e6, 2*3600e3)
			if math.Abs(got-want) > 0.001*want+0.002 {
				t.Fatalf("quantile %v is %v, want %v", q, got, want)
			}
		}
	})
	a, b := New(time.Second), New(time.Second)
	if a.Summary() != (Summary{}) {
		t.Error("nothing recorded has figures")
	}
	a.AddN(1500, 3)
	for range 3 {
		b.Add(1500)
	}
	if a.Summary() != b.Summary() {
		t.Errorf("%+v at once, %+v one by one", a.Summary(), b.Summary())
	}
}
