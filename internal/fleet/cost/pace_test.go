package cost

import (
	"math"
	"math/rand/v2"
	"testing"
)

// briskEngine is an engine that answers one request of two tokens after the other, in less than a millisecond
// each.
type briskEngine struct {
	rank *Rank
	r    *rand.Rand
	now  int64
	fits int // that the rank has published
}

// quick is how fast it is.
var quick = Coefficients{Step: 0.5, Token: 0.001, Pair: 1e-8, Decode: 0.1, Decoder: 0.001}

func newBrisk() *briskEngine {
	return &briskEngine{rank: NewModel(Typical).Join(0, 0), r: rand.New(rand.NewPCG(5, 8)), now: 1}
}

// serve has the engine answer n requests.
func (e *briskEngine) serve(n int, truth Coefficients) {
	for range n {
		length := 20 + e.r.IntN(400)
		before := e.rank.learned.Load()
		b := e.rank.Book(e.now, Work{New: length, Length: length, Output: 2})
		e.now += int64(truth.Of(Prefill(float64(length), float64(length), DefaultBudget)) * millisecond)
		b.First(e.now, -1, 0)
		e.now += int64((truth.Decode + truth.Decoder) * millisecond)
		e.rank.Tokens(e.now, 1)
		b.End(e.now, 2)
		e.now += 1000
		if e.rank.learned.Load() != before {
			e.fits++
		}
	}
}

// off is by how much the rank's prompts of some lengths take longer or shorter than is predicted.
func (e *briskEngine) off(truth Coefficients) (worst float64) {
	c, _ := e.rank.Coefficients()
	for _, n := range []float64{50, 150, 400} {
		a := Prefill(n, n, DefaultBudget)
		worst = max(worst, math.Abs(c.Of(a)/truth.Of(a)-1))
	}
	return worst
}

// TestBriskEngine has an engine answer thousands of requests a second. The rank's coefficients are
// found anew at most every pace once it knows the engine, and follow it when it changes.
func TestBriskEngine(t *testing.T) {
	e := newBrisk()
	e.serve(2*kept, quick)
	known := e.off(quick)
	e.fits = 0
	began := e.now
	e.serve(20_000, quick)
	most := int((e.now-began)/pace) + 1
	if e.fits > most || e.fits < most/2 {
		t.Errorf("%d fits in %.1f ms with 20000 requests, want at most %d", e.fits, float64(e.now-began)/millisecond, most)
	}
	if off := e.off(quick); off > max(known, 0.05) {
		t.Errorf("off by %.3f, and by %.3f after %d requests", off, known, 2*kept)
	}
	slower := quick
	slower.Step, slower.Token = 3*quick.Step, 3*quick.Token
	began = e.now
	for e.off(slower) > 0.1 && e.now-began < 1000*millisecond {
		e.serve(1, slower)
	}
	if took := float64(e.now-began) / millisecond; took > 100 {
		t.Errorf("an engine that has become slower is known after %.1f ms", took)
	}
	if _, seen := e.rank.Coefficients(); seen < 20_000 {
		t.Errorf("%d intervals seen", seen)
	}
}

// BenchmarkBriskRequest is what the books of a request cost that is alone at such an engine.
func BenchmarkBriskRequest(b *testing.B) {
	e := newBrisk()
	e.serve(2*kept, quick)
	b.ReportAllocs()
	b.ResetTimer()
	e.serve(b.N, quick)
}
