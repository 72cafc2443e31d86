package tokenizer

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSplitCache has encoders read and write the same entries at the same time: what one finds
// is what belongs to its piece.
func TestSplitCache(t *testing.T) {
	c := newSplitCache()
	piece := func(i int) (k pieceKey, n int, ids []uint32) {
		for j := range splitIDs {
			ids = append(ids, uint32(1000*i+j))
		}
		return pieceKey{uint64(i), uint64(i)}, 8, ids
	}
	const pieces = 4
	done := make(chan int)
	for g := range uint64(4) {
		go func() {
			r, found := rand.New(rand.NewPCG(g, g)), 0
			defer func() { done <- found }()
			buf := []uint32{5}
			for range 500_000 {
				k, n, ids := piece(r.IntN(pieces))
				hash := r.Uint64N(2) << (64 - splitWidth)
				got, ok := c.get(buf, k, hash, n)
				if ok {
					found++
					if !slices.Equal(got[1:], ids) || got[0] != 5 {
						t.Errorf("got %v, want 5 and %v", got, ids)
						return
					}
				}
				c.put(k, hash, n, ids)
			}
		}()
	}
	found := 0
	for range 4 {
		found += <-done
	}
	if found == 0 {
		t.Fatal("nothing was found")
	}
}

// TestSplitCacheForgets clears a cache more often than it has ages: nothing of before is found
// again, and what is put in later is.
func TestSplitCacheForgets(t *testing.T) {
	c := newSplitCache()
	old, k := pieceKey{lo: 1}, pieceKey{lo: 2}
	const elsewhere = 8 << (64 - splitWidth)
	c.put(old, elsewhere, 3, []uint32{9})
	for i := range 3 * splitAges {
		c.clear()
		if _, ok := c.get(nil, old, elsewhere, 3); ok {
			t.Fatalf("found after %d times", i+1)
		}
		c.put(k, 0, 3, []uint32{7})
		if _, ok := c.get(nil, k, 0, 3); !ok {
			t.Fatalf("not found after %d times", i+1)
		}
	}
	if c.put(k, 0, 3, []uint32{1, 2, 3, 4}) || c.put(k, 0, 3, []uint32{1 << 24}) {
		t.Error("it took more than it has room for")
	}
}

// TestSplitCacheOther checks that a piece whose entry another one has gets the entry beside it.
func TestSplitCacheOther(t *testing.T) {
	c := newSplitCache()
	const hash = 6 << (64 - splitWidth)
	for i := range uint64(2) {
		c.put(pieceKey{lo: i + 1}, hash, 4, []uint32{uint32(i)})
	}
	for i := range uint64(2) {
		if ids, ok := c.get(nil, pieceKey{lo: i + 1}, hash, 4); !ok || ids[0] != uint32(i) {
			t.Errorf("piece %d: %v, %v", i, ids, ok)
		}
	}
}
