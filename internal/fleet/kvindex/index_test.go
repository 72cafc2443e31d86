package kvindex

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// lru is a cache block by block: what Cache must be, without segments.
type lru struct {
	capacity int
	order    []Block // newest first
}

func (l *lru) place(blocks []Block) {
	l.order = slices.DeleteFunc(l.order, func(b Block) bool { return slices.Contains(blocks, b) })
	l.order = append(slices.Clone(blocks), l.order...)
	l.order = l.order[:min(len(l.order), max(l.capacity, 0))]
}

func (l *lru) resident(blocks []Block) int {
	n := slices.IndexFunc(blocks, func(b Block) bool { return !slices.Contains(l.order, b) })
	if n < 0 {
		n = len(blocks)
	}
	return n
}

// prompts draws ids from few letters, so that prompts share beginnings.
func prompts(blockTokens int) *rapid.Generator[[]Block] {
	return rapid.Custom(func(t *rapid.T) []Block {
		text := rapid.SliceOfN(rapid.Uint32Range(0, 1), 1, 12).Draw(t, "letters")
		var ids []uint32
		for _, l := range text {
			for range blockTokens {
				ids = append(ids, l)
			}
		}
		return AppendChain(nil, Root(1, "model"), ids, blockTokens)
	})
}

func TestMatchIsThatOfAnLRU(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := New(math.MaxInt64)
		var caches []*Cache
		var want []*lru
		join := func() {
			capacity := rapid.IntRange(0, 30).Draw(t, "capacity")
			caches = append(caches, x.Cache(int64(capacity)))
			want = append(want, &lru{capacity: capacity})
		}
		join()
		var m Matches
		t.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				if len(caches) < 4 {
					join()
				}
			},
			"drop": func(t *rapid.T) {
				if len(caches) > 1 {
					i := rapid.IntRange(0, len(caches)-1).Draw(t, "cache")
					caches[i].Drop()
					caches[i].Place(AppendChain(nil, Root(1), []uint32{1, 2}, 1), 0)
					caches, want = slices.Delete(caches, i, i+1), slices.Delete(want, i, i+1)
				}
			},
			"place": func(t *rapid.T) {
				i := rapid.IntRange(0, len(caches)-1).Draw(t, "cache")
				p := prompts(2).Draw(t, "prompt")
				caches[i].Place(p, 0)
				want[i].place(p)
			},
			"announce and cancel": func(t *rapid.T) {
				i := rapid.IntRange(0, len(caches)-1).Draw(t, "cache")
				p := prompts(2).Draw(t, "prompt")
				if want[i].capacity < len(want[i].order)+len(p) {
					t.Skip("what it evicts does not come back")
				}
				had := want[i].resident(p)
				caches[i].Place(p, 1000)
				want[i].place(p[:had])
				if got := x.Match(nil, p, 999).Of(caches[i].ID); got.Resident != int32(had) || got.Soon != int32(len(p)) || had < len(p) && got.Ready != 1000 {
					t.Fatalf("before it is computed: %+v, want %d of %d blocks resident", got, had, len(p))
				}
				if got := x.Match(nil, p, 1000).Of(caches[i].ID); got.Resident != int32(len(p)) {
					t.Fatalf("when it should have been computed: %+v", got)
				}
				caches[i].Cancel(p, 1000)
			},
			"truncate": func(t *rapid.T) {
				i := rapid.IntRange(0, len(caches)-1).Draw(t, "cache")
				p := prompts(2).Draw(t, "prompt")
				kept := rapid.IntRange(0, len(p)).Draw(t, "kept")
				caches[i].Truncate(p, kept)
				if got := x.Match(nil, p, 0).Of(caches[i].ID); int(got.Soon) > kept {
					t.Fatalf("%+v after it held no more than %d", got, kept)
				}
				// The blocks behind are orphaned; begin anew.
				old := caches[i]
				caches[i], want[i] = x.Cache(int64(want[i].capacity)), &lru{capacity: want[i].capacity}
				old.Drop()
			},
			"clear": func(t *rapid.T) {
				i := rapid.IntRange(0, len(caches)-1).Draw(t, "cache")
				if caches[i].Clear(); caches[i].Used() != 0 {
					t.Fatalf("%d blocks after it was cleared", caches[i].Used())
				}
				want[i] = &lru{capacity: want[i].capacity}
			},
			"resize": func(t *rapid.T) {
				i := rapid.IntRange(0, len(caches)-1).Draw(t, "cache")
				n := rapid.IntRange(0, 30).Draw(t, "capacity")
				caches[i].SetCapacity(int64(n))
				want[i].capacity = n
				want[i].place(nil)
			},
			"": func(t *rapid.T) {
				p := prompts(2).Draw(t, "asked")
				m = x.Match(m, p, 0)
				for i, c := range caches {
					if got := m.Of(c.ID); int(got.Resident) != want[i].resident(p) || got.Soon != got.Resident {
						t.Fatalf("cache %d has %+v, want %d of %d", i, got, want[i].resident(p), len(p))
					}
					if c.coming != 0 {
						t.Fatalf("cache %d: %d blocks are to come, and all have", i, c.coming)
					}
					if c.Used() != int64(len(want[i].order)) {
						t.Fatalf("cache %d: %d blocks used, want %d", i, c.Used(), len(want[i].order))
					}
				}
			},
		})
		for _, c := range caches {
			c.Drop()
		}
		if x.Bytes() != 0 || x.segments.Size() != 0 {
			t.Fatalf("%d bytes and %d segments are left of nothing", x.Bytes(), x.segments.Size())
		}
	})
}

