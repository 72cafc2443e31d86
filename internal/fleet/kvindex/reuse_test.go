package kvindex

import (
	"math"
	"math/rand/v2"
	"testing"
)

// document is a prompt of so many blocks that no other one shares.
func document(id uint32, blocks int) []Block {
	ids := make([]uint32, blocks)
	ids[0] = id
	return AppendChain(nil, Root(1), ids, 1)
}

// TestReuse has prompts come again after they were evicted, or not, or from another cache,
// or so late that a cache of twice the size would have evicted them, too.
func TestReuse(t *testing.T) {
	const blocks = 500 // of a cache of 10 prompts
	for _, test := range []struct {
		name string
		next func(r *rand.Rand, n uint32) uint32
		want float64
		off  float64
	}{
		{"never again", func(_ *rand.Rand, n uint32) uint32 { return n }, 0, 0},
		{"in turn, half as many again as fit", func(_ *rand.Rand, n uint32) uint32 { return n % 15 }, 1, 0.02},
		{"in turn, four times as many as fit", func(_ *rand.Rand, n uint32) uint32 { return n % 40 }, 0, 0},
		{"every other one never again", func(_ *rand.Rand, n uint32) uint32 {
			if n%2 == 0 {
				return n
			}
			return 1_000_001 + n/2%8
		}, 0.5, 0.1},
	} {
		x := New(math.MaxInt64)
		c := x.Cache(10 * blocks)
		x.Cache(10 * blocks) // where nothing is
		r := rand.New(rand.NewPCG(1, 2))
		for n := range uint32(400) {
			c.Place(document(test.next(r, n), blocks), 0)
			if n == 10 && c.Reuse() != 0 {
				t.Errorf("%s: %v after the first that were evicted", test.name, c.Reuse())
			}
		}
		if got := c.Reuse(); math.Abs(got-test.want) > test.off {
			t.Errorf("%s: %.3f of what is evicted is asked for again, want %v", test.name, got, test.want)
		}
	}
}

// TestReuseElsewhere has each prompt in two caches: what one evicts is not lost while the
// other has it.
func TestReuseElsewhere(t *testing.T) {
	x := New(math.MaxInt64)
	small, large := x.Cache(2000), x.Cache(20_000)
	for n := range uint32(300) {
		large.Place(document(n%15, 500), 0)
		small.Place(document(n%15, 500), 0)
	}
	if got := small.Reuse(); got != 0 {
		t.Errorf("%.3f of what is evicted here and is there is said to be missed", got)
	}
	large.Drop()
	for n := range uint32(300) {
		small.Place(document(n%6, 500), 0)
	}
	if got := small.Reuse(); got < 0.8 {
		t.Errorf("%.3f of what is evicted and nowhere else is said to be missed", got)
	}
}

// TestHad has a cache say what it had of a prompt before it was placed.
func TestHad(t *testing.T) {
	x := New(math.MaxInt64)
	c := x.Cache(100)
	for _, test := range []struct {
		text  string
		ready int64
		want  Had
	}{
		{"abcd", 0, Had{}},
		{"abxy", 50, Had{2, 2}},
		{"abxyz", 60, Had{2, 4}},
		{"abxy", 0, Had{2, 4}},
		{"abxyz", 0, Had{4, 5}},
		{"abcdefg", 0, Had{4, 4}},
		{"bcd", 0, Had{}},
	} {
		if got := c.Place(letters(test.text), test.ready); got != test.want {
			t.Errorf("%s: %+v, want %+v", test.text, got, test.want)
		}
	}
}
