package tokenizer

import (
	"sync/atomic"

	"github.com/zeebo/xxh3"
)

// The bounds of the caches of pieces that become several ids.
const (
	splitWidth = 16 // log2 of the entries of a splitCache
	splitIDs   = 3  // most ids of an entry

	cacheWidth = 14        // log2 of the slots of a pieceCache
	cachePiece = 256       // longest piece kept, in bytes
	cacheBytes = 512 << 10 // text kept for long pieces
)

// splitCache remembers what short pieces became that are no token, unless they became many ids.
// A text of 50,000 tokens has some 3,000 of them, and to merge one takes fifty times as long as
// to find it. The texts of a day have tens of thousands, so all encoders of a tokenizer share
// one large cache, of 2 MB.
//
// A piece is its own key, so what is found is exact. Encoders read and write entries at the same
// time. A writer first marks the entry, and a reader looks at its version before and after, so
// that it takes nothing of two writers. Which entries are kept changes only speed.
type splitCache struct {
	entries []splitEntry
	age     atomic.Uint32 // of the entries that count; others are of before a clear
}

// splitEntry is half a line of the machine's cache. Its other half is the entry that a piece has
// if another one has its own.
type splitEntry struct {
	lo, hi uint64 // of the key
	first  uint64 // two ids, the length of the piece, the number of ids, the age
	last   uint64 // the third id, and the version
}

// The bits of a splitEntry.
const (
	splitLength  = 48                                            // where the length begins in first
	splitCount   = 53                                            // and the number of ids
	splitAge     = 55                                            // and the age
	splitSame    = uint64(splitAges)<<splitAge | 31<<splitLength // what is known of a piece that is looked for
	splitWriting = 1 << 24                                       // is set in last during a write
	splitVersion = 1 << 25                                       // 1 in the version in last
	splitAges    = 1<<(64-splitAge) - 1
)

func newSplitCache() *splitCache {
	c := &splitCache{entries: makeLarge[splitEntry](1 << splitWidth)}
	c.age.Store(1)
	return c
}

func (c *splitCache) clear() {
	if c.age.Add(1) > splitAges { // ages would repeat
		for i := range c.entries {
			c.entries[i].write(pieceKey{}, 0, 0)
		}
		c.age.Store(1)
	}
}

// known is what first has, besides ids, of a piece of n bytes.
func (c *splitCache) known(n int) uint64 {
	return uint64(n)<<splitLength | uint64(c.age.Load())<<splitAge
}

// get appends what a piece became.
func (c *splitCache) get(dst []uint32, k pieceKey, hash uint64, n int) ([]uint32, bool) {
	at, known := hash>>(64-splitWidth), c.known(n)
	first, last, ok := c.entries[at].read(k, known)
	if !ok {
		if first, last, ok = c.entries[at^1].read(k, known); !ok {
			return dst, false
		}
	}
	const id = 1<<24 - 1
	switch ids := [splitIDs]uint32{uint32(first & id), uint32(first >> 24 & id), uint32(last & id)}; first >> splitCount & 3 {
	case 1:
		dst = append(dst, ids[0])
	case 2:
		dst = append(dst, ids[0], ids[1])
	case 3:
		dst = append(dst, ids[:]...)
	}
	return dst, true
}

func (e *splitEntry) read(k pieceKey, known uint64) (first, last uint64, ok bool) {
	last = atomic.LoadUint64(&e.last)
	if atomic.LoadUint64(&e.lo) != k.lo || atomic.LoadUint64(&e.hi) != k.hi {
		return 0, 0, false
	}
	first = atomic.LoadUint64(&e.first)
	return first, last, first&splitSame == known && last&splitWriting == 0 && atomic.LoadUint64(&e.last) == last
}

// put remembers a piece, unless it became too many ids.
func (c *splitCache) put(k pieceKey, hash uint64, n int, ids []uint32) bool {
	if len(ids) > splitIDs {
		return false
	}
	var all [splitIDs]uint32
	for i, id := range ids {
		if id >= 1<<24 {
			return false
		}
		all[i] = id
	}
	at, known := hash>>(64-splitWidth), c.known(n)
	e := &c.entries[at]
	if c.taken(e, known) {
		if other := &c.entries[at^1]; !c.taken(other, known) {
			e = other
		}
	}
	e.write(k, known|uint64(len(ids))<<splitCount|uint64(all[1])<<24|uint64(all[0]), uint64(all[2]))
	return true
}

// taken reports whether an entry is one of now.
func (c *splitCache) taken(e *splitEntry, known uint64) bool {
	return atomic.LoadUint64(&e.first)>>splitAge == known>>splitAge
}

// write replaces an entry, unless another encoder does.
func (e *splitEntry) write(k pieceKey, first, third uint64) {
	old := atomic.LoadUint64(&e.last)
	if old&splitWriting != 0 || !atomic.CompareAndSwapUint64(&e.last, old, old|splitWriting) {
		return
	}
	atomic.StoreUint64(&e.lo, k.lo)
	atomic.StoreUint64(&e.hi, k.hi)
	atomic.StoreUint64(&e.first, first)
	atomic.StoreUint64(&e.last, third|(old&^(splitWriting-1)+splitVersion))
}

// pieceCache is an encoder's own. It remembers what pieces became that are long or became many
// ids. They are kept as text, which is compared, so that a collision of hashes is a miss. A new
// entry replaces the one in its slot; when the text is full it starts anew. Which entries are
// kept changes only speed.
type pieceCache struct {
	long []longEntry
	text []byte
	ids  []uint32
	// age is that of the entries that count; others are of before a clear.
	age uint16
}

type longEntry struct {
	hash     uint64
	text     uint32 // offsets
	ids      uint32
	n, count uint16 // n is 0 in an empty slot
	age      uint16
}

func newPieceCache() *pieceCache { return &pieceCache{long: make([]longEntry, 1<<cacheWidth)} }

func (c *pieceCache) clear() {
	if c.age++; c.age == 0 { // ages would repeat
		clear(c.long)
	}
	c.text, c.ids = c.text[:0], c.ids[:0]
}

// getLong appends what a piece became that is long or became many ids.
func (c *pieceCache) getLong(dst []uint32, piece []byte) (ids []uint32, hash uint64, ok bool) {
	hash = xxh3.Hash(piece)
	e := &c.long[hash>>(64-cacheWidth)]
	if e.hash != hash || int(e.n) != len(piece) || e.age != c.age || string(c.text[e.text:int(e.text)+len(piece)]) != string(piece) {
		return dst, hash, false
	}
	return append(dst, c.ids[e.ids:int(e.ids)+int(e.count)]...), hash, true
}

// putLong remembers a piece of at most cachePiece bytes.
func (c *pieceCache) putLong(piece []byte, hash uint64, ids []uint32) {
	if len(c.text)+len(piece) > cacheBytes {
		c.clear()
	}
	c.long[hash>>(64-cacheWidth)] = longEntry{
		hash: hash, text: uint32(len(c.text)), ids: uint32(len(c.ids)),
		n: uint16(len(piece)), count: uint16(len(ids)), age: c.age,
	}
	c.text = append(c.text, piece...)
	c.ids = append(c.ids, ids...)
}
