package route

import (
	"sync"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/kvindex"
)

// BlockTokens is how many tokens a block of the index has, where weir knows the tokens.
const BlockTokens = 16

// If an engine does not report the size of its KV cache in tokens, usualKV is assumed at
// first and corrected by its reports of cached tokens, within fewestKV and mostKV.
const (
	usualKV  = 512 << 10
	fewestKV = usualKV / 64
	mostKV   = usualKV * 64
)

// Books are what is kept of one life of an engine's rank, over snapshots: what was given to
// it, and what its cache is believed to hold.
type Books struct {
	Rank  *cost.Rank
	Cache *kvindex.Cache
	// Shares are of all lives of the engine.
	Shares *Shares
	placed func(blocks []kvindex.Block, ready int64) // of Share

	kv          atomic.Int64 // tokens that the cache holds; 0: the engine does not say
	blockTokens atomic.Int64 // by which the cache counts them
	events      atomic.Pointer[Events]
	forgets     atomic.Bool // the cache has nothing of a prompt but while a request uses it

	mu       sync.Mutex
	capacity float64 // tokens that the cache is believed to hold
}

// Shares count tokens of prompts, to say which part of them engines had.
type Shares struct {
	Given, Predicted atomic.Int64 // of all that were given to it, and of them those believed to be there
	Told, Reported   atomic.Int64 // tokens of prompts with a report of cached tokens, and the sum of the reports
}

// NewBooks returns the books of a rank that joins those of a model at time now. f states
// its KV cache and its step.
func NewBooks(m *cost.Model, x *kvindex.Index, s *Shares, f *engine.Facts, now int64) *Books {
	b := &Books{Rank: m.Join(now, f.StepTokens), Cache: x.Cache(usualKV / BlockTokens), Shares: s, capacity: usualKV}
	b.blockTokens.Store(BlockTokens)
	b.Says(f)
	return b
}

// Share has placed be called with each prompt that this gateway sends to the rank, and the rank
// learn from all gateways' requests (cost.Rank.Share). It is called before anything is booked.
func (b *Books) Share(placed func(blocks []kvindex.Block, ready int64)) {
	b.placed = placed
	b.Rank.Share()
}

// Limit sets the capacity of the rank: the capacity that it reports, or at most the
// number of requests that an operator has set.
func (b *Books) Limit(most int, f *engine.Facts) {
	l := cost.Limits{Running: f.MaxRunning, Budget: f.StepTokens > 0, Ranks: f.SideBySide}
	if most > 0 {
		l.Running, l.Strict = most, true
	}
	b.Rank.SetLimits(l)
}

// Says records the engine's report of its cache and its steps, which may arrive after it
// has joined.
func (b *Books) Says(f *engine.Facts) {
	if f.StepTokens > 0 {
		b.Rank.SetBudget(f.StepTokens)
	}
	b.forgets.Store(f.Forgets)
	kv := int64(f.KVTokens)
	if kv <= 0 || b.kv.Swap(kv) == kv {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resize(float64(kv))
}

// KV is how many tokens the engine says that its cache holds, 0 where it does not.
func (b *Books) KV() int64 { return b.kv.Load() }

// Capacity is how many tokens the cache is believed to hold.
func (b *Books) Capacity() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return int64(b.capacity)
}

func (b *Books) resize(tokens float64) {
	b.capacity = tokens
	b.Cache.SetCapacity(int64(tokens) / b.blockTokens.Load())
}

// SizeBlocks sets the number of tokens in a block of the engine's prompts, if that is
// only learned. A size within 5 % of the one before changes nothing: prompts of several
// models may be there.
func (b *Books) SizeBlocks(tokens int) {
	was := b.blockTokens.Load()
	if off := int64(tokens) - was; max(off, -off)*20 > was && b.blockTokens.CompareAndSwap(was, int64(tokens)) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.resize(b.capacity)
	}
}

// A report of cached tokens changes the believed size of a cache by at most the share
// resizing, and a report that confirms the belief by 1/confirming of that. A report confirms
// the belief if it is off by less than near tokens, or by less than nearShare: engines have
// pages of up to that many tokens, and the tokens of a relayed prompt are estimated. Reports
// are ignored while requests use more than the share crowded of the believed size.
const (
	crowded    = 0.5
	resizing   = 1.0 / 8
	confirming = 64
	near       = 256
	nearShare  = 1.0 / 8
)

// Reported learns the size of the cache from the number of cached tokens that the engine
// reports for a prompt. had is the part that the cache was believed to hold.
//
// If blocks that were surely there are missing, they were evicted, and the cache is
// smaller than believed. If blocks are there that were believed evicted, it is larger.
// Few prompts are sent to a cache that is believed to have evicted them, so while the
// cache is full, each prompt found as believed also raises its size a little. The size
// settles where about one in confirming prompts is missing. An engine with wrong reports
// gets more or fewer of its earlier prompts, and no request waits because of that.
func (b *Books) Reported(had kvindex.Had, prompt, cached int) {
	if b.kv.Load() > 0 || b.forgets.Load() || b.events.Load() != nil || prompt <= 0 {
		return
	}
	tokens := b.blockTokens.Load()
	cached = min(max(cached, 0), prompt)
	lacks, finds := int64(had.Sure)*tokens-int64(cached), int64(cached)-int64(had.Held)*tokens
	off := max(near, int64(nearShare*float64(max(int64(had.Sure)*tokens, int64(cached)))))
	b.mu.Lock()
	defer b.mu.Unlock()
	by := 0.0
	switch {
	case float64(b.Cache.InUse()*tokens) > crowded*b.capacity:
		// Requests may wait there for room, and what they will use may go meanwhile.
	case lacks > off:
		by = -float64(min(lacks, int64(prompt)))
	case finds > off:
		by = float64(finds)
	case float64(b.Cache.Used()*tokens) > 0.95*b.capacity:
		by = float64(cached) / confirming
	}
	if by != 0 {
		b.resize(min(max(b.capacity*(1+resizing*by/float64(prompt)), fewestKV), mostKV))
	}
}

// Place records that the engine will have a prompt of these blocks at ready, or has it
// now if ready is 0.
func (b *Books) Place(blocks []kvindex.Block, ready int64) kvindex.Had {
	if b.placed != nil {
		b.placed(blocks, ready)
	}
	b.Cache.SetGrowing(b.Rank.Growing(b.blockTokens.Load()))
	return b.Cache.Place(blocks, ready)
}

// Hold marks placed blocks as used by a request until Release is called with the blocks
// that it appends to dst.
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
	if kv := b.kv.Load(); kv > 0 {
		tokens := b.blockTokens.Load()
		r := cost.Room{KV: kv, InUse: b.Cache.InUse() * tokens, Kept: b.Cache.Used() * tokens, Reuse: b.Cache.Reuse()}
		if b.forgets.Load() {
			r.Kept, r.Reuse = r.InUse, 0
		}
		b.Rank.SetRoom(r)
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
	// Prefills are prefill halves of requests, and Decoding the requests that have begun to
	// decode.
	Prefills, Decoding int64
	// Others are the requests that other gateways have there.
	Others  int64
	Indexed int64
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
		s.Others += b.Rank.Others().InFlight
		s.Prefills += b.Rank.Prefills()
		s.Decoding += b.Rank.Decoders()
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
