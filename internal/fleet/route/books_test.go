package route

import (
	"math"
	"testing"

	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
)

func books(f *engine.Facts) *Books {
	return NewBooks(cost.NewModel(cost.Typical), kvindex.New(1<<30), new(Shares), f, 1)
}

// document is a prompt of so many tokens that no other one shares.
func document(id uint32, tokens int) []kvindex.Block {
	ids := make([]uint32, tokens)
	ids[0] = id
	return kvindex.AppendChain(nil, kvindex.Root(1), ids, BlockTokens)
}

// TestSays has an engine tell what it holds when it joins, or later, or another size.
func TestSays(t *testing.T) {
	b := books(&engine.Facts{})
	if b.KV() != 0 || b.Capacity() != usualKV {
		t.Errorf("%d said, %d believed of one that says nothing", b.KV(), b.Capacity())
	}
	for i := range uint32(20) {
		b.Place(document(i, 10_000), 0)
	}
	for _, kv := range []int{100_000, 100_000, 50_000, 0, -3} {
		b.Says(&engine.Facts{KVTokens: kv, StepTokens: 2048})
		want := int64(50_000)
		if kv == 100_000 {
			want = 100_000
		}
		if b.KV() != want || b.Capacity() != want || b.Cache.Used() != want/BlockTokens || b.Rank.Budget() != 2048 {
			t.Errorf("says %d: %d said, %d believed, %d blocks are there, steps of %d", kv, b.KV(), b.Capacity(), b.Cache.Used(), b.Rank.Budget())
		}
	}
}

// TestReported has engines that do not say how much they hold be given documents of a few
// popular ones and many others. What they report tells how much that is.
func TestReported(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: it runs without the race detector")
	}
	const size = 4096
	for _, holds := range []int64{64 << 10, 512 << 10, 4 << 20} {
		for _, page := range []int{16, 256} {
			b := books(&engine.Facts{})
			truth := kvindex.New(1 << 30).Cache(holds / BlockTokens)
			at := uint32(1)
			for i := range 6000 {
				at = at*1664525 + 1013904223
				u := float64(at) / math.MaxUint32
				id := uint32(math.Pow(2000, u)) // of 2,000 documents, the more rarely the higher
				if i%2 == 0 {
					id = uint32(1e6) + uint32(i)
				}
				p := document(id, size)
				has := int(truth.Place(p, 0).Sure) * BlockTokens / page * page
				b.Reported(b.Place(p, 0), size, has)
			}
			if ratio := float64(b.Capacity()) / float64(holds); ratio < 0.6 || ratio > 1.7 {
				t.Errorf("it holds %d tokens in pages of %d, and is believed to hold %d", holds, page, b.Capacity())
			}
		}
	}
}

// TestReportedNonsense has engines claim what cannot be. What they are believed to hold
// stays within its bounds, and changes by little with each.
func TestReportedNonsense(t *testing.T) {
	for _, test := range []struct {
		cached, prompt int
		want           int64
	}{
		{math.MaxInt, 1 << 12, mostKV}, {1 << 12, 1 << 12, mostKV}, {0, 1 << 12, fewestKV}, {math.MinInt, 1 << 12, fewestKV},
		{100, 0, usualKV}, {100, -1, usualKV},
	} {
		b := books(&engine.Facts{})
		had := kvindex.Had{Sure: 1 << 12 / BlockTokens, Held: 1 << 12 / BlockTokens}
		if test.want == mostKV {
			had = kvindex.Had{}
		}
		for range 100 {
			was := b.Capacity()
			b.Reported(had, test.prompt, test.cached)
			if now := b.Capacity(); float64(now) > 1.126*float64(was) || float64(now) < 0.874*float64(was) {
				t.Fatalf("%d of %d: %d became %d by one report", test.cached, test.prompt, was, now)
			}
		}
		if b.Capacity() != test.want {
			t.Errorf("%d of %d: believed to hold %d, want %d", test.cached, test.prompt, b.Capacity(), test.want)
		}
	}
	b := books(&engine.Facts{KVTokens: 1 << 20})
	b.Reported(kvindex.Had{Sure: 100, Held: 100}, 1600, 0)
	if b.Capacity() != 1<<20 {
		t.Errorf("one that says it holds %d is believed to hold %d", 1<<20, b.Capacity())
	}
}
