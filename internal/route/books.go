package route

import (
	"sync/atomic"

	"weir/internal/cost"
	"weir/internal/engine"
	"weir/internal/kvindex"
)

// BlockTokens is how many tokens a block of the index has, where weir knows the tokens.
const BlockTokens = 16

// usualKV is how many tokens the cache of an engine is believed to hold that does not
// say.
const usualKV = 512 << 10

// Books are what is kept of one life of an engine's rank, over snapshots: what was given to
// it, and what its cache is believed to hold.
type Books struct {
	Rank  *cost.Rank
	Cache *kvindex.Cache
	KV    int64 // tokens that the cache holds; 0: the engine does not say
	// Shares are of all lives of the engine.
	Shares *Shares

	capacity    int64        // tokens that the cache is believed to hold
	blockTokens atomic.Int64 // by which the cache counts them
	events      atomic.Pointer[Events]
}

// Shares count tokens of prompts, to say which part of them engines had.
type Shares struct {
	Given, Predicted atomic.Int64 // of all that were given to it, and of them those believed to be there
	Told, Reported   atomic.Int64 // of those of which it said how much it had, and what it said
}

// NewBooks opens the books of a rank that joins a model's at time now, and has a KV cache
// and a step as f says.
func NewBooks(m *cost.Model, x *kvindex.Index, s *Shares, f *engine.Facts, now int64) *Books {
	kv := int64(f.KVTokens)
	if kv == 0 {
		kv = usualKV
	}
	b := &Books{Rank: m.Join(now, f.StepTokens), Cache: x.Cache(kv / BlockTokens), KV: int64(f.KVTokens), Shares: s, capacity: kv}
	b.blockTokens.Store(BlockTokens)
	return b
}

// Limit says how much the rank takes at once: what it says of itself, or most requests at
// once, where an operator has set that.
func (b *Books) Limit(most int, f *engine.Facts) {
	l := cost.Limits{Running: f.MaxRunning, Budget: f.StepTokens > 0, Ranks: f.SideBySide}
	if most > 0 {
		l.Running, l.Strict = most, true
	}
	b.Rank.SetLimits(l)
}

// SizeBlocks says how many tokens a block of the engine's prompts has, where that is
// only learned. A size within 5 % of the one before changes nothing: prompts of several
// models may be there.
func (b *Books) SizeBlocks(tokens int) {
	was := b.blockTokens.Load()
	if off := int64(tokens) - was; max(off, -off)*20 > was && b.blockTokens.CompareAndSwap(was, int64(tokens)) {
		b.Cache.SetCapacity(b.capacity / int64(tokens))
	}
}

// Place says that the engine will have a prompt of these blocks at ready, or has it,
// where ready is 0.
func (b *Books) Place(blocks []kvindex.Block, ready int64) {
	b.Cache.SetGrowing(b.Rank.Growing(b.blockTokens.Load()))
	b.Cache.Place(blocks, ready)
}

// Hold says that a request uses blocks that were placed, until Release is given what it
// appends to dst.
func (b *Books) Hold(dst, blocks []kvindex.Block) []kvindex.Block {
	dst = b.Cache.Hold(dst, blocks)
	b.room()
	return dst
}

// Release ends what Hold has begun.
func (b *Books) Release(held []kvindex.Block) {
	b.Cache.Release(held)
	b.room()
}

// room has the rank know how full a cache is whose size the engine has said.
func (b *Books) room() {
	if b.KV > 0 {
		b.Rank.SetRoom(b.KV, b.Cache.InUse()*b.blockTokens.Load())
	}
}

// Close ends them with the engine's life. Bookings may still be settled.
func (b *Books) Close() {
	b.Rank.Model().Leave(b.Rank)
	b.Cache.Drop()
}

// Sums are what the books of an engine's ranks say of all of them.
type Sums struct {
	InFlight, Pending int64
	Indexed           int64
	// Wait and Unseen are those of the rank where a prompt that came now would wait least,
	// in milliseconds.
	Wait, Unseen float64
	// Best are the books of the rank of which most was seen.
	Best *Books
}

// Sum adds up the books of an engine's ranks, of which there is at least one.
func Sum(of []*Books, now int64) (s Sums) {
	most := -1
	for i, b := range of {
		s.InFlight += b.Rank.InFlight()
		s.Pending += b.Rank.Pending()
		s.Indexed += b.Cache.Used()
		wait, unseen := b.Rank.Booked(now), b.Rank.Unseen(now)
		if i == 0 || wait+unseen < s.Wait+s.Unseen {
			s.Wait, s.Unseen = wait, unseen
		}
		if _, seen := b.Rank.Coefficients(); seen > most {
			most, s.Best = seen, b
		}
	}
	return s
}
