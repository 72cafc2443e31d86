package route

import (
	"errors"
	"math"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvevents"
	"weir/internal/fleet/kvindex"
)

// told is a batch in which an engine says that it has stored the ids, in blocks of its
// own, or that it has removed those.
func told(kind string, ids []uint32, size int) []byte {
	n := len(ids) / size
	b := msgp.AppendArrayHeader(msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 1), 1)
	b = msgp.AppendMapHeader(b, 5)
	b = msgp.AppendString(msgp.AppendString(b, "type"), kind)
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(n))
	for i := range n {
		b = msgp.AppendUint64(b, uint64(ids[i*size])<<32+uint64(i))
	}
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), uint32(n*size))
	for _, id := range ids[:n*size] {
		b = msgp.AppendUint32(b, id)
	}
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), size)
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "extra_keys"), uint32(n))
	for range n {
		b = msgp.AppendNil(b)
	}
	return b
}

// salted is told of ids whose prompt has a cache salt of one letter, in one block.
func salted(ids []uint32, salt byte) []byte {
	b := told("BlockStored", ids, len(ids))
	b = b[:len(b)-1] // without the nil
	return msgp.AppendString(msgp.AppendArrayHeader(b, 1), string(salt))
}

// An engine's events of blocks with a salt tell of prompts with the same salt, and of no others.
func TestEventsOfSalts(t *testing.T) {
	ids := make([]uint32, 128)
	for i := range ids {
		ids[i] = uint32(i + 1)
	}
	e := NewEvents("m", 0, false, kvevents.NewBudget(1<<20))
	e.Rank.Live(0, 0, salted(ids, 'a'))
	for salt, want := range map[string]int{"a": 8, "b": 0, "": 0} {
		if got := e.Rank.Resident(kvindex.AppendChain(nil, Root("m", "", salt), ids, BlockTokens), 129); got != want {
			t.Errorf("%d blocks are there of a prompt with salt %q, want %d", got, salt, want)
		}
	}
}

