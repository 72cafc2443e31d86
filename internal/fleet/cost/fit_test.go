package cost

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The median is that of the sorted values, whichever of them are equal.
func TestMedian(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.OneOf(rapid.Float64Range(-3, 3), rapid.SampledFrom([]float64{0, 1, -1, 2, math.Inf(1)})), 0, kept).Draw(t, "values")
		want := make([]float64, max(len(values), 1))
		for i, v := range values {
			want[i] = math.Abs(v)
		}
		slices.Sort(want)
		if got := median(values); got != want[len(values)/2] {
			t.Errorf("%v of %v", got, values)
		}
	})
}

// BenchmarkObserve is an observation of a prompt, which each request brings once.
func BenchmarkObserve(b *testing.B) {
	truth := Coefficients{Step: 3, Token: 0.02, Pair: 1e-6, Decode: 5, Decoder: 0.1}
	f, r := NewFit(Coefficients{Step: 5, Token: 0.05, Pair: 1e-6, Decode: 10, Decoder: 0.1}), rand.New(rand.NewPCG(1, 2))
	for b.Loop() {
		n := float64(1 + r.IntN(2000))
		a := Prefill(n, n, 2048)
		f.Observe(Prefilling, a, truth.Of(a)*(1+0.05*r.Float64()), 0.1, 1)
	}
}
