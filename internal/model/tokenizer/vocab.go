package tokenizer

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// shortPiece is the longest piece, in bytes, that is its own key in a table.
const shortPiece = 16

// pieceKey is a short piece, padded with zeros.
type pieceKey struct {
	lo, hi uint64
}

// keyOf reads the key of s[i:end], which is at most shortPiece bytes. Where
// the text goes on far enough it is two loads and a mask.
func keyOf(s []byte, i, end int) pieceKey {
	n := end - i
	if i+shortPiece <= len(s) {
		w := s[i : i+shortPiece : i+shortPiece]
		lo, hi := binary.LittleEndian.Uint64(w), binary.LittleEndian.Uint64(w[8:])
		if n <= 8 {
			return pieceKey{lo: lo & (^uint64(0) >> (64 - 8*uint(n)))}
		}
		return pieceKey{lo: lo, hi: hi & (^uint64(0) >> (128 - 8*uint(n)))}
	}
	var w [shortPiece]byte
	copy(w[:], s[i:end])
	return pieceKey{binary.LittleEndian.Uint64(w[:]), binary.LittleEndian.Uint64(w[8:])}
}

// hash mixes the key and the length, which tells "a" from "a\x00".
func (k pieceKey) hash(n int) uint64 {
	h, l := bits.Mul64(k.lo^0x9e3779b97f4a7c15^uint64(n), k.hi^0xd6e8feb86659fd93)
	return (h ^ l) * 0xff51afd7ed558ccd
}

// tinyPiece is the longest piece, in bytes, whose key has no second half. Most pieces of a text
// are tiny.
const tinyPiece = 8

// pieceTable maps short pieces to the token of the same bytes. Apart from the marks, it is
// written while loading and then only read. Places are probed linearly. Texts look all over it,
// and other work pushes it out of the processor's caches again and again, so it is small: tiny
// pieces, with half of the key, fill two thirds of their places, and no place lies across two
// lines of a cache. Longer ones fill at most half of a power of two.
type pieceTable struct {
	tiny  []tinySlot
	slots []pieceSlot
	shift uint
}

type tinySlot struct {
	lo uint64
	pieceToken
}

type pieceSlot struct {
	key pieceKey
	pieceToken
}

// pieceToken is the token of a piece.
type pieceToken struct {
	id uint32
	// note is the length of the piece and its mark; 0 is an empty slot. Every encoder may
	// write the mark, each the same one, so it is read and written by atomic operations.
	note uint32
}

// The marks of a piece whose bytes are a token's.
const (
	pieceUndecided uint32 = iota << 8 // nobody has asked yet
	pieceWhole                        // the bytes encode to the token
	pieceSplit                        // they encode to other ids

	pieceMarks = pieceWhole | pieceSplit
)

func newPieceTable(tiny, longer int) pieceTable {
	width := tableWidth(longer)
	return pieceTable{tiny: makeLarge[tinySlot](tiny + tiny/2 + 1), slots: makeLarge[pieceSlot](1 << width), shift: 64 - width}
}

// tableWidth is the log2 of the slots of a table that is at most half full.
func tableWidth(entries int) uint { return uint(max(4, bits.Len(uint(2*entries)))) }

// pieceGroup is pieces that are inserted together: all places are read first, so that the
// machine waits for these together.
type pieceGroup struct {
	pieces [32]pieceSlot
	places [32]uint64
	n      int
	notes  uint32 // keeps the compiler from leaving out reads
}

// insert inserts a piece, at the latest when the group is flushed.
func (t *pieceTable) insert(g *pieceGroup, piece []byte, id, mark uint32) {
	k, n := keyOf(piece, 0, len(piece)), len(piece)
	g.pieces[g.n] = pieceSlot{key: k, pieceToken: pieceToken{id: id, note: uint32(n) | mark}}
	if n <= tinyPiece {
		g.places[g.n] = t.tinyPlace(k.hash(n))
	} else {
		g.places[g.n] = k.hash(n) >> t.shift
	}
	if g.n++; g.n == len(g.pieces) {
		t.flush(g)
	}
}

func (t *pieceTable) flush(g *pieceGroup) {
	for i, at := range g.places[:g.n] {
		if g.pieces[i].tiny() {
			g.notes += t.tiny[at].note
		} else {
			g.notes += t.slots[at].note
		}
	}
	mask := uint64(len(t.slots) - 1)
	for i, at := range g.places[:g.n] {
		p := &g.pieces[i]
		if p.tiny() {
			for t.tiny[at].note != 0 {
				at = t.tinyAfter(at)
			}
			t.tiny[at] = tinySlot{p.key.lo, p.pieceToken}
			continue
		}
		for t.slots[at].note != 0 {
			at = (at + 1) & mask
		}
		t.slots[at] = *p
	}
	g.n = 0
}

func (s *pieceSlot) tiny() bool { return s.note&^pieceMarks <= tinyPiece }

// tinyPlace returns where a tiny piece is looked for first.
func (t *pieceTable) tinyPlace(hash uint64) uint64 {
	at, _ := bits.Mul64(hash, uint64(len(t.tiny)))
	return at
}

// tinyAfter returns the place after one.
func (t *pieceTable) tinyAfter(at uint64) uint64 {
	if at++; at == uint64(len(t.tiny)) {
		return 0
	}
	return at
}

