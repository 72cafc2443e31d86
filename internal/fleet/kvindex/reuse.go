package kvindex

import (
	"math"
	"sync"
	"sync/atomic"
)

// reuse learns the share of evicted blocks that are needed again. It samples blocks
// that no cache holds any more, and remembers each until the cache that evicted it has
// evicted as much again as it holds. A request for such a block would have found it if
// less had been placed there.
type reuse struct {
	// mask has the bits that no block of the sample has.
	mask atomic.Uint64

	mu       sync.Mutex
	capacity int64            // blocks, of all caches
	gone     map[Block]absent // those that nobody has asked for since
}

// absent states where a block was last: it is the nth that went from there.
type absent struct {
	from *returns
	nth  int64
}

// returns are what went from one cache. They belong to reuse's lock, but for share.
type returns struct {
	capacity    int64         // blocks of the cache
	gone        int64         // blocks, ever
	waiting     []eviction    // the latest, of which it is not decided whether they are asked for
	decided     int64         // those before them
	lost, asked float64       // of the decided: all, and those that were asked for
	share       atomic.Uint64 // float64: of the lost the asked
}

// eviction is a block that went.
type eviction struct {
	block Block
	at    int64 // how many had gone before
	asked bool
}

const (
	// remembered is about how many evicted blocks are remembered: the sample is made so
	// that they are no more, and that it has no more than one block in fewest.
	remembered = 1 << 12
	fewest     = 16
	// believed is from how many evicted blocks of the sample on the share is believed,
	// and latest about how many of them count.
	believed, latest = 64, 2048
)

// resize says that a cache holds so many blocks.
func (r *reuse) resize(c *returns, capacity int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.capacity += capacity - c.capacity
	c.capacity = capacity
	one := uint64(fewest)
	for one < math.MaxUint64/4 && uint64(r.capacity)/one > remembered {
		one *= 2
	}
	r.mask.Store(one - 1)
}

// sampled appends to dst the blocks that belong to the sample.
func (r *reuse) sampled(dst, blocks []Block) []Block {
	mask := Block(r.mask.Load())
	for _, b := range blocks {
		if b&mask == 0 {
			dst = append(dst, b)
		}
	}
	return dst
}

// went notes that sampled blocks are in no cache any more.
func (r *reuse) went(c *returns, blocks []Block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone == nil {
		r.gone = make(map[Block]absent)
	}
	for _, b := range blocks {
		r.gone[b] = absent{c, c.decided + int64(len(c.waiting))}
		c.waiting = append(c.waiting, eviction{block: b, at: c.gone})
		c.gone += int64(r.mask.Load()) + 1
	}
	for len(c.waiting) > 0 && c.gone-c.waiting[0].at > c.capacity {
		r.decide(c)
	}
}

// decide decides about the oldest that went from a cache.
func (r *reuse) decide(c *returns) {
	e := &c.waiting[0]
	if c.lost++; c.lost > latest {
		c.lost, c.asked = c.lost/2, c.asked/2
	}
	if e.asked {
		c.asked++
	} else if r.gone[e.block] == (absent{c, c.decided}) {
		delete(r.gone, e.block)
	}
	c.waiting = c.waiting[1:]
	c.decided++
	if c.lost >= believed {
		c.share.Store(math.Float64bits(c.asked / c.lost))
	}
}

// asked notes that a prompt has sampled blocks that its cache did not hold.
func (r *reuse) asked(blocks []Block) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range blocks {
		if a, ok := r.gone[b]; ok {
			delete(r.gone, b)
			a.from.waiting[a.nth-a.from.decided].asked = true
		}
	}
}

// forget takes a cache's evictions back, as it is dropped.
func (r *reuse) forget(c *returns) {
	r.resize(c, 0)
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range c.waiting {
		if b := c.waiting[i].block; r.gone[b].from == c {
			delete(r.gone, b)
		}
	}
	c.waiting = nil
}

// Reuse returns the share of evicted blocks that are needed again before the cache has
// evicted as much as it holds, while no other cache has them. It is 0 while that is
// unknown.
func (c *Cache) Reuse() float64 { return math.Float64frombits(c.returns.share.Load()) }
