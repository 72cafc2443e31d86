package kvindex

import (
	"sync"
	"sync/atomic"
)

// Cache is the assumed content of one rank's KV cache.
type Cache struct {
	// ID is the cache's index in Matches. IDs are small, and reused after Drop.
	ID    uint32
	index *Index

	mu       sync.Mutex
	capacity int64 // blocks
	used     int64
	coming   int64         // blocks of the used that are placed and not known to be there
	growing  int64         // blocks of the capacity that nobody has placed yet
	held     map[Block]use // what requests use, by the first block of its segment
	inUse    atomic.Int64  // blocks of it
	returns  *returns
	sample   []Block // of the blocks that are looked at
	nodes    []node  // nodes[0] is the head of the list: next is the newest, prev the oldest
	free     []int32
	path     []int32 // of the placement under way
	dropped  bool
}

// use is how many requests use a segment, and how much of it.
type use struct{ requests, blocks int32 }

// node is the place of a segment's blocks in the order of use. Where a segment's
// first blocks were used without those behind them, they have a node of their own,
// and so on: blocks are never older than those behind them.
type node struct {
	segment    *segment
	prev, next int32 // in the order of use
	from, to   int32 // of the segment's blocks
	below      int32 // the node of those behind them; 0 is none
	above      int32 // that of those before them
}

// Cache adds a cache with a capacity in blocks.
func (x *Index) Cache(capacity int64) *Cache {
	x.mu.Lock()
	defer x.mu.Unlock()
	c := &Cache{index: x, capacity: capacity, nodes: make([]node, 1), returns: new(returns)}
	x.reuse.resize(c.returns, capacity)
	if n := len(x.free); n > 0 {
		c.ID = x.free[n-1]
		x.free = x.free[:n-1]
		x.caches[c.ID] = c
		return c
	}
	c.ID = uint32(len(x.caches))
	x.caches = append(x.caches, c)
	return c
}

// Place records that a prompt of these blocks will be in the cache from time ready on,
// or is there now if ready is 0. The blocks become the most recently used ones. had is
// the part that was there before.
func (c *Cache) Place(blocks []Block, ready int64) (had Had) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped {
		return had
	}
	c.path, c.sample = c.path[:0], c.sample[:0]
	at := int32(0)
	for len(blocks) > 0 {
		s := c.index.segment(blocks)
		n := int32(s.common(blocks))
		i, old, ok := c.hold(s, n, ready)
		if !ok {
			continue // it has left the map meanwhile
		}
		if had.Sure == at {
			had.Sure += old.Sure
		}
		if had.Held == at {
			had.Held += old.Held
		}
		at += n
		c.sample = c.index.reuse.sampled(c.sample, blocks[old.Held:n])
		c.path = append(c.path, i)
		blocks = blocks[n:]
	}
	if len(c.sample) > 0 {
		c.index.reuse.asked(c.sample)
	}
	// The root comes last, so that a path is evicted from its leaf.
	for i := len(c.path) - 1; i >= 0; i-- {
		c.unlink(c.path[i])
		c.link(c.path[i], 0)
	}
	c.evict()
	return had
}

// Had is the number of a prompt's first blocks that a cache had before the prompt was
// placed. Held counts the blocks that are there or announced. Sure counts those of
// them that a request has found or computed.
type Had struct{ Sure, Held int32 }

// hold notes that the cache has n blocks of the segment, and gives their node and what
// it had of them.
func (c *Cache) hold(s *segment, n int32, ready int64) (_ int32, had Had, _ bool) {
	sure := n
	if ready != 0 {
		sure = 0
	}
	h := s.holder(c.ID)
	if h == nil {
		i := c.node(node{segment: s, to: n})
		if !s.add(c.index, c.ID, i, n, sure, ready) {
			c.release(i)
			return 0, had, false
		}
		c.link(i, 0)
		c.used += int64(n)
		c.coming += int64(n - sure)
		return i, had, true
	}
	c.part(h.node, n)
	held := h.blocks.Load()
	had = Had{Sure: min(h.sure.Load(), n), Held: min(held, n)}
	if n > held {
		c.used += int64(n - held)
		c.nodes[h.node].to = n
	}
	if n > held || sure > h.sure.Load() {
		s.change(c.ID, func(h *holder) {
			if n > held {
				h.ready.Store(ready)
				h.blocks.Store(n)
			}
			old := h.sure.Load()
			h.sure.Store(max(old, sure))
			c.coming += int64(max(n-held, 0) - max(sure-old, 0))
		})
	}
	return h.node, had, true
}