// find returns the token of a piece, and its mark; nil if no token has these bytes.
func (t *pieceTable) find(k pieceKey, hash uint64, n int) (token *pieceToken, mark uint32) {
	if n > tinyPiece {
		return t.findLonger(k, hash, n)
	}
	tiny := t.tiny
	for at := t.tinyPlace(hash); at < uint64(len(tiny)); at = t.tinyAfter(at) {
		slot := &tiny[at]
		note := atomic.LoadUint32(&slot.note)
		if slot.lo == k.lo && note&^pieceMarks == uint32(n) {
			return &slot.pieceToken, note & pieceMarks
		}
		if note == 0 {
			break
		}
	}
	return nil, pieceSplit
}

func (t *pieceTable) findLonger(k pieceKey, hash uint64, n int) (token *pieceToken, mark uint32) {
	mask := uint64(len(t.slots) - 1)
	for at := hash >> t.shift; ; at = (at + 1) & mask {
		slot := &t.slots[at&mask]
		note := atomic.LoadUint32(&slot.note)
		if slot.key == k && note&^pieceMarks == uint32(n) {
			return &slot.pieceToken, note & pieceMarks
		}
		if note == 0 {
			return nil, pieceSplit
		}
	}
}

// decide finds out whether a piece, whose bytes are those of a token, encodes to it.
func (v *vocab) decide(piece []byte, id uint32) (mark uint32) {
	var ids []uint32
	if len(piece) <= shortMerge {
		var buf [shortMerge]uint32
		ids = v.mergeShort(buf[:0], piece)
	} else {
		var m merger
		ids, _ = m.merge(v, nil, piece, neverPause{})
	}
	if len(ids) == 1 && ids[0] == id {
		return pieceWhole
	}
	return pieceSplit
}

// decideShort is decide of a short piece, which is not asked again.
func (v *vocab) decideShort(piece []byte, token *pieceToken) (mark uint32) {
	mark = v.decide(piece, token.id)
	atomic.StoreUint32(&token.note, uint32(len(piece))|mark)
	return mark
}

// findLong returns the token that a long piece is.
func (v *vocab) findLong(piece []byte) (id uint32, ok bool) {
	if len(piece) > v.longest {
		return 0, false
	}
	slot := v.wholeLong.find(unsafe.String(unsafe.SliceData(piece), len(piece)))
	if slot == nil {
		return 0, false
	}
	token := &v.long[slot.id]
	mark := atomic.LoadUint32(&token.mark)
	if mark == pieceUndecided {
		mark = v.decide(piece, token.id)
		atomic.StoreUint32(&token.mark, mark)
	}
	return token.id, mark == pieceWhole
}

// noMerge is the value of a pair that does not merge. It sorts after all that
// do.
const noMerge = ^uint64(0)

// mergeTable maps a pair of ids to rank<<32 | merged id. It is written while
// loading and then only read.
type mergeTable struct {
	slots []mergeSlot
	shift uint
}

type mergeSlot struct {
	pair    uint64
	inverse uint64 // of the value, so that an empty slot, which has noMerge, is zero
}

func newMergeTable(entries int) mergeTable {
	width := tableWidth(entries)
	return mergeTable{slots: makeLarge[mergeSlot](1 << width), shift: 64 - width}
}

func pairOf(a, b uint32) uint64 { return uint64(a)<<32 | uint64(b) }

// insert sets a pair's value; a later merge of the same pair replaces an
// earlier one, as in the reference.
func (t *mergeTable) insert(a, b uint32, value uint64) {
	pair, mask := pairOf(a, b), uint64(len(t.slots)-1)
	for at := pair * 0x9e3779b97f4a7c15 >> t.shift; ; at = (at + 1) & mask {
		slot := &t.slots[at]
		if slot.inverse == 0 || slot.pair == pair {
			*slot = mergeSlot{pair, ^value}
			return
		}
	}
}

func (t *mergeTable) find(a, b uint32) uint64 {
	pair, mask := pairOf(a, b), uint64(len(t.slots)-1)
	for at := pair * 0x9e3779b97f4a7c15 >> t.shift; ; at = (at + 1) & mask {
		slot := &t.slots[at&mask]
		if slot.pair == pair || slot.inverse == 0 {
			return ^slot.inverse
		}
	}
}

// longPiece is a token of more than shortPiece bytes, with the mark of its piece.
type longPiece struct{ id, mark uint32 }

// vocab is a BPE vocabulary, ready to encode with. But for the marks of pieces, which
// every encoder sets alike, it is immutable.
type vocab struct {
	byteIDs [256]uint32 // symbols of a byte-level vocabulary
	runes   *runeTable  // symbols of the others, or nil
	unknown unknown     // what a rune becomes that has no symbol
	merges  mergeTable
	ranks   int // number of merges
	// whole and wholeLong hold the tokens as pieces of text, with a mark that says whether
	// their own bytes encode to them. If merges are ignored for pieces that are
	// tokens, all of a byte-level vocabulary are marked so.
	whole     pieceTable
	wholeLong *lexicon // places in long
	long      []longPiece
	longest   int // length of the longest in wholeLong
	widest    int // length of the longest token of a byte-level vocabulary
	// words is set if the tokens of another vocabulary are found whatever their merges
	// give. They end there in the text of Tokenizer.ids; added tokens come after them.
	words uint32
	cut   scanner // cuts words where no merge can join; nil if byte-level
}
