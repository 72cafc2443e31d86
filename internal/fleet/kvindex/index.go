package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v4"
)

// Index holds the segments of all caches.
type Index struct {
	segments *xsync.Map[Block, *segment] // by their first block
	maxBytes int64
	bytes    atomic.Int64
	reuse    reuse

	mu     sync.Mutex
	caches []*Cache // by ID; nil where one was dropped
	free   []uint32
}

// New returns an index of at most about maxBytes. Beyond that a placement evicts
// blocks of its own cache.
func New(maxBytes int64) *Index {
	return &Index{segments: xsync.NewMap[Block, *segment](), maxBytes: maxBytes}
}

// Bytes returns about how much memory the index uses: the hashes, the segments with
// their holders, and the map.
func (x *Index) Bytes() int64 { return x.bytes.Load() }

// segment is a run of blocks. The blocks never change.
type segment struct {
	blocks  []Block
	holders atomic.Pointer[holders] // nil where there are none

	mu   sync.Mutex // of those who change holders, or what they say
	dead bool       // left the map, for it had no holder
}

// holders are the caches that have a segment from its beginning. Elements below n
// are never moved or reused, so that readers need no lock: what joins is put behind
// them, and what leaves makes a new one.
type holders struct {
	n   atomic.Int32
	all []holder
}

// holder is one cache that has a segment's first blocks.
type holder struct {
	cache  uint32
	node   int32        // of the first blocks, in the cache's list
	blocks atomic.Int32 // held, or to be held at ready
	sure   atomic.Int32 // of them those that are there already
	ready  atomic.Int64
}

// The cost in bytes of a segment and of a holder beside the hashes: the structs, the overhead of
// the allocator, and the entry of the map with its share of free places.
const (
	segmentBytes = 160
	holderBytes  = 24
	nodeBytes    = 32
)

func (h *holders) list() []holder {
	if h == nil {
		return nil
	}
	return h.all[:h.n.Load()]
}

func (s *segment) holder(cache uint32) *holder {
	all := s.holders.Load().list()
	for i := range all {
		if all[i].cache == cache {
			return &all[i]
		}
	}
	return nil
}

// change updates the segment's entry for a cache that holds it. When another cache
// joins or leaves, the holders are copied, and a concurrent change of the old ones
// would be lost. The caller holds the cache's lock, and only the lock's holder changes
// the cache's entry, so reading it takes no lock.
func (s *segment) change(cache uint32, do func(h *holder)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s.holder(cache))
}

// add makes cache a holder. It is false where the segment has died meanwhile. The
// caller holds the cache's lock, and the cache is no holder yet.
func (s *segment) add(x *Index, cache uint32, node, blocks, sure int32, ready int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return false
	}
	h := s.holders.Load()
	n := len(h.list())
	if h == nil || n == len(h.all) {
		h = s.copyOf(x, h.list(), max(1, 2*n))
		defer s.holders.Store(h)
	}
	e := &h.all[n]
	e.cache, e.node = cache, node
	e.blocks.Store(blocks)
	e.sure.Store(sure)
	e.ready.Store(ready)
	h.n.Store(int32(n + 1))
	return true
}

// remove takes cache from the holders, and the segment out of the map with the last
// of them.
func (s *segment) remove(x *Index, cache uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.holders.Load().list()
	if len(old) == 1 {
		s.dead = true
		s.copyOf(x, nil, 0)
		s.holders.Store(nil)
		x.segments.Compute(s.blocks[0], func(found *segment, ok bool) (*segment, xsync.ComputeOp) {
			if ok && found == s {
				return nil, xsync.DeleteOp
			}
			return found, xsync.CancelOp
		})
		x.bytes.Add(-s.bytes())
		return
	}
	kept := s.copyOf(x, nil, len(old)-1)
	for i := range old {
		if e := &old[i]; e.cache != cache {
			kept.put(e)
		}
	}
	s.holders.Store(kept)
}

// copyOf returns holders with room for size, the given ones among them, and counts what
// that changes.
func (s *segment) copyOf(x *Index, old []holder, size int) *holders {
	had := 0
	if h := s.holders.Load(); h != nil {
		had = len(h.all)
	}
	x.bytes.Add(int64(size-had) * holderBytes)
	h := &holders{all: make([]holder, size)}
	for i := range old {
		h.put(&old[i])
	}
	return h
}

func (h *holders) put(e *holder) {
	n := h.n.Load()
	to := &h.all[n]
	to.cache, to.node = e.cache, e.node
	to.blocks.Store(e.blocks.Load())
	to.sure.Store(e.sure.Load())
	to.ready.Store(e.ready.Load())
	h.n.Store(n + 1)
}

func (s *segment) bytes() int64 { return segmentBytes + 8*int64(len(s.blocks)) }

// common is how many of blocks are the segment's own, from its beginning.
func (s *segment) common(blocks []Block) int {
	n := min(len(s.blocks), len(blocks))
	// A chain that agrees at a place agrees everywhere before it.
	if s.blocks[n-1] == blocks[n-1] {
		return n
	}
	low, high := 1, n-1 // the first block is known to agree
	for low < high {
		if mid := (low + high + 1) / 2; s.blocks[mid-1] == blocks[mid-1] {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

// segment finds the one that begins with blocks[0], or makes it of all of blocks.
func (x *Index) segment(blocks []Block) *segment {
	if s, ok := x.segments.Load(blocks[0]); ok {
		return s
	}
	made := &segment{blocks: append(make([]Block, 0, len(blocks)), blocks...)}
	s, found := x.segments.LoadOrStore(blocks[0], made)
	if !found {
		x.bytes.Add(made.bytes())
	}
	return s
}
