package kvevents

import "sync/atomic"

// Budget bounds the memory of the blocks of several ranks.
type Budget struct {
	max  int64
	used atomic.Int64
}

// NewBudget returns a budget of about max bytes.
func NewBudget(max int64) *Budget { return &Budget{max: max} }

// Used returns about how many bytes the ranks use.
func (b *Budget) Used() int64 { return b.used.Load() }

func (b *Budget) take(n int64) bool {
	if b.used.Add(n) <= b.max {
		return true
	}
	b.used.Add(-n)
	return false
}

// blockBytes is the cost of a block: its node with its share of the free ones, and its entries in
// the maps with their share of free places.
const blockBytes = 160