// part makes the segment's first n blocks, as far as they are held, the ones of its
// first node.
func (c *Cache) part(first, n int32) {
	f := &c.nodes[first]
	for f.to < n && f.below != 0 {
		i := f.below
		b := &c.nodes[i]
		if b.to > n {
			b.from, f.to = n, n // what is behind stays as old as it was
			return
		}
		// Both are used now, and need one node only.
		f.to = b.to
		c.joint(first, b.below)
		c.unlink(i)
		c.release(i)
	}
	if f.to <= n {
		return
	}
	rest := c.node(node{segment: f.segment, from: n, to: f.to})
	f = &c.nodes[first]
	below := f.below
	f.to = n
	c.joint(rest, below)
	c.joint(first, rest)
	c.link(rest, first) // as old as the first blocks are until now
}

// joint makes the one node the next below the other.
func (c *Cache) joint(above, below int32) {
	c.nodes[above].below = below
	if below != 0 {
		c.nodes[below].above = above
	}
}

// Cancel reports that the blocks that a placement announced for the time ready will
// not be computed.
func (c *Cache) Cancel(blocks []Block, ready int64) {
	c.walk(blocks, func(h *holder, _ int32) {
		if h.ready.Load() == ready {
			c.cut(h.node, h.sure.Load())
		}
	})
}

// Truncate reports that the cache was found to hold no more than the first kept of the
// blocks.
func (c *Cache) Truncate(blocks []Block, kept int) {
	c.walk(blocks, func(h *holder, common int32) {
		keep := int32(min(kept, int(common)))
		if kept -= int(keep); keep < common {
			c.cut(h.node, keep)
		}
	})
}

// walk calls do for each segment of the blocks that the cache has, with the number
// of its blocks that are theirs.
func (c *Cache) walk(blocks []Block, do func(h *holder, common int32)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(blocks) > 0 && !c.dropped {
		s, ok := c.index.segments.Load(blocks[0])
		if !ok {
			return
		}
		n := s.common(blocks)
		h := s.holder(c.ID)
		if h == nil {
			return
		}
		do(h, int32(n))
		blocks = blocks[n:]
	}
}

// cut forgets what the cache has of a segment, whose first node is given, but for its
// first keep blocks.
func (c *Cache) cut(first, keep int32) {
	last := first
	for c.nodes[last].below != 0 {
		last = c.nodes[last].below
	}
	for c.nodes[last].to > keep {
		n := c.nodes[last]
		if n.from < keep {
			c.shrink(last, n.to-keep)
			return
		}
		if c.remove(last); n.above == 0 {
			return
		}
		last = n.above
	}
}

// shrink forgets the last blocks of a segment, some of those of its last node.
func (c *Cache) shrink(last, blocks int32) {
	n := &c.nodes[last]
	n.to -= blocks
	c.used -= int64(blocks)
	to := n.to
	n.segment.change(c.ID, func(h *holder) {
		h.blocks.Store(to)
		sure := h.sure.Load()
		h.sure.Store(min(sure, to))
		c.coming -= int64(blocks - max(sure-to, 0))
	})
}

// Hold marks placed blocks as used by a request until Release: an engine never evicts a
// block that a request uses, however old it is. It appends the argument for Release to
// dst. If requests share some of the blocks, the most recently used ones are held.
func (c *Cache) Hold(dst, blocks []Block) []Block {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = map[Block]use{}
	}
	for len(blocks) > 0 && !c.dropped {
		s, ok := c.index.segments.Load(blocks[0])
		if !ok {
			break
		}
		n, u := s.common(blocks), c.held[blocks[0]]
		if more := int32(n) - u.blocks; more > 0 {
			u.blocks += more
			c.inUse.Add(int64(more))
		}
		u.requests++
		c.held[blocks[0]] = u
		dst = append(dst, blocks[0])
		blocks = blocks[n:]
	}
	return dst
}

// Release ends a Hold.
func (c *Cache) Release(held []Block) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, b := range held {
		u := c.held[b]
		if u.requests--; u.requests > 0 {
			c.held[b] = u
			continue
		}
		c.inUse.Add(-int64(u.blocks))
		delete(c.held, b)
	}
}

