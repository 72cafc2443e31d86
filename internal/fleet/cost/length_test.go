package cost

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestLengthBuckets(t *testing.T) {
	last := 0
	for n := 1; n < 1<<20; n += 1 + n/64 {
		b := lengthBucket(n)
		if b < last || b > last+1+n/64 {
			t.Fatalf("%d is in bucket %d after %d", n, b, last)
		}
		last = b
	}
	if b := lengthBucket(math.MaxInt); b != lengthBuckets-1 {
		t.Errorf("the largest is in %d", b)
	}
}

func TestExpect(t *testing.T) {
	var l Lengths
	if got := l.Expect(0, 4096); got != lengthPrior {
		t.Errorf("nothing known: %v", got)
	}
	if got := l.Expect(0, 16); got != 16 {
		t.Errorf("nothing known, at most 16: %v", got)
	}
	// Half of them short, half long.
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		if r.IntN(2) == 0 {
			l.Add(20 + r.IntN(20))
		} else {
			l.Add(900 + r.IntN(200))
		}
	}
	for _, test := range []struct {
		soFar, limit int
		want         float64
	}{
		{0, 4096, 515}, {0, 100, 65}, {100, 4096, 1000}, {100, 500, 500}, {5000, 1 << 20, 10_000}, {5000, 6000, 6000},
	} {
		if got := l.Expect(test.soFar, test.limit); math.Abs(got/test.want-1) > 0.06 {
			t.Errorf("%d so far, at most %d: %.0f expected, want %.0f", test.soFar, test.limit, got, test.want)
		}
	}
	// Another kind of outputs takes its place.
	for range 1500 {
		l.Add(50)
	}
	if got := l.Expect(0, 4096); got > 70 {
		t.Errorf("%v after 1,500 of 50", got)
	}
}
