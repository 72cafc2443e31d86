package kvevents

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/fleet/kvindex"
)

const index = 16

func root(lora, salt string) kvindex.Block { return kvindex.Root(0, "model", lora, salt) }

func newRank(replays bool) *Rank {
	return New(Options{IndexTokens: index, Root: root, Replays: replays, Budget: NewBudget(math.MaxInt64)})
}

func chainOf(lora string, ids []uint32) []kvindex.Block {
	return kvindex.AppendChain(nil, root(lora, ""), ids, index)
}

func idsFrom(seed, n int) []uint32 {
	r := rand.New(rand.NewPCG(uint64(seed), 1))
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = r.Uint32N(150_000)
	}
	return ids
}

// named returns the blocks of a prompt SGLang's names.
func named(ids []uint32, size int) (names []uint64) {
	var digest []byte
	for ; len(ids) > 0; ids = ids[min(size, len(ids)):] {
		var h uint64
		h, digest = chainedHash(digest, ids[:min(size, len(ids))])
		names = append(names, h)
	}
	return names
}

// prompt is the event of a whole prompt.
func prompt(ids []uint32, size int) Event {
	n := len(ids) / size
	return Event{Kind: Stored, Hashes: named(ids[:n*size], size), Tokens: ids[:n*size], BlockSize: size}
}

// The names of blocks are those that are published for SGLang's.
func TestHashVectors(t *testing.T) {
	b, err := os.ReadFile("testdata/hash-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Name      string
		Tokens    []uint32
		BlockSize int     `json:"block_size"`
		Want      []int64 `json:"expected_i64_hashes"`
	}
	if err := json.Unmarshal(b, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors) != 7 {
		t.Errorf("%d vectors", len(vectors))
	}
	for _, v := range vectors {
		var got []int64
		for _, h := range named(v.Tokens, v.BlockSize) {
			got = append(got, int64(h))
		}
		if !slices.Equal(got, v.Want) {
			t.Errorf("%s: %v, want %v", v.Name, got, v.Want)
		}
		if len(v.Want) > 0 && len(v.Tokens) >= v.BlockSize {
			if h := FirstHash(v.Tokens[:v.BlockSize]); int64(h) != v.Want[0] {
				t.Errorf("%s: the first is %d", v.Name, int64(h))
			}
		}
	}
}

// Stored blocks are found, in each form and for blocks of any size: whole blocks of the engine's
// and of the index, without the last token.
func TestStored(t *testing.T) {
	for name, f := range map[string]form{"vLLM": vllmMap, "vLLM as array": vllmArray, "SGLang": sglangArray, "SGLang as map": sglangMap} {
		for size, unit := range map[int]int{1: 1, 4: 1, 16: 1, 24: 3, 64: 4, 100: 25, 128: 8} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				r := newRank(false)
				ids := idsFrom(size, 1000)
				half := 400 / size * size
				first, second := prompt(ids[:half], size), prompt(ids, size)
				second.Hashes, second.Tokens = second.Hashes[half/size:], second.Tokens[half:]
				second.Parent, second.Chained = first.Hashes[len(first.Hashes)-1], true
				if r.Knowledge() != Unknown {
					t.Error("known before anything was heard")
				}
				r.Live(0, 0, batchOf(f, first, second))
				chain := chainOf("", ids)
				for _, length := range []int{1000, 999, 17, 16, 1} {
					want := min(1000/size*size, (length-1)/size*size) / index / unit * unit
					if size < index {
						want = (length - 1) / index
					}
					if got := r.Resident(chain[:length/index], length); got != want {
						t.Errorf("of %d tokens %d blocks are there, want %d", length, got, want)
					}
				}
				if k := r.Knowledge(); k != Known {
					t.Errorf("it is %v", k)
				}
				other := idsFrom(size, 1000)
				other[500]++
				if got, want := r.Resident(chainOf("", other), 1000), 500/size*size/index/unit*unit; got != want && size >= index {
					t.Errorf("of a prompt that parts at 500 %d blocks are there, want %d", got, want)
				}
				if got := r.Resident(chainOf("adapter", ids), 1000); got != 0 {
					t.Errorf("of an adapter's prompt %d blocks are there", got)
				}
				// Without the blocks in the middle those behind are of no use.
				r.Live(0, 1, batchOf(f, Event{Kind: Removed, Hashes: first.Hashes[len(first.Hashes)-1:]}))
				if got, want := r.Resident(chain, 1000), (half-size)/index/unit*unit; got != want {
					t.Errorf("after a removal %d blocks are there, want %d", got, want)
				}
				if s := r.Stats(); s.Blocks != int64(half/size-1) || s.Batches != 2 || s.Events != 3 || s.Ignored+s.Strange+s.Bad != 0 {
					t.Errorf("%+v", s)
				}
				r.Live(0, 2, batchOf(f, Event{Kind: Cleared}))
				if got := r.Resident(chain, 1000); got != 0 || r.Stats().Blocks != 0 || r.opts.Budget.Used() != 0 {
					t.Errorf("after all were cleared %d blocks are there, %+v, %d bytes", got, r.Stats(), r.opts.Budget.Used())
				}
			})
		}
	}
}

