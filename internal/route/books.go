package route

import (
	"sync/atomic"

	"weir/internal/cost"
	"weir/internal/engine"
	"weir/internal/kvindex"
)

// BlockTokens is how many tokens a block of the index has.
const BlockTokens = 16

// usualKV is how many tokens the cache of an engine is believed to hold that does not
// say.
const usualKV = 512 << 10

// Books are what is kept of one life of an engine, over snapshots: what was given to
// it, and what its cache is believed to hold.
type Books struct {
	Rank  *cost.Rank
	Cache *kvindex.Cache
	KV    int64 // tokens that the cache holds; 0: the engine does not say
	// Shares are of all its lives.
	Shares *Shares
}

// Shares count tokens of prompts, to say which part of them engines had.
type Shares struct {
	Given, Predicted atomic.Int64 // of all that were given to it, and of them those believed to be there
	Told, Reported   atomic.Int64 // of those of which it said how much it had, and what it said
}

// NewBooks opens the books of an engine that joins a model's at time now.
func NewBooks(m *cost.Model, x *kvindex.Index, s *Shares, f *engine.Facts, now int64) *Books {
	kv := int64(f.KVTokens)
	if kv == 0 {
		kv = usualKV
	}
	return &Books{Rank: m.Join(now, f.StepTokens), Cache: x.Cache(kv / BlockTokens), KV: int64(f.KVTokens), Shares: s}
}

// Close ends them with the engine's life. What is booked may still be settled.
func (b *Books) Close() {
	b.Rank.Model().Leave(b.Rank)
	b.Cache.Drop()
}