// TestConcurrently has placements in many caches meet in the same segments, while
// others read. What all of them have at the end is known.
func TestConcurrently(t *testing.T) {
	x := New(math.MaxInt64)
	shared := AppendChain(nil, Root(1), make([]uint32, 64), 1)
	var places sync.WaitGroup
	done := make(chan struct{})
	var caches []*Cache
	for i := range 8 {
		c := x.Cache(100)
		caches = append(caches, c)
		places.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for range 3000 {
				n := r.IntN(len(shared))
				own := AppendChain(slices.Clone(shared[:n]), shared[n], []uint32{r.Uint32N(3), r.Uint32N(3)}, 1)
				switch r.IntN(8) {
				case 0:
					c.Truncate(own, r.IntN(len(own)))
				case 1:
					c.Place(own, 1)
					c.Cancel(own, 1)
				case 2:
					c.Place(own, 0)
					held := c.Hold(nil, own)
					c.Place(shared, 0)
					c.Release(held)
				default:
					c.Place(own, 0)
				}
			}
			c.Place(shared, 0)
		})
	}
	go func() {
		defer close(done)
		places.Wait()
	}()
	var reads sync.WaitGroup
	for range 2 {
		reads.Go(func() {
			var m Matches
			for {
				select {
				case <-done:
					return
				default:
				}
				m = x.Match(m, shared, 0)
				for _, one := range m {
					if int(one.Soon) > len(shared) || one.Resident > one.Soon {
						t.Errorf("%+v of %d blocks", one, len(shared))
						return
					}
				}
			}
		})
	}
	reads.Wait()
	m := x.Match(nil, shared, 0)
	for _, c := range caches {
		if got := m.Of(c.ID); int(got.Resident) != len(shared) {
			t.Errorf("cache %d: %+v", c.ID, got)
		}
		if c.coming != 0 {
			t.Errorf("cache %d: %d blocks are to come, and all have", c.ID, c.coming)
		}
		c.Drop()
	}
	if x.Bytes() != 0 || x.segments.Size() != 0 {
		t.Errorf("%d bytes and %d segments are left of nothing", x.Bytes(), x.segments.Size())
	}
}

// TestPartsOfASegment has prompts that use less of a segment than there is: what they
// leave out stays as old as it was.
func TestPartsOfASegment(t *testing.T) {
	chain := func(letters string) []Block {
		var ids []uint32
		for _, l := range letters {
			ids = append(ids, uint32(l))
		}
		return AppendChain(nil, Root(1), ids, 1)
	}
	for _, test := range []struct {
		placed   []string
		capacity int64
		want     map[string]int32
	}{
		{[]string{"abcd", "xy", "ab"}, 5, map[string]int32{"abcd": 3, "xy": 2}},
		{[]string{"abcd", "xy", "ab"}, 3, map[string]int32{"abcd": 2, "xy": 1}},
		{[]string{"abcd", "ab", "xy", "abc"}, 5, map[string]int32{"abcd": 3, "xy": 2}},
		{[]string{"abcd", "ab", "xy", "abc"}, 4, map[string]int32{"abcd": 3, "xy": 1}},
		{[]string{"abcd", "a", "ab", "xy", "abcd"}, 4, map[string]int32{"abcd": 4, "xy": 0}},
		{[]string{"ab", "abcd", "xy", "abcz"}, 6, map[string]int32{"abcd": 3, "abcz": 4, "xy": 2}},
	} {
		x := New(math.MaxInt64)
		c := x.Cache(100)
		for _, p := range test.placed {
			c.Place(chain(p), 0)
		}
		c.SetCapacity(test.capacity)
		for p, want := range test.want {
			if got := x.Match(nil, chain(p), 0).Of(c.ID).Resident; got != want {
				t.Errorf("%v in %d blocks: %d of %s, want %d", test.placed, test.capacity, got, p, want)
			}
		}
	}
}

