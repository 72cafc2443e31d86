package kvevents

import (
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"

	"github.com/puzpuzpuz/xsync/v4"

	"weir/internal/fleet/kvindex"
)

// tree holds the blocks of one rank by the engine's names, each below its parent. A
// block without its parent is useless and is removed together with it, so if a block is
// resident, all blocks before it are. Engines remove the last blocks first, so this
// loses nothing.
//
// An engine may hold copies of a block, which it stores and removes one by one, so the
// copies are counted.
type tree struct {
	root     func(lora, salt string) kvindex.Block
	index    int // tokens of a block of the index
	budget   *Budget
	named    map[uint64]int32
	nodes    []node // nodes[0] is above those that begin prompts
	free     int32  // the first free one, joined by next; 0: none
	resident *xsync.Map[kvindex.Block, int32]
	size     int      // tokens of an engine's block; 0: not known yet
	ids      []uint32 // those of each node, where blocks of both sizes do not end together
	group    int      // the engine's cache that counts; -1: not known yet
	proven   bool     // some prompt's first block was seen to hold its ids alone
	doubtful bool     // and some not
	tokens   []uint32 // of the block of the index that is being put together
	last     [1]kvindex.Block
	count    atomic.Int64
	now      int64
	gone     [goneSlots]struct{ block, at atomic.Int64 } // of what was removed last, by its lowest bits
}

// goneSlots bounds what is remembered of blocks that were removed.
const goneSlots = 4096

type node struct {
	name         uint64
	chain        kvindex.Block // the last block of the index that ends by its end
	end          int32         // of its tokens, in the prompt
	copies       int32
	above, below int32
	prev, next   int32 // of those that follow the same block
	opaque       bool  // it is not known by its ids
}

func newTree(root func(lora, salt string) kvindex.Block, index, size int, budget *Budget) *tree {
	t := &tree{root: root, index: index, budget: budget, resident: xsync.NewMap[kvindex.Block, int32]()}
	t.size = size
	t.clear()
	return t
}

// clear forgets all blocks.
func (t *tree) clear() {
	t.budget.used.Add(-t.bytes() * int64(len(t.named)))
	t.named, t.nodes, t.free, t.ids = map[uint64]int32{}, make([]node, 1), 0, nil
	t.resident.Clear()
	t.group, t.proven, t.doubtful = -1, false, false
	t.count.Store(0)
}

// bytes is what a block costs.
func (t *tree) bytes() int64 {
	if t.aligned() {
		return blockBytes
	}
	return blockBytes + 4*int64(t.size)
}

// aligned reports whether each of the engine's blocks ends where one of the index does.
func (t *tree) aligned() bool { return t.size%t.index == 0 }

// outcome states what became of an event.
type outcome uint8

const (
	taken    outcome = iota
	passed           // it is of no cache that counts
	misfit           // its blocks are of another size, or do not go with what is known
	orphaned         // it follows a block that is not known
	full             // the budget does not allow it
)

// counts reports whether blocks are such that to have them means to have the prompt:
// those of full attention, in the engine's own memory.
func (t *tree) counts(e *Event) bool {
	switch {
	case e.Elsewhere, e.Medium != "" && e.Medium != "GPU":
		return false
	case e.Kind == Stored && e.Spec != "" && e.Spec != "full_attention" && e.Spec != "mla_attention" && e.Spec != "sink_full_attention":
		return false
	case t.group >= 0 && e.Group >= 0:
		return e.Group == t.group
	}
	return true
}

// store takes what a BlockStored says.
func (t *tree) store(e *Event) outcome {
	if !t.counts(e) {
		return passed
	}
	if t.size == 0 || len(t.named) == 0 && e.BlockSize != t.size {
		t.size = e.BlockSize
	}
	if e.BlockSize != t.size || len(e.Tokens) != len(e.Hashes)*t.size {
		return misfit
	}
	t.group = max(t.group, e.Group)
	at := int32(0)
	if e.Chained {
		var known bool
		if at, known = t.named[e.Parent]; !known {
			return orphaned
		}
	}
	first := !e.Chained
	for i, name := range e.Hashes {
		ids := e.Tokens[i*t.size : (i+1)*t.size]
		if n, known := t.named[name]; known {
			if t.nodes[n].above != at {
				return misfit
			}
			t.nodes[n].copies++
			at, first = n, false
			continue
		}
		opaque := t.nodes[at].opaque || e.Tells && e.Keyed[i]
		if !opaque && first && !e.Tells && e.LoRA == "" && e.Salt == "" {
			if opaque = name != FirstHash(ids); opaque {
				t.doubtful = true
			}
		}
		if !opaque && first && e.Salt == "" {
			t.proven = true
		}
		if t.nodes[at].end > maxPrompt-int32(t.size) {
			return misfit
		}
		n, ok := t.add(at, name, ids)
		if !ok {
			return full
		}
		if t.nodes[n].opaque = opaque; !opaque {
			t.place(n, ids, e)
		}
		at, first = n, false
	}
	t.count.Store(int64(len(t.named)))
	return taken
}