// Blocks whose ids say not all are of no prompt's use, and neither are those of other
// caches.
func TestNotResident(t *testing.T) {
	ids := idsFrom(7, 320)
	plain := prompt(ids, 16)
	event := func(change func(e *Event)) Event {
		e := plain
		change(&e)
		return e
	}
	for name, test := range map[string]struct {
		forms []form
		e     Event
	}{
		"salted":         {[]form{vllmMap, vllmArray, sglangArray, sglangMap}, event(func(e *Event) { e.Salt = "salt" })},
		"salted unsaid":  {[]form{sglangArray, sglangMap}, event(func(e *Event) { e.Hashes = named(append(slices.Clone(ids), 5), 17)[:1]; e.Tokens = ids[:16] })},
		"in memory":      {[]form{vllmMap, sglangArray}, event(func(e *Event) { e.Medium = "CPU_PINNED" })},
		"sliding window": {[]form{vllmMap, vllmArray}, event(func(e *Event) { e.Spec = "sliding_window" })},
		"an adapter's":   {[]form{vllmMap, sglangMap}, event(func(e *Event) { e.LoRA = "adapter" })},
	} {
		for _, f := range test.forms {
			r := newRank(false)
			follow := Event{Kind: Stored, Hashes: []uint64{99}, Parent: test.e.Hashes[len(test.e.Hashes)-1], Chained: true, Tokens: idsFrom(8, 16), BlockSize: 16, LoRA: test.e.LoRA}
			r.Live(0, 0, batchOf(f, test.e, follow))
			if got := r.Resident(chainOf("", ids), 321); got != 0 {
				t.Errorf("%s, form %d: %d blocks are there", name, f, got)
			}
			for who, chain := range map[string]kvindex.Block{"an adapter's": root("adapter", ""), "salted": root("", "salt"), "another salt's": root("", "other")} {
				want := 0
				if name == who {
					want = 21
				}
				all := append(slices.Clone(ids), idsFrom(8, 16)...)
				if got := r.Resident(kvindex.AppendChain(nil, chain, all, index), 340); got != want {
					t.Errorf("%s, form %d: %d blocks are there of what is %s, want %d", name, f, got, who, want)
				}
			}
		}
	}
	// Where every first block is somebody's own, nothing is known, rather than all missing.
	r := newRank(false)
	old := plain
	old.Hashes = []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20}
	r.Live(0, 0, batchOf(sglangArray, old))
	if r.Knowledge() != Unknown {
		t.Errorf("names that are not SGLang's: %v", r.Knowledge())
	}
	r.Live(0, 1, batchOf(sglangArray, plain))
	if r.Knowledge() != Known || r.Resident(chainOf("", ids), 321) != 20 {
		t.Errorf("beside some that are: %v", r.Knowledge())
	}
}

