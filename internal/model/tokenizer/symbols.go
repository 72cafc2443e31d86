package tokenizer

import "unicode/utf8"

// noID is no token's id.
const noID = ^uint32(0)

// runeTable maps runes to ids in pages of 256 runes.
type runeTable struct {
	pages [(utf8.MaxRune + 1) >> 8]uint16 // index in ids, in pages; page 0 is empty
	ids   []uint32
}

func newRuneTable() *runeTable {
	t := &runeTable{}
	t.addPage()
	return t
}

func (t *runeTable) addPage() {
	for range 256 {
		t.ids = append(t.ids, noID)
	}
}

func (t *runeTable) set(r rune, id uint32) {
	page := &t.pages[r>>8]
	if *page == 0 {
		*page = uint16(len(t.ids) >> 8)
		t.addPage()
	}
	t.ids[int(*page)<<8|int(r&0xff)] = id
}

// get returns the id of a rune, or noID.
func (t *runeTable) get(r rune) uint32 { return t.ids[int(t.pages[r>>8])<<8|int(r&0xff)] }

// unknown is what a rune becomes that is no token: bytes, the unknown token,
// or nothing.
type unknown struct {
	bytes    [256]uint32 // tokens <0x00> to <0xFF>, noID where there is none
	fallback bool        // bytes are to be used
	all      bool        // and there is one for each byte
	id       uint32      // the unknown token, or noID
	fuse     bool        // neighbouring unknown tokens are one
}

// symbolizer cuts a piece into the symbols that merging begins with: bytes, or
// runes. It may be fed the piece in parts.
//
// The reference holds an unknown token back until it has seen that the next
// rune is not unknown too, and then writes it, but not before the bytes of a
// rune that falls back to bytes. So such bytes overtake it. That happens only
// where some byte has no token.
type symbolizer struct {
	pending bool
}

// add appends the symbols of a part of a piece, which ends between runes.
func (z *symbolizer) add(v *vocab, dst []uint32, part []byte) []uint32 {
	if v.runes == nil {
		for _, b := range part {
			dst = append(dst, v.byteIDs[b])
		}
		return dst
	}
	for i := 0; i < len(part); {
		r, size := rune(part[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRune(part[i:])
		}
		if id := v.runes.get(r); id != noID {
			dst = append(z.flush(v, dst), id)
		} else {
			dst = z.unknown(v, dst, part[i:i+size])
		}
		i += size
	}
	return dst
}

// unknown appends what a rune becomes that is no token.
func (z *symbolizer) unknown(v *vocab, dst []uint32, r []byte) []uint32 {
	u := &v.unknown
	if u.fallback {
		from := len(dst)
		for _, b := range r {
			if u.bytes[b] == noID {
				dst = dst[:from]
				break
			}
			dst = append(dst, u.bytes[b])
		}
		if len(dst) > from {
			return dst
		}
	}
	if u.id == noID {
		return dst
	}
	if !u.fuse {
		dst = z.flush(v, dst)
	}
	z.pending = true
	return dst
}

// flush ends a piece.
func (z *symbolizer) flush(v *vocab, dst []uint32) []uint32 {
	if z.pending {
		z.pending = false
		return append(dst, v.unknown.id)
	}
	return dst
}

// joints cuts a text where no merge can cross the cut, so that the parts can be merged
// separately. It makes words of prompts that no pattern splits.
//
// The obvious way, one queue over the whole prompt, costs some 100 ns a rune and cannot
// reuse the ids of repeated words. The token that a merge makes contains the two runes
// on both sides of the join as neighbors. If two runes are neighbors in no token that a
// merge makes, no merge joins the place between them. The merges on both sides are then
// independent, whatever the order of the queue, and the ids of the parts in order are
// the ids of the whole text.
//
// Two adjacent unknown runes may become one token, or change their order, so there is
// no cut between them. If unknown runes are dropped, the text around them becomes
// adjacent, so there is no cut next to one.
type joints struct {
	ascii [utf8.RuneSelf][2]uint64 // bit b of ascii[a]: a stands before b in a token
	pairs pairSet
	runes *runeTable // nil if no rune is ever unknown
	drops bool       // unknown runes become nothing
}

// newJoints takes the tokens that merges make.
func newJoints(v *vocab, made []string) *joints {
	count := 0
	for _, token := range made {
		count += max(0, utf8.RuneCountInString(token)-1)
	}
	j := &joints{pairs: newPairSet(count)}
	if !v.unknown.all {
		j.runes, j.drops = v.runes, v.unknown.id == noID
	}
	for _, token := range made {
		before := rune(-1)
		for _, r := range token {
			if before >= 0 {
				j.add(before, r)
			}
			before = r
		}
	}
	return j
}

func (j *joints) add(a, b rune) {
	if a < utf8.RuneSelf && b < utf8.RuneSelf {
		j.ascii[a][b>>6] |= 1 << (b & 63)
		return
	}
	j.pairs.insert(pairOfRunes(a, b))
}

// joined reports whether two runes side by side may end in one token.
func (j *joints) joined(a, b rune) bool {
	if a < utf8.RuneSelf && b < utf8.RuneSelf {
		if j.ascii[a][b>>6]>>(b&63)&1 != 0 {
			return true
		}
	} else if j.pairs.has(pairOfRunes(a, b)) {
		return true
	}
	if j.runes == nil {
		return false
	}
	first, second := j.runes.get(a) == noID, j.runes.get(b) == noID
	return first && second || j.drops && (first || second)
}

// next is scanner.next.
func (j *joints) next(s string, i int, e *Encoder) int {
	a := rune(s[i])
	if a < utf8.RuneSelf {
		i++
	} else {
		var size int
		a, size = utf8.DecodeRuneInString(s[i:])
		i += size
	}
	for {
		for part := partAt(s, i); i < part; {
			b, size := rune(s[i]), 1
			if b >= utf8.RuneSelf {
				b, size = utf8.DecodeRuneInString(s[i:])
			}
			if !j.joined(a, b) {
				return i
			}
			a = b
			i += size
		}
		if i >= len(s) || !e.pace() {
			return i
		}
	}
}

// pairSet is a set of pairs of runes. It is written while loading and then
// only read.
type pairSet struct {
	slots []uint64 // 0 is empty: no pair is of two zeros, which are ASCII
	shift uint
}

func newPairSet(entries int) pairSet {
	width := tableWidth(entries)
	return pairSet{slots: makeLarge[uint64](1 << width), shift: 64 - width}
}

func pairOfRunes(a, b rune) uint64 { return uint64(a)<<32 | uint64(b) }

func (p *pairSet) insert(pair uint64) {
	mask := uint64(len(p.slots) - 1)
	for at := pair * 0x9e3779b97f4a7c15 >> p.shift; ; at = (at + 1) & mask {
		if p.slots[at] == 0 || p.slots[at] == pair {
			p.slots[at] = pair
			return
		}
	}
}

func (p *pairSet) has(pair uint64) bool {
	mask := uint64(len(p.slots) - 1)
	for at := pair * 0x9e3779b97f4a7c15 >> p.shift; ; at = (at + 1) & mask {
		switch p.slots[at&mask] {
		case pair:
			return true
		case 0:
			return false
		}
	}
}

// wholeText is the scanner that does not cut.
type wholeText struct{}

func (wholeText) next(s string, _ int, _ *Encoder) int { return len(s) }
