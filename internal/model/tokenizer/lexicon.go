package tokenizer

import (
	"encoding/binary"
	"iter"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// lexicon maps tokens to ids. The text of all tokens is one piece of memory, and the
// table has no pointers: a large vocabulary is entered in a fraction of the time that a
// map of strings takes, and in less memory. It is written while loading and then only
// read.
type lexicon struct {
	text  []byte // of all tokens, in the order in which they came, after one byte of nobody's
	slots []lexeme
	count int
	shift uint
}

// lexeme is a token: how it begins, its place in the text, and its id. Of an empty slot the
// place is 0. Most tokens are not longer than their beginning, so that they are found
// without a look at the text, which would miss the cache.
type lexeme struct {
	start          opening
	from, size, id uint32
}

// opening is the first twelve bytes of a token, padded with zeros.
type opening struct {
	head uint64
	more uint32
}

const openingBytes = 12

func openingOf(token string) (o opening) {
	s := unsafe.Slice(unsafe.StringData(token), len(token))
	switch n := len(s); {
	case n >= openingBytes:
		return opening{binary.LittleEndian.Uint64(s), binary.LittleEndian.Uint32(s[8:])}
	case n > 8:
		return opening{binary.LittleEndian.Uint64(s), binary.LittleEndian.Uint32(s[n-4:]) >> (8 * uint(openingBytes-n))}
	case n == 8:
		return opening{head: binary.LittleEndian.Uint64(s)}
	case n >= 4:
		low, high := binary.LittleEndian.Uint32(s), binary.LittleEndian.Uint32(s[n-4:])
		return opening{head: uint64(low) | uint64(high)<<(8*uint(n-4))}
	case n > 0:
		return opening{head: uint64(s[0]) | uint64(s[n/2])<<(8*uint(n/2)) | uint64(s[n-1])<<(8*uint(n-1))}
	}
	return opening{}
}

// hashOfToken mixes a token with this opening. Its upper bits are the better ones.
func hashOfToken(token string, o opening) uint64 {
	if len(token) > openingBytes {
		return xxh3.HashString(token)
	}
	return pieceKey{o.head, uint64(o.more)}.hash(len(token))
}

// newLexicon makes a lexicon with room for so many tokens of so many bytes together.
// It grows where there are more.
func newLexicon(tokens, bytes int) *lexicon {
	l := &lexicon{text: makeLarge[byte](bytes + 1)[:1]}
	width := uint(4)
	for 3<<width < 4*tokens {
		width++
	}
	l.widen(width)
	return l
}

// lexiconOf takes the entries of a map.
func lexiconOf(ids map[string]uint32) *lexicon {
	bytes := 0
	for token := range ids {
		bytes += len(token)
	}
	l := newLexicon(len(ids), bytes)
	for token, id := range ids {
		l.set(token, id)
	}
	return l
}

// widen enters all again into 1<<width slots.
func (l *lexicon) widen(width uint) {
	old := l.slots
	l.slots, l.shift = makeLarge[lexeme](1<<width), 64-width
	mask := uint64(len(l.slots) - 1)
	for i := range old {
		slot := &old[i]
		if slot.from == 0 {
			continue
		}
		at := hashOfToken(l.read(slot), slot.start) >> l.shift
		for l.slots[at].from != 0 {
			at = (at + 1) & mask
		}
		l.slots[at] = *slot
	}
}

// place returns the slot of a token: its own, or the empty one where it belongs.
func (l *lexicon) place(token string, p lookup) *lexeme {
	mask := uint64(len(l.slots) - 1)
	for at := p.hash >> l.shift; ; at = (at + 1) & mask {
		slot := &l.slots[at&mask]
		if slot.from == 0 || slot.start == p.start && slot.size == uint32(len(token)) &&
			(len(token) <= openingBytes || l.read(slot) == token) {
			return slot
		}
	}
}

// lookup is a token on the way to its slot.
type lookup struct {
	start opening
	hash  uint64
}

func lookupOf(token string) lookup {
	start := openingOf(token)
	return lookup{start, hashOfToken(token, start)}
}

// touch reads the slot at which a search will begin. The searches of several tokens are faster
// if all of their slots are touched first, because the machine waits for these together.
func (l *lexicon) touch(p *lookup) uint32 { return l.slots[p.hash>>l.shift].size }

// set returns a token its id, and reports whether it had none.
func (l *lexicon) set(token string, id uint32) (added bool) {
	p := lookupOf(token)
	slot := l.place(token, p)
	if slot.from != 0 {
		slot.id = id
		return false
	}
	from := len(l.text)
	l.text = append(l.text, token...)
	l.fill(slot, lexeme{p.start, uint32(from), uint32(len(token)), id})
	return true
}

// fill gives an empty slot its token.
func (l *lexicon) fill(slot *lexeme, token lexeme) {
	*slot = token
	if l.count++; 4*l.count > 3*len(l.slots) {
		l.widen(64 - l.shift + 1)
	}
}

// find returns the slot of a token, or nil.
func (l *lexicon) find(token string) *lexeme {
	p := lookupOf(token)
	if slot := l.place(token, p); slot.from != 0 {
		return slot
	}
	return nil
}

// get returns the id of a token.
func (l *lexicon) get(token string) (id uint32, ok bool) {
	p := lookupOf(token)
	slot := l.place(token, p)
	return slot.id, slot.from != 0
}

// read returns the token of a slot.
func (l *lexicon) read(e *lexeme) string {
	return unsafe.String(unsafe.SliceData(l.text[e.from:]), e.size) // text is only appended to
}

// all yields each token and its id, in no order.
func (l *lexicon) all() iter.Seq2[string, uint32] {
	return func(yield func(string, uint32) bool) {
		for i := range l.slots {
			if e := &l.slots[i]; e.from != 0 && !yield(l.read(e), e.id) {
				return
			}
		}
	}
}

// byID returns the tokens by their ids; the empty token where an id has none.
func (l *lexicon) byID() []string {
	top := -1
	for i := range l.slots {
		if e := &l.slots[i]; e.from != 0 {
			top = max(top, int(e.id))
		}
	}
	out := make([]string, top+1)
	for token, id := range l.all() {
		out[id] = token
	}
	return out
}

// clip gives back the room for text that did not come.
func (l *lexicon) clip() { l.text = slices.Clone(l.text) }