// A block that is there twice is there until both are gone.
func TestCopies(t *testing.T) {
	r := newRank(false)
	ids := idsFrom(3, 64)
	all := prompt(ids, 16)
	last := Event{Kind: Stored, Hashes: all.Hashes[3:], Parent: all.Hashes[2], Chained: true, Tokens: ids[48:], BlockSize: 16}
	r.Live(0, 0, batchOf(vllmMap, all, last, Event{Kind: Removed, Hashes: all.Hashes[3:]}))
	if got := r.Resident(chainOf("", ids), 65); got != 4 {
		t.Errorf("%d blocks after one copy was removed", got)
	}
	r.Live(0, 1, batchOf(vllmMap, Event{Kind: Removed, Hashes: all.Hashes[3:]}))
	if got := r.Resident(chainOf("", ids), 65); got != 3 {
		t.Errorf("%d blocks after both were", got)
	}
}

// publisher is an engine with a replay buffer, in front of a network that loses.
type publisher struct {
	epoch int // of the process
	log   [][]byte
	keep  int // batches
	cache []cached
	room  int
}

type cached struct {
	ids  []uint32
	name uint64
}

func (p *publisher) publish(events ...Event) (uint64, []byte) {
	p.log = append(p.log, batchOf(vllmMap, events...))
	return uint64(len(p.log) - 1), p.log[len(p.log)-1]
}

// run has the engine compute a prompt, and evict what was used longest ago.
func (p *publisher) run(ids []uint32, size int) (uint64, []byte) {
	var events []Event
	parent, follows := uint64(0), false
	for n := size; n <= len(ids); n += size {
		name := uint64(kvindex.Root(uint64(p.epoch), fmt.Sprint(ids[:n])))
		i := slices.IndexFunc(p.cache, func(c cached) bool { return c.name == name })
		if i >= 0 {
			c := p.cache[i]
			p.cache = append(slices.Delete(p.cache, i, i+1), c)
		} else {
			p.cache = append(p.cache, cached{ids[:n], name})
			events = append(events, Event{Kind: Stored, Hashes: []uint64{name}, Parent: parent, Chained: follows, Tokens: ids[n-size : n], BlockSize: size})
		}
		parent, follows = name, true
	}
	for len(p.cache) > p.room {
		oldest := p.cache[0]
		for _, c := range p.cache { // the last block of its prompt goes first
			if len(c.ids) > len(oldest.ids) && slices.Equal(c.ids[:len(oldest.ids)], oldest.ids) {
				oldest = c
			}
		}
		p.cache = slices.DeleteFunc(p.cache, func(c cached) bool { return c.name == oldest.name })
		events = append(events, Event{Kind: Removed, Hashes: []uint64{oldest.name}})
	}
	return p.publish(events...)
}

// live has the rank hear of a prompt as it is computed.
func (p *publisher) live(r *Rank, ids []uint32, size int) {
	seq, batch := p.run(ids, size)
	r.Live(0, seq, batch)
}

func (p *publisher) resident(ids []uint32, size int) (n int) {
	for n+size < len(ids) && slices.ContainsFunc(p.cache, func(c cached) bool { return slices.Equal(c.ids, ids[:n+size]) }) {
		n += size
	}
	return n / index
}

// serve answers what the rank asks for, as far as the buffer goes.
func (p *publisher) serve(r *Rank, q Request, cut bool) {
	for q.Replay {
		for seq := max(int(q.From), len(p.log)-p.keep); seq < len(p.log); seq++ {
			r.Replayed(0, uint64(seq), p.log[seq])
		}
		q = r.Ended(0, !cut)
	}
}

