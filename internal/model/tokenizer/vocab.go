package tokenizer

import (
	"encoding/binary"
	"math/bits"
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

// pieceTable maps short pieces to the one id that each becomes. It is written
// while loading and then only read. Its slots are a power of two, at least
// twice the entries, probed linearly.
type pieceTable struct {
	slots []pieceSlot
	shift uint
}

type pieceSlot struct {
	key pieceKey
	id  uint32
	n   uint8 // length of the piece; 0 is an empty slot
}

func newPieceTable(entries int) pieceTable {
	width := tableWidth(entries)
	return pieceTable{slots: make([]pieceSlot, 1<<width), shift: 64 - width}
}

// tableWidth is the log2 of the slots of a table that is at most half full.
func tableWidth(entries int) uint { return uint(max(4, bits.Len(uint(2*entries)))) }

func (t *pieceTable) insert(piece []byte, id uint32) {
	k, n := keyOf(piece, 0, len(piece)), len(piece)
	mask := uint64(len(t.slots) - 1)
	for at := k.hash(n) >> t.shift; ; at = (at + 1) & mask {
		if t.slots[at].n == 0 {
			t.slots[at] = pieceSlot{key: k, id: id, n: uint8(n)}
			return
		}
	}
}

func (t *pieceTable) find(k pieceKey, hash uint64, n int) (id uint32, ok bool) {
	mask := uint64(len(t.slots) - 1)
	for at := hash >> t.shift; ; at = (at + 1) & mask {
		slot := &t.slots[at&mask]
		if slot.key == k && int(slot.n) == n {
			return slot.id, true
		}
		if slot.n == 0 {
			return 0, false
		}
	}
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
	pair  uint64
	value uint64 // noMerge in an empty slot
}

func newMergeTable(entries int) mergeTable {
	width := tableWidth(entries)
	t := mergeTable{slots: make([]mergeSlot, 1<<width), shift: 64 - width}
	for i := range t.slots {
		t.slots[i].value = noMerge
	}
	return t
}

func pairOf(a, b uint32) uint64 { return uint64(a)<<32 | uint64(b) }

// insert sets a pair's value; a later merge of the same pair replaces an
// earlier one, as in the reference.
func (t *mergeTable) insert(a, b uint32, value uint64) {
	pair, mask := pairOf(a, b), uint64(len(t.slots)-1)
	for at := pair * 0x9e3779b97f4a7c15 >> t.shift; ; at = (at + 1) & mask {
		slot := &t.slots[at]
		if slot.value == noMerge || slot.pair == pair {
			*slot = mergeSlot{pair, value}
			return
		}
	}
}

func (t *mergeTable) find(a, b uint32) uint64 {
	pair, mask := pairOf(a, b), uint64(len(t.slots)-1)
	for at := pair * 0x9e3779b97f4a7c15 >> t.shift; ; at = (at + 1) & mask {
		slot := &t.slots[at&mask]
		if slot.pair == pair || slot.value == noMerge {
			return slot.value
		}
	}
}

// vocab is a BPE vocabulary, ready to encode with. It is immutable.
type vocab struct {
	byteIDs [256]uint32 // symbols of a byte-level vocabulary
	runes   *runeTable  // symbols of the others, or nil
	unknown unknown     // what a rune becomes that has no symbol
	merges  mergeTable
	ranks   int // number of merges
	// whole and wholeLong hold the tokens that their own bytes encode to, or
	// every token of a byte-level vocabulary if merges are ignored for pieces
	// that are tokens.
	whole     pieceTable
	wholeLong map[string]uint32
	longest   int // length of the longest in wholeLong
	widest    int // length of the longest token of a byte-level vocabulary
	// words holds the tokens of other vocabularies that are found whatever
	// their merges give; nil if merges are never ignored.
	words map[string]uint32
	cut   scanner // cuts words where no merge can join; nil if byte-level
}
