package plane

import (
	"sync"
	"sync/atomic"
)

const (
	chunkBits = 10
	chunkSize = 1 << chunkBits
	maxSlots  = 1 << 16 // generations a session can hold
)

type slotChunk [chunkSize]atomic.Pointer[generation]

// table maps slots to generations. Slots are dense small numbers, so that they are
// short on the wire and lookup is two loads, without a lock: the reader looks up every
// stream of every step. Chunks are added and never moved.
type table struct {
	chunks [maxSlots / chunkSize]atomic.Pointer[slotChunk]

	mu     sync.Mutex
	free   []uint32 // used before, lowest use first
	next   uint32   // never used from here on
	closed bool
}

// get returns the generation in a slot, or nil.
func (t *table) get(slot uint32) *generation {
	if slot >= maxSlots {
		return nil
	}
	c := t.chunks[slot>>chunkBits].Load()
	if c == nil {
		return nil
	}
	return c[slot&(chunkSize-1)].Load()
}

// seating is what became of a generation that wanted a slot.
type seating uint8

const (
	seated seating = iota
	tableClosed
	tableFull
)

// seat assigns a free slot to g.
func (t *table) seat(g *generation) seating {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch n := len(t.free); {
	case t.closed:
		return tableClosed
	case n > 0:
		g.slot = t.free[n-1]
		t.free = t.free[:n-1]
	case t.next < maxSlots:
		g.slot = t.next
		if t.chunks[t.next>>chunkBits].Load() == nil {
			t.chunks[t.next>>chunkBits].Store(new(slotChunk))
		}
		t.next++
	default:
		return tableFull
	}
	t.chunks[g.slot>>chunkBits].Load()[g.slot&(chunkSize-1)].Store(g)
	return seated
}

// release frees g's slot, once.
func (t *table) release(g *generation) {
	g.Leave()
	cell := &t.chunks[g.slot>>chunkBits].Load()[g.slot&(chunkSize-1)]
	if !cell.CompareAndSwap(g, nil) {
		return
	}
	t.mu.Lock()
	t.free = append(t.free, g.slot)
	t.mu.Unlock()
}

// close lets nobody in any more and gives those who are.
func (t *table) close() []*generation {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	return t.all()
}

// all returns those that are in.
func (t *table) all() (all []*generation) {
	t.mu.Lock()
	next := t.next
	t.mu.Unlock()
	for slot := range next {
		if g := t.get(slot); g != nil {
			all = append(all, g)
		}
	}
	return all
}

// abandoned counts the slots that only wait for an engine's last word about a
// request whose hand-over failed.
func (t *table) abandoned() int {
	t.mu.Lock()
	next := t.next
	t.mu.Unlock()
	n := 0
	for slot := range next {
		if g := t.get(slot); g != nil && g.Abandoned() {
			n++
		}
	}
	return n
}

// live counts the slots in use.
func (t *table) live() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return int(t.next) - len(t.free)
}