// For any lost, repeated and restarted messages: a rank never believes in a block that is not
// there, and where it is Known it misses none.
func TestNeverTooMuch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.SampledFrom([]int{16, 32}).Draw(t, "size")
		replays := rapid.Bool().Draw(t, "replays")
		p := &publisher{room: rapid.IntRange(3, 12).Draw(t, "room"), keep: rapid.IntRange(0, 20).Draw(t, "kept")}
		r := newRank(replays)
		p.serve(r, r.Connected(), false)
		text := rapid.Custom(func(t *rapid.T) (ids []uint32) {
			for _, l := range rapid.SliceOfN(rapid.Uint32Range(0, 1), 1, 5).Draw(t, "letters") {
				for range size {
					ids = append(ids, l)
				}
			}
			return append(ids, 9)
		})
		known, behind := 0, false
		live := func(seq uint64, b []byte) {
			if q := r.Live(0, seq, b); q.Replay {
				p.serve(r, q, false)
				r.Live(0, seq, b)
			}
			behind = false
		}
		t.Repeat(map[string]func(*rapid.T){
			"run":  func(t *rapid.T) { live(p.run(text.Draw(t, "prompt"), size)) },
			"lose": func(t *rapid.T) { p.run(text.Draw(t, "prompt"), size); behind = true },
			"again": func(t *rapid.T) {
				// Without a replay the number 0 is that of a publisher that began anew, and so is
				// any where a replay has not even the latest one.
				least := 1
				switch {
				case replays && p.keep > 0:
					least = 0
				case replays:
					return
				}
				if n := len(p.log); n > least && !behind {
					seq := rapid.IntRange(least, n-1).Draw(t, "seq")
					live(uint64(seq), p.log[seq])
				}
			},
			"clear": func(*rapid.T) { p.cache = nil; live(p.publish(Event{Kind: Cleared})) },
			"reconnect": func(t *rapid.T) {
				r.Lost()
				if r.Knowledge() != Unknown {
					t.Fatal("known without a connection")
				}
				if rapid.Bool().Draw(t, "restarted") {
					*p = publisher{epoch: p.epoch + 1, room: p.room, keep: p.keep}
				}
				p.serve(r, r.Connected(), rapid.Bool().Draw(t, "cut"))
				behind = true // of what was lost nothing may have been heard yet
			},
			"": func(t *rapid.T) {
				if behind { // the next batch shows it
					return
				}
				ids := text.Draw(t, "asked")
				got, want := r.Resident(chainOf("", ids), len(ids)), p.resident(ids, size)
				if got > want {
					t.Fatalf("%d blocks of %d that are there, %v", got, want, r.Knowledge())
				}
				if r.Knowledge() == Known {
					if known++; got != want {
						t.Fatalf("%d blocks of %d that are there, and it is known", got, want)
					}
				}
			},
		})
	})
}

// A publisher that has published nothing yet has nothing: a replay that holds no batch
// says so, if it is whole and nothing is heard that contradicts it.
func TestNothingIsPublished(t *testing.T) {
	ids := idsFrom(1, 160)
	batch := batchOf(vllmMap, prompt(ids, 16))
	want := func(r *Rank, what string, k Knowledge, blocks int) {
		t.Helper()
		if got := r.Resident(chainOf("", ids), 161); r.Knowledge() != k || got != blocks {
			t.Errorf("%s: %v, %d blocks; want %v, %d", what, r.Knowledge(), got, k, blocks)
		}
	}
	joined := func(at int64, whole bool) *Rank {
		r := newRank(true)
		if q := r.Connected(); !q.Replay || q.From != 0 {
			t.Errorf("asks for %+v", q)
		}
		want(r, "asked", Unknown, 0)
		if q := r.Ended(at, whole); q.Replay {
			t.Errorf("asks for %+v", q)
		}
		return r
	}
	want(joined(1, false), "cut off", Unknown, 0)
	r := joined(7, true)
	want(r, "nothing", Known, 0)
	if r.Empty() != 7 {
		t.Errorf("empty at %d", r.Empty())
	}
	r.Live(8, 0, batch)
	want(r, "the first", Known, 10)

	// Another one has begun in its place, with nothing.
	r.Lost()
	if q := r.Connected(); !q.Replay || q.From != 0 {
		t.Errorf("asks for %+v", q)
	}
	if q := r.Ended(9, true); !q.Replay || q.From != 0 {
		t.Errorf("asks for %+v", q)
	}
	want(r, "another", Unknown, 0)
	r.Ended(9, true)
	want(r, "another has nothing", Known, 0)
	if r.Empty() != 9 {
		t.Errorf("empty at %d", r.Empty())
	}

	// One that keeps nothing for replays had published before.
	r = joined(1, true)
	if q := r.Live(2, 5, batch); !q.Replay || q.From != 0 {
		t.Errorf("asks for %+v", q)
	}
	r.Ended(2, true)
	r.Live(2, 5, batch)
	want(r, "it had published before", Partial, 10)
}