// InUse returns the number of blocks that requests use. A block that several use
// counts once.
func (c *Cache) InUse() int64 { return c.inUse.Load() }

// SetGrowing sets the number of blocks of output that is being generated. They take
// room now, and are placed when their content is known.
func (c *Cache) SetGrowing(blocks int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped {
		return
	}
	c.growing = blocks
	c.evict()
}

// SetCapacity sets the capacity of the cache in blocks.
func (c *Cache) SetCapacity(blocks int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped {
		return
	}
	c.index.reuse.resize(c.returns, blocks)
	c.capacity = blocks
	c.evict()
}

// Used returns the number of blocks that the cache is assumed to hold.
func (c *Cache) Used() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// Clear forgets all blocks: the cache is known to be empty.
func (c *Cache) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
}

func (c *Cache) clear() {
	for !c.dropped && c.nodes[0].prev != 0 {
		c.remove(c.nodes[0].prev)
	}
}

// Drop removes the cache, for example after a restart of its engine. Its ID may be
// reused. All other methods have no effect afterwards.
func (c *Cache) Drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dropped {
		return
	}
	c.index.reuse.forget(c.returns)
	c.clear()
	c.dropped = true
	c.nodes = nil
	x := c.index
	x.mu.Lock()
	defer x.mu.Unlock()
	x.caches[c.ID] = nil
	x.free = append(x.free, c.ID)
}

// evict removes the oldest segments until the rest fits. Segments in use by requests
// are spared and become as new as the latest, unless nothing else is left.
func (c *Cache) evict() {
	c.sample = c.sample[:0]
	spared, room := 0, max(c.capacity-c.growing, 0)+c.coming
	for c.used > room {
		oldest := c.nodes[0].prev
		n := &c.nodes[oldest]
		if n.from == 0 && spared < len(c.held) && c.held[n.segment.blocks[0]].requests > 0 {
			spared++
			c.unlink(oldest)
			c.link(oldest, 0)
			continue
		}
		if over := c.used - room; over < int64(n.to-n.from) {
			c.goes(n, n.to-int32(over))
			c.shrink(oldest, int32(over))
			break
		}
		c.goes(n, n.from)
		c.remove(oldest)
	}
	if len(c.sample) > 0 {
		c.index.reuse.went(c.returns, c.sample)
	}
	for c.index.bytes.Load() > c.index.maxBytes && c.nodes[0].prev != 0 {
		c.remove(c.nodes[0].prev)
	}
}

// goes notes the blocks of a node, from one on, that leave the only cache that holds
// them.
func (c *Cache) goes(n *node, from int32) {
	all := n.segment.holders.Load().list()
	for i := range all {
		if h := &all[i]; h.cache != c.ID {
			from = max(from, h.blocks.Load())
		}
	}
	if from < n.to {
		c.sample = c.index.reuse.sampled(c.sample, n.segment.blocks[from:n.to])
	}
}

// remove forgets the blocks of a node, which are the last that the cache has of
// their segment.
func (c *Cache) remove(i int32) {
	n := c.nodes[i]
	if n.from == 0 {
		c.used -= int64(n.to)
		c.coming -= int64(n.to - n.segment.holder(c.ID).sure.Load())
		n.segment.remove(c.index, c.ID)
	} else {
		c.shrink(i, n.to-n.from)
		c.nodes[n.above].below = 0
	}
	c.unlink(i)
	c.release(i)
}

func (c *Cache) node(n node) int32 {
	c.index.bytes.Add(nodeBytes)
	if last := len(c.free) - 1; last >= 0 {
		i := c.free[last]
		c.free = c.free[:last]
		c.nodes[i] = n
		return i
	}
	c.nodes = append(c.nodes, n)
	return int32(len(c.nodes) - 1)
}

func (c *Cache) release(i int32) {
	c.index.bytes.Add(-nodeBytes)
	c.nodes[i] = node{}
	c.free = append(c.free, i)
}

// link puts a node behind another in the order of use; the head is 0.
func (c *Cache) link(i, behind int32) {
	next := c.nodes[behind].next
	c.nodes[i].prev, c.nodes[i].next = behind, next
	c.nodes[next].prev, c.nodes[behind].next = i, i
}

func (c *Cache) unlink(i int32) {
	prev, next := c.nodes[i].prev, c.nodes[i].next
	c.nodes[prev].next, c.nodes[next].prev = next, prev
}