// The engine's events correct the beliefs about its cache: the blocks that it has and those that it
// has not, in its own whole blocks and without the last token. They do not correct prompts that
// requests under way will compute, blocks that the engine may not have published yet, and caches
// about which too little is known.
func TestEventsCorrect(t *testing.T) {
	const s = 1e9
	index := kvindex.New(math.MaxInt64)
	m := &Model{Name: "m", Policy: new(balance.Cost)}
	e := &Engine{Name: "a", Ready: true, Facts: engine.Facts{KVTokens: 1 << 20}}
	r := Whole("a")
	r.Books = NewBooks(cost.NewModel(cost.Typical), index, new(Shares), &e.Facts, 0)
	m.Add(Target{Engine: e, Rank: r})
	ids := make([]uint32, 400)
	for i := range ids {
		ids[i] = uint32(i + 1)
	}
	blocks := kvindex.AppendChain(nil, Root("m", "", ""), ids, BlockTokens)
	prompt := Prompt{Blocks: blocks, Length: 400, ByIDs: true}
	var c Choice
	match := func(now int64) kvindex.Match {
		m.Match(index, &c, &prompt, now)
		return c.Request.Matches.Of(r.Books.Cache.ID)
	}
	check := func(what string, now int64, resident, soon int32, stale bool) {
		t.Helper()
		if got := match(now); got.Resident != resident || got.Soon != soon || got.Stale != stale {
			t.Errorf("%s: %+v, want %d, %d, stale %v", what, got, resident, soon, stale)
		}
	}
	budget := kvevents.NewBudget(1 << 20)
	events := NewEvents("m", 0, false, budget)
	r.Books.Place(blocks, 0)
	check("without events", s, 25, 25, false)
	r.Books.Follow(events)
	check("nothing was heard", s, 25, 25, false)

	events.Rank.Live(s, 7, told("BlockStored", ids[:128], 128))
	check("in part", s, 24, 24, false)
	events.Rank.Live(s, 0, told("BlockStored", ids[:128], 128))
	check("it has less", s, 8, 8, true)
	r.Books.Cache.Truncate(blocks, 8)
	check("which is forgotten", s, 8, 8, false)
	r.Books.Place(blocks, 2*s)
	check("under way", s, 8, 24, false)
	check("it should be there", 2*s+1, 24, 24, false)
	check("but the engine does not say so", 3*s, 8, 8, true)
	events.Rank.Live(s, 1, told("BlockStored", ids, 400)) // of another size, which says nothing
	check("nor by this", 3*s, 8, 8, true)
	events.Rank.Live(s, 2, told("BlockRemoved", ids[:128], 128))
	check("it has removed that", 3*s, 0, 0, true)
	events.Rank.Live(s, 3, told("BlockStored", ids[:384], 128))
	check("it has all of it", 3*s, 24, 24, false)
	events.Rank.Live(3.1*s, 4, told("BlockRemoved", ids[:384], 128))
	r.Books.Cache.Truncate(blocks, 0)
	r.Books.Place(blocks, 3*s)
	check("it was removed just now", 3.2*s, 0, 0, true)
	r.Books.Cache.Truncate(blocks, 0)
	r.Books.Place(blocks, 3.7*s)
	check("and is computed anew", 3.8*s, 24, 24, false)
	events.Rank.Live(3.9*s, 5, told("BlockStored", ids[:384], 128))
	prompt.Length, prompt.Blocks = 384, blocks[:24]
	check("the last token is computed", 4*s, 16, 16, false)
	prompt.ByIDs = false
	check("its blocks are not of ids", 4*s, 24, 24, false)
	prompt.ByIDs = true
	m.Base = "another"
	check("another model's", 4*s, 24, 24, false)
	m.Base = ""

	// An empty cache has nothing that was placed before, however late it is said.
	prompt.Length, prompt.Blocks = 400, blocks
	r.Books.Cache.Truncate(blocks, 0)
	r.Books.Place(blocks, 5*s)
	events.Rank.Live(5.1*s, 6, told("AllBlocksCleared", nil, 128))
	check("all is cleared", 5.2*s, 0, 0, true)
	prompt.Length, prompt.Blocks = 384, blocks[:24]

	// Blocks that were never placed here are known too.
	other := NewEvents("m", 0, false, budget)
	r.Books.Cache.Truncate(blocks, 0)
	r.Books.Follow(other)
	other.Rank.Live(s, 0, told("BlockStored", ids[:384], 128))
	check("others have had it computed", 3*s, 16, 16, false)
	if n := testing.AllocsPerRun(100, func() { match(3 * s) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
	other.Rank.Lost()
	check("the connection is lost", 3*s, 0, 0, false)
	r.Books.Follow(nil)
	check("they are followed no more", 3*s, 0, 0, false)
}

func TestEventsTell(t *testing.T) {
	e := NewEvents("m", 0, false, kvevents.NewBudget(1))
	down := errors.New("down")
	for i, step := range []struct {
		err  error
		news bool
	}{{nil, true}, {nil, false}, {down, true}, {errors.New("still"), false}, {nil, true}} {
		if news := e.Tell(step.err); news != step.news || e.Err() != step.err {
			t.Errorf("step %d: news %v, %v", i, news, e.Err())
		}
	}
}

// For an engine that keeps no prompts, no cached blocks are expected, whatever was placed there.
// The blocks of requests in use take room all the same.
func TestForgets(t *testing.T) {
	for _, byIDs := range []bool{true, false} {
		index := kvindex.New(math.MaxInt64)
		m := &Model{Name: "m", Policy: new(balance.Cost)}
		of := map[bool]*Rank{}
		for _, forgets := range []bool{false, true} {
			e := &Engine{Name: "a", Ready: true, Facts: engine.Facts{KVTokens: 4096, Forgets: forgets}}
			r := Whole("a")
			r.Books = NewBooks(cost.NewModel(cost.Typical), index, new(Shares), &e.Facts, 0)
			m.Add(Target{Engine: e, Rank: r})
			of[forgets] = r
		}
		ids := make([]uint32, 400)
		blocks := kvindex.AppendChain(nil, Root("m", "", ""), ids, BlockTokens)
		for forgets, r := range of {
			r.Books.Place(blocks, 0)
			var c Choice
			m.Match(index, &c, &Prompt{Blocks: blocks, Length: 400, ByIDs: byIDs}, 1)
			got := c.Request.Matches.Of(r.Books.Cache.ID)
			if want := int32(25); forgets && got != (kvindex.Match{}) || !forgets && got.Resident != want {
				t.Errorf("by ids %v, forgets %v: %+v", byIDs, forgets, got)
			}
			held := r.Books.Hold(nil, blocks)
			if n := r.Books.Cache.InUse(); n != 25 {
				t.Errorf("%d blocks are in use", n)
			}
			r.Books.Release(held)
		}
		of[true].Books.Says(&engine.Facts{}) // it was started anew, with a cache
		var c Choice
		m.Match(index, &c, &Prompt{Blocks: blocks, Length: 400, ByIDs: byIDs}, 1)
		if got := c.Request.Matches.Of(of[true].Books.Cache.ID); got.Resident != 25 {
			t.Errorf("%+v", got)
		}
	}
}