// A gap is filled by a replay, a publisher that began anew is told from the one before,
// and what cannot be had is forgotten.
func TestGaps(t *testing.T) {
	size := 16
	a, b, c := idsFrom(1, 160), idsFrom(2, 160), idsFrom(3, 160)
	resident := func(r *Rank, ids []uint32) int { return r.Resident(chainOf("", ids), 161) }
	t.Run("filled", func(t *testing.T) {
		p, r := &publisher{room: 100, keep: 100}, newRank(true)
		p.serve(r, r.Connected(), false)
		p.live(r, a, size)
		p.run(b, size)
		seq, batch := p.run(c, size)
		q := r.Live(0, seq, batch)
		if q != (Request{true, 0}) || r.Knowledge() != Unknown {
			t.Fatalf("asks for %+v, and is %v", q, r.Knowledge())
		}
		p.serve(r, q, false)
		r.Live(0, seq, batch)
		if s := r.Stats(); resident(r, a) != 10 || resident(r, b) != 10 || resident(r, c) != 10 || s.Gaps != 1 || s.Rebuilds != 0 || s.Batches != 3 || r.Knowledge() != Known {
			t.Errorf("%+v, %v", s, r.Knowledge())
		}
	})
	t.Run("lost", func(t *testing.T) {
		p, r := &publisher{room: 100}, newRank(false)
		r.Connected()
		p.live(r, a, size)
		p.run(b, size)
		p.live(r, c, size)
		if s := r.Stats(); resident(r, a) != 0 || resident(r, c) != 10 || s.Gaps != 1 || s.Rebuilds != 1 || r.Knowledge() != Partial {
			t.Errorf("%+v, %v", s, r.Knowledge())
		}
	})
	t.Run("late", func(t *testing.T) {
		p, r := &publisher{room: 100, keep: 1}, newRank(true)
		p.run(a, size)
		p.run(b, size)
		p.serve(r, r.Connected(), false)
		p.live(r, c, size)
		if resident(r, a) != 0 || resident(r, b) != 10 || resident(r, c) != 10 || r.Knowledge() != Partial {
			t.Errorf("%v", r.Knowledge())
		}
	})
	t.Run("anew", func(t *testing.T) {
		// It has more batches than the one before had, so that numbers alone say nothing.
		p, r := &publisher{room: 100, keep: 100}, newRank(true)
		p.serve(r, r.Connected(), false)
		p.live(r, a, size)
		r.Lost()
		p = &publisher{epoch: 1, room: 100, keep: 100}
		for _, ids := range [][]uint32{b, c, b} {
			p.run(ids, size)
		}
		p.serve(r, r.Connected(), false)
		if s := r.Stats(); resident(r, a) != 0 || resident(r, b) != 10 || r.Knowledge() != Known || s.Replays != 3 {
			t.Errorf("%+v, %v", s, r.Knowledge())
		}
	})
	t.Run("numbers without sense", func(t *testing.T) {
		p, r := &publisher{room: 100, keep: 100}, newRank(true)
		p.serve(r, r.Connected(), false)
		_, batch := p.run(a, size)
		for _, seq := range []uint64{0, math.MaxUint64, 0, 1 << 63, 5, 4, 3, math.MaxUint64 - 1, 0} {
			if q := r.Live(0, seq, batch); q.Replay {
				r.Replayed(0, math.MaxUint64-2, batch)
				r.Replayed(0, 7, batch)
				if q = r.Ended(0, true); q.Replay {
					r.Ended(0, false)
				}
				if q = r.Live(0, seq, batch); q.Replay {
					t.Fatal("asks again for the same batch")
				}
			}
		}
	})
}