// maxPrompt is the longest way from a prompt's beginning, in tokens.
const maxPrompt = 1 << 30

// FirstHash returns the name that SGLang gives the first block of a prompt without a
// salt.
func FirstHash(ids []uint32) uint64 {
	h, _ := chainedHash(nil, ids)
	return h
}

// chainedHash is how SGLang names a block that follows the one of the digest, which is
// empty for none.
func chainedHash(prev []byte, ids []uint32) (uint64, []byte) {
	h := sha256.New()
	h.Write(prev)
	b := make([]byte, 0, 1024)
	for len(ids) > 0 {
		n := min(len(ids), cap(b)/4)
		b = b[:0]
		for _, id := range ids[:n] {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
		h.Write(b)
		ids = ids[n:]
	}
	digest := h.Sum(nil)
	return binary.BigEndian.Uint64(digest), digest
}

// add makes the node of a block that follows another one.
func (t *tree) add(above int32, name uint64, ids []uint32) (int32, bool) {
	if !t.budget.take(t.bytes()) {
		return 0, false
	}
	n := t.free
	if n != 0 {
		t.free = t.nodes[n].next
	} else {
		n = int32(len(t.nodes))
		t.nodes = append(t.nodes, node{})
	}
	if !t.aligned() {
		if need := (int(n) + 1) * t.size; need > len(t.ids) {
			t.ids = append(t.ids, make([]uint32, need-len(t.ids))...)
		}
		copy(t.ids[int(n)*t.size:], ids)
	}
	p := &t.nodes[above]
	t.nodes[n] = node{name: name, chain: p.chain, end: p.end + int32(t.size), copies: 1, above: above, next: p.below}
	if p.below != 0 {
		t.nodes[p.below].prev = n
	}
	p.below = n
	t.named[name] = n
	return n, true
}

// place finds the blocks of the index that end in a node, and marks the last of them as
// resident if both end together.
func (t *tree) place(i int32, ids []uint32, e *Event) {
	n := &t.nodes[i]
	if n.above == 0 {
		n.chain = t.root(e.LoRA, e.Salt)
	}
	before := int(n.end) - t.size
	if over := before % t.index; over > 0 {
		t.tokens = t.tail(t.tokens[:0], n.above, over)
		ids = append(t.tokens, ids...)
		t.tokens = ids
	}
	for len(ids) >= t.index {
		n.chain = kvindex.AppendChain(t.last[:0], n.chain, ids[:t.index], t.index)[0]
		ids = ids[t.index:]
	}
	if int(n.end)%t.index == 0 {
		t.resident.Compute(n.chain, func(had int32, _ bool) (int32, xsync.ComputeOp) { return had + 1, xsync.UpdateOp })
	}
}

// tail appends the last so many ids up to the end of a node.
func (t *tree) tail(dst []uint32, i int32, last int) []uint32 {
	if last > t.size {
		dst = t.tail(dst, t.nodes[i].above, last-t.size)
		last = t.size
	}
	ids := t.ids[int(i)*t.size : (int(i)+1)*t.size]
	return append(dst, ids[len(ids)-last:]...)
}

// remove applies a BlockRemoved event and returns the number of blocks that were not
// known.
func (t *tree) remove(e *Event) (strange int, o outcome) {
	if !t.counts(e) {
		return 0, passed
	}
	for _, name := range e.Hashes {
		i, known := t.named[name]
		if !known {
			strange++
			continue
		}
		if t.nodes[i].copies--; t.nodes[i].copies == 0 {
			t.drop(i)
		}
	}
	t.count.Store(int64(len(t.named)))
	return strange, taken
}

// drop takes out a block and all that follow it, the last ones first.
func (t *tree) drop(top int32) {
	i := top
	for {
		for t.nodes[i].below != 0 {
			i = t.nodes[i].below
		}
		above := t.nodes[i].above
		t.release(i)
		if i == top {
			return
		}
		i = above
	}
}

// release takes out a block that none follows.
func (t *tree) release(i int32) {
	n := &t.nodes[i]
	if n.prev != 0 {
		t.nodes[n.prev].next = n.next
	} else {
		t.nodes[n.above].below = n.next
	}
	if n.next != 0 {
		t.nodes[n.next].prev = n.prev
	}
	if !n.opaque && int(n.end)%t.index == 0 {
		g := &t.gone[n.chain%goneSlots]
		g.block.Store(int64(n.chain))
		g.at.Store(t.now)
		t.resident.Compute(n.chain, func(had int32, _ bool) (int32, xsync.ComputeOp) {
			if had <= 1 {
				return 0, xsync.DeleteOp
			}
			return had - 1, xsync.UpdateOp
		})
	}
	delete(t.named, n.name)
	t.budget.used.Add(-t.bytes())
	*n = node{next: t.free}
	t.free = i
}
