package tokenizer

import "github.com/zeebo/xxh3"

// The bounds of an encoder's cache of pieces that become several ids.
const (
	cacheWidth  = 14        // log2 of the slots of each table
	cacheInline = 3         // most ids of an entry for a short piece
	cachePiece  = 256       // longest piece kept, in bytes
	cacheBytes  = 512 << 10 // text kept for long pieces
)

// pieceCache remembers what pieces became. Short pieces of few ids, the bulk,
// are their own keys; others are kept as text, which is compared, so that a
// collision of hashes is a miss. A new entry replaces the one in its slot;
// when the text is full it starts anew. Which entries are kept changes only
// speed.
type pieceCache struct {
	short []shortEntry
	long  []longEntry
	text  []byte
	ids   []uint32
	// age is that of the entries that count; others are of before a clear.
	age uint16
}

type shortEntry struct {
	key pieceKey
	ids [cacheInline]uint32
	n   uint8 // length of the piece; 0 is an empty slot
	k   uint8 // number of ids
	age uint16
}

type longEntry struct {
	hash     uint64
	text     uint32 // offsets
	ids      uint32
	n, count uint16 // n is 0 in an empty slot
	age      uint16
}

func newPieceCache() *pieceCache {
	return &pieceCache{
		short: make([]shortEntry, 1<<cacheWidth),
		long:  make([]longEntry, 1<<cacheWidth),
	}
}

func (c *pieceCache) clear() {
	if c.age++; c.age == 0 { // ages would repeat
		clear(c.short)
		clear(c.long)
	}
	c.text, c.ids = c.text[:0], c.ids[:0]
}

// getShort appends what a short piece became.
func (c *pieceCache) getShort(dst []uint32, k pieceKey, hash uint64, n int) ([]uint32, bool) {
	e := &c.short[hash>>(64-cacheWidth)]
	if e.key != k || int(e.n) != n || e.age != c.age {
		return dst, false
	}
	if e.k == 2 {
		return append(dst, e.ids[0], e.ids[1]), true
	}
	return append(dst, e.ids[:e.k]...), true
}

// putShort remembers a short piece, unless it became too many ids.
func (c *pieceCache) putShort(k pieceKey, hash uint64, n int, ids []uint32) bool {
	if len(ids) > cacheInline {
		return false
	}
	e := &c.short[hash>>(64-cacheWidth)]
	e.key, e.n, e.k, e.age = k, uint8(n), uint8(len(ids)), c.age
	copy(e.ids[:], ids)
	return true
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