// Events that do not go with what is known change nothing; a batch that cannot be read
// may have removed something.
func TestMisfits(t *testing.T) {
	r := newRank(false)
	ids := idsFrom(1, 160)
	r.Live(0, 0, batchOf(vllmMap, prompt(ids, 16)))
	other := idsFrom(2, 160)
	r.Live(0, 1, batchOf(vllmMap,
		prompt(other, 32),
		Event{Kind: Stored, Hashes: []uint64{1}, Parent: 77, Chained: true, Tokens: other[:16], BlockSize: 16},
		Event{Kind: Stored, Hashes: []uint64{1, 2}, Tokens: other[:16], BlockSize: 16},
		Event{Kind: Stored, Hashes: named(ids, 16)[5:6], Tokens: other[:16], BlockSize: 16}, // which is elsewhere
		Event{Kind: Removed, Hashes: []uint64{78}},
	))
	if s := r.Stats(); s.Ignored != 4 || s.Strange != 1 || s.Blocks != 10 || r.Resident(chainOf("", ids), 161) != 10 || r.Knowledge() != Known {
		t.Errorf("%+v, %v", s, r.Knowledge())
	}
	r.Live(0, 2, []byte("\x93\xcb no"))
	if s := r.Stats(); s.Bad != 1 || s.Blocks != 0 || r.Knowledge() != Partial || r.opts.Budget.Used() != 0 {
		t.Errorf("%+v, %v", s, r.Knowledge())
	}
	// An engine that has nothing may have blocks of another size.
	r.Live(0, 3, batchOf(vllmMap, prompt(other, 32)))
	if got := r.Resident(chainOf("", other), 161); got != 10 {
		t.Errorf("%d blocks", got)
	}
}

// Beyond the budget a rank is forgotten, and not only the last of it.
func TestBudget(t *testing.T) {
	const blocks = 100
	budget := NewBudget(blocks * blockBytes)
	a := New(Options{IndexTokens: index, Root: root, Budget: budget})
	b := New(Options{IndexTokens: index, Root: root, Budget: budget})
	a.Live(0, 0, batchOf(vllmMap, prompt(idsFrom(1, 60*16), 16)))
	b.Live(0, 0, batchOf(vllmMap, prompt(idsFrom(2, 30*16), 16)))
	for seq := range uint64(1000) {
		a.Live(0, seq+1, batchOf(vllmMap, prompt(idsFrom(int(seq)+10, 160), 16)))
		if budget.Used() > blocks*blockBytes {
			t.Fatalf("%d bytes of %d", budget.Used(), blocks*blockBytes)
		}
	}
	if s := a.Stats(); s.Overflows < 10 || s.Overflows != s.Rebuilds || a.Knowledge() != Partial {
		t.Errorf("%+v, %v", s, a.Knowledge())
	}
	if b.Resident(chainOf("", idsFrom(2, 30*16)), 1000) != 30 {
		t.Error("another rank has lost its own")
	}
	a.Close()
	b.Close()
	if budget.Used() != 0 {
		t.Errorf("%d bytes are left", budget.Used())
	}
}

// Capture is one of vLLM 0.26's own, whose hashes are whole and whose outer batch is an
// array.
func TestHashesAsBytes(t *testing.T) {
	ids := idsFrom(4, 32)
	e := prompt(ids, 16)
	b := batchOf(vllmMap, e)
	// The two names are written as 9 bytes each, 0xcf and eight. As digests they are 32.
	digest := func(h uint64) []byte {
		out := []byte{0xc4, 32}
		out = append(out, make([]byte, 24)...)
		for i := range 8 {
			out = append(out, byte(h>>(56-8*i)))
		}
		return out
	}
	for _, h := range e.Hashes {
		plain := append([]byte{0xcf}, digest(h)[26:]...)
		i := slices.Index(b, plain[0])
		for ; i >= 0 && !slices.Equal(b[i:i+9], plain); i++ {
		}
		b = slices.Concat(b[:i], digest(h), b[i+9:])
	}
	r := newRank(false)
	r.Live(0, 0, b)
	r.Live(0, 1, batchOf(vllmMap, Event{Kind: Removed, Hashes: e.Hashes[1:]}))
	if got := r.Resident(chainOf("", ids), 33); got != 1 || r.Stats().Bad != 0 {
		t.Errorf("%d blocks, %+v", got, r.Stats())
	}
}

