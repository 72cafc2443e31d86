package cost

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

// TestTransfer has transfers of a link of some latency and bandwidth, of which a few wait for
// something else.
func TestTransfer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fixed, token := rapid.Float64Range(0, 50).Draw(t, "fixed"), rapid.Float64Range(0, 0.1).Draw(t, "token")
		var x Transfer
		for i := range 400 {
			n := rapid.IntRange(1, 20_000).Draw(t, "n")
			ms := fixed + token*float64(n)
			if i%20 == 7 {
				ms += 100
			}
			x.Add(n, ms)
		}
		f, k := x.Expect()
		for _, n := range []float64{1000, 10_000} {
			want, got := fixed+token*n, f+k*n
			if math.Abs(got-want) > 12+0.1*want {
				t.Fatalf("%v tokens are expected to take %.1f ms, and take %.1f", n, got, want)
			}
		}
		if f < 0 || k < 0 {
			t.Fatalf("%v, %v", f, k)
		}
	})
}

// TestTransferPrior has none yet, and then one that says nothing.
func TestTransferPrior(t *testing.T) {
	var x Transfer
	x.Add(-1, 5)
	x.Add(5, math.NaN())
	if fixed, token := x.Expect(); fixed != transferFixed || token != transferToken {
		t.Errorf("%v, %v", fixed, token)
	}
	x.Add(1000, 1e9) // nothing learns so much of one
	if fixed, token := x.Expect(); fixed+1000*token > 4*(transferFixed+1000*transferToken) {
		t.Errorf("%v, %v after one that took for ever", fixed, token)
	}
}
