package tokenizer

import (
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

// lexeme is a token: a part of its hash, its place in the text, and its id. Of an empty
// slot the place is 0.
type lexeme struct{ tag, from, size, id uint32 }

// newLexicon makes a lexicon with room for so many tokens of so many bytes together.
// It grows where there are more.
func newLexicon(tokens, bytes int) *lexicon {
	l := &lexicon{text: make([]byte, 1, bytes+1)}
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
	l.slots, l.shift = make([]lexeme, 1<<width), 32-width
	mask := uint32(len(l.slots) - 1)
	for _, slot := range old {
		if slot.from == 0 {
			continue
		}
		at := slot.tag >> l.shift
		for l.slots[at].from != 0 {
			at = (at + 1) & mask
		}
		l.slots[at] = slot
	}
}

// place returns the slot of a token: its own, or the empty one where it belongs.
func (l *lexicon) place(token string, tag uint32) *lexeme {
	mask := uint32(len(l.slots) - 1)
	for at := tag >> l.shift; ; at = (at + 1) & mask {
		slot := &l.slots[at&mask]
		if slot.from == 0 || slot.tag == tag && l.read(slot) == token {
			return slot
		}
	}
}

func tagOf(token string) uint32 { return uint32(xxh3.HashString(token) >> 32) }

// set returns a token its id, and reports whether it had none.
func (l *lexicon) set(token string, id uint32) (added bool) {
	tag := tagOf(token)
	slot := l.place(token, tag)
	if slot.from != 0 {
		slot.id = id
		return false
	}
	*slot = lexeme{tag, uint32(len(l.text)), uint32(len(token)), id}
	l.text = append(l.text, token...)
	if l.count++; 4*l.count > 3*len(l.slots) {
		l.widen(32 - l.shift + 1)
	}
	return true
}

// find returns the slot of a token, or nil.
func (l *lexicon) find(token string) *lexeme {
	if slot := l.place(token, tagOf(token)); slot.from != 0 {
		return slot
	}
	return nil
}

// get returns the id of a token.
func (l *lexicon) get(token string) (id uint32, ok bool) {
	slot := l.place(token, tagOf(token))
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

// clip returns back the room for text that did not come.
func (l *lexicon) clip() { l.text = slices.Clone(l.text) }