// letters are a chain of blocks of one letter each.
func letters(text string) []Block {
	var ids []uint32
	for _, l := range text {
		ids = append(ids, uint32(l))
	}
	return AppendChain(nil, Root(1), ids, 1)
}

// TestHold has requests use what is old: it is evicted when they have ended, and what is
// being generated takes its room from the rest.
func TestHold(t *testing.T) {
	x := New(math.MaxInt64)
	c := x.Cache(10)
	has := func(text string) int { return int(x.Match(nil, letters(text), 0).Of(c.ID).Resident) }
	want := func(when string, all map[string]int) {
		t.Helper()
		for text, n := range all {
			if got := has(text); got != n {
				t.Errorf("%s: %d of %s, want %d", when, got, text, n)
			}
		}
	}
	c.Place(letters("abcd"), 0)
	first := c.Hold(nil, letters("abcd"))
	second := c.Hold(nil, letters("abcd"))
	c.Place(letters("efg"), 0)
	c.Place(letters("hijk"), 0)
	if c.InUse() != 4 {
		t.Errorf("%d blocks are in use", c.InUse())
	}
	want("held", map[string]int{"abcd": 4, "efg": 2, "hijk": 4})
	c.Release(first)
	c.Place(letters("lmn"), 0)
	want("held by one", map[string]int{"abcd": 4, "efg": 0, "hijk": 3, "lmn": 3})
	c.SetGrowing(2)
	want("beside what grows", map[string]int{"abcd": 4, "hijk": 1, "lmn": 3})
	c.SetGrowing(0)
	c.Release(second)
	c.Place(letters("opqrs"), 0)
	c.Place(letters("t"), 0)
	want("released", map[string]int{"abcd": 1, "opqrs": 5, "t": 1, "lmn": 3})
	// Where all is held something goes nevertheless, and the book of it is kept.
	third, fourth := c.Hold(nil, letters("opqrs")), c.Hold(nil, letters("lmn"))
	c.SetCapacity(3)
	if c.Used() != 3 {
		t.Errorf("%d blocks in 3", c.Used())
	}
	c.Place(letters("opqrs"), 0)
	c.Release(third)
	c.Release(fourth)
	if len(c.held) != 0 || c.InUse() != 0 {
		t.Errorf("%v are held by nobody, %d blocks in use", c.held, c.InUse())
	}
	c.Drop()
	c.Release(c.Hold(nil, letters("ab")))
	if x.Bytes() != 0 {
		t.Errorf("%d bytes are left of nothing", x.Bytes())
	}
}

// TestComing has prompts be on their way: they evict what is old when they are there, and
// nothing where they do not come.
func TestComing(t *testing.T) {
	x := New(math.MaxInt64)
	c := x.Cache(8)
	want := func(when string, all map[string]int) {
		t.Helper()
		for text, n := range all {
			if got := int(x.Match(nil, letters(text), 0).Of(c.ID).Resident); got != n {
				t.Errorf("%s: %d of %s, want %d", when, got, text, n)
			}
		}
	}
	c.Place(letters("abcd"), 0)
	c.Place(letters("efgh"), 0)
	c.Place(letters("efxyz"), 100)
	c.Place(letters("ijkl"), 200)
	want("on their way", map[string]int{"abcd": 4, "efgh": 4, "efxyz": 2, "ijkl": 0})
	c.Place(letters("efxyz"), 0)
	want("one has come", map[string]int{"abcd": 1, "efgh": 4, "efxyz": 5, "ijkl": 0})
	c.Cancel(letters("ijkl"), 200)
	want("the other does not", map[string]int{"abcd": 1, "efgh": 4, "efxyz": 5})
	if c.coming != 0 || c.Used() != 8 {
		t.Errorf("%d blocks are to come, %d are used", c.coming, c.Used())
	}
}

func TestRootsTellPartsApart(t *testing.T) {
	seen := map[Block]string{}
	for _, parts := range [][]string{{}, {""}, {"a"}, {"a", ""}, {"", "a"}, {"a", "b"}, {"ab"}, {"ab", ""}} {
		r := Root(7, parts...)
		if other, ok := seen[r]; ok {
			t.Errorf("%q and %s have one root", parts, other)
		}
		seen[r] = fmt.Sprintf("%q", parts)
	}
	if Root(1, "a") == Root(2, "a") {
		t.Error("the seed does not count")
	}
}

func TestBytesAreBounded(t *testing.T) {
	const most = 1 << 20
	x := New(most)
	c := x.Cache(math.MaxInt64)
	for i := range uint32(20_000) {
		c.Place(AppendChain(nil, Root(1), []uint32{i, i, i}, 1), 0)
		if x.Bytes() > most {
			t.Fatalf("%d bytes after %d prompts", x.Bytes(), i+1)
		}
	}
	if x.Bytes() < most/2 {
		t.Fatalf("%d bytes only", x.Bytes())
	}
}