func TestResidentAllocatesNothing(t *testing.T) {
	r := newRank(false)
	ids := idsFrom(1, 16_000)
	r.Live(0, 0, batchOf(vllmMap, prompt(ids, 16)))
	chain := chainOf("", ids)
	if n := testing.AllocsPerRun(100, func() { r.Resident(chain, 16_000) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzRank feeds a rank whatever a publisher may send: it takes no more memory than its
// budget, and what it says fits the prompt.
func FuzzRank(f *testing.F) {
	for _, form := range []form{vllmMap, vllmArray, sglangArray, sglangMap} {
		f.Add(uint64(0), batchOf(form, prompt(idsFrom(1, 64), 16), Event{Kind: Removed, Hashes: named(idsFrom(1, 64), 16)[:1]}, Event{Kind: Cleared}))
	}
	f.Add(uint64(3), []byte("\x92\xc0\xdd\xff\xff\xff\xff"))
	ids := idsFrom(1, 64)
	chain := chainOf("", ids)
	f.Fuzz(func(t *testing.T, seq uint64, batch []byte) {
		budget := NewBudget(1 << 16)
		r := New(Options{IndexTokens: index, Root: root, Replays: seq%2 == 0, Budget: budget})
		r.Connected()
		r.Live(0, 0, batchOf(vllmMap, prompt(ids, 16)))
		for range 2 {
			if q := r.Live(0, seq, batch); q.Replay {
				r.Replayed(0, 0, batch)
				r.Ended(0, true)
			}
		}
		if n := r.Resident(chain, 65); n < 0 || n > 4 {
			t.Fatalf("%d of 4 blocks", n)
		}
		if budget.Used() < 0 || budget.Used() > 1<<16 {
			t.Fatalf("%d bytes of a budget of %d", budget.Used(), 1<<16)
		}
		if r.Close(); budget.Used() != 0 {
			t.Fatalf("%d bytes are left", budget.Used())
		}
	})
}

func BenchmarkResident(b *testing.B) {
	for _, length := range []int{2_000, 100_000} {
		b.Run(fmt.Sprint(length), func(b *testing.B) {
			r := newRank(false)
			for i := range 20 {
				r.Live(0, uint64(i), batchOf(vllmMap, prompt(idsFrom(i, length), 16)))
			}
			chain := chainOf("", idsFrom(7, length))
			b.ReportAllocs()
			for b.Loop() {
				r.Resident(chain, length)
			}
		})
	}
}

// BenchmarkStored takes the events of prompts, as vLLM writes them.
func BenchmarkStored(b *testing.B) {
	r := newRank(false)
	stored := batchOf(vllmMap, prompt(idsFrom(1, 8_192), 16))
	cleared := batchOf(vllmMap, Event{Kind: Cleared})
	seq := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		r.Live(0, seq, stored)
		r.Live(0, seq+1, cleared)
		seq += 2
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*512), "ns/block")
}

// BenchmarkMemory reports what a block takes, by the tokens of the engine's blocks, beside
// what is counted for it.
func BenchmarkMemory(b *testing.B) {
	for _, size := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("size=%d", size), func(b *testing.B) {
			const blocks = 500_000
			for b.Loop() {
				r := newRank(false)
				before := heap()
				for i := range blocks / 500 {
					r.Live(0, uint64(i), batchOf(sglangArray, prompt(idsFrom(i, 500*size), size)))
				}
				took := heap() - before
				if n := r.Stats().Blocks; n < blocks*99/100 { // some prompts begin alike
					b.Fatalf("%d blocks", n)
				}
				b.ReportMetric(float64(took)/blocks, "B/block")
				b.ReportMetric(float64(r.opts.Budget.Used())/blocks, "counted-B/block")
			}
		})
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
