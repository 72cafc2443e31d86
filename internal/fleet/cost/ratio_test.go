package cost

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// TestRatio learns any tokenizer's ratio of prompts of any lengths, of which some have
// counts that are nonsense.
func TestRatio(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		truth := rapid.Float64Range(0.1, 0.8).Draw(t, "truth")
		x := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		var r Ratio
		for i := range 120 {
			bytes := 200 + int(math.Exp(x.Float64()*8))
			tokens := float64(bytes) * truth * (0.9 + 0.2*x.Float64())
			switch {
			case i%20 == 7:
				tokens *= 5
			case i%20 == 17:
				tokens /= 5
			}
			r.Add(bytes, int(math.Ceil(tokens)))
		}
		if got := r.PerByte() / truth; got < 0.75 || got > 1.33 {
			t.Fatalf("learned %.3f of %.3f", r.PerByte(), truth)
		}
	})
}

// TestRatioExact is of prompts that are all alike.
func TestRatioExact(t *testing.T) {
	var r Ratio
	if r.PerByte() != ratioPrior || r.Tokens(4000) != 1000 || r.Tokens(0) != 1 {
		t.Errorf("the prior is %v", r.PerByte())
	}
	for _, truth := range []float64{0.5, 0.2} { // a change is followed
		for range 60 {
			r.Add(10_000, int(10_000*truth))
		}
		if got := r.PerByte(); math.Abs(got-truth) > 0.03*truth {
			t.Errorf("learned %.3f of %v", got, truth)
		}
	}
}

// TestRatioOfNonsense leaves out what no tokenizer counts.
func TestRatioOfNonsense(t *testing.T) {
	var r Ratio
	for _, at := range [][2]int{{0, 5}, {5, 0}, {1 << 20, 1}, {1, 1 << 20}, {-1, -1}, {1000, math.MaxInt}} {
		r.Add(at[0], at[1])
	}
	if r.PerByte() != ratioPrior {
		t.Errorf("learned %v", r.PerByte())
	}
}
