package tokenizer

import (
	"bytes"
	"unicode/utf8"
	"unsafe"

	"weir/internal/jsonlex"
)

// skimmed is tokenizer.json without the vocabulary and the merges of a BPE model, which
// are nearly all of it.
type skimmed struct {
	rest   []byte // the file with an empty vocabulary and an empty list of merges
	vocab  *lexicon
	merges []mergeRule
}

// skim reads the vocabulary and the merges of a BPE model, several times as fast as a
// reader of any JSON. It knows the shape that the files in use have: the vocabulary
// before the merges, each with all that it needs. Where a file deviates in anything, be
// it a token that is written in an unusual way or an error, skim gives up, and the
// caller reads the whole file by the general reader, which also names what is wrong.
// So skim never has to explain, and what it accepts the general reader accepts with
// the same result.
//
// The reader of rest sees an object and a list where those that skim read and checked
// have stood. So the file is valid, and has its members where skim took them to be, if
// rest is and has.
func skim(data []byte) (skimmed, bool) {
	c := cursor{data: data}
	if !c.enter('{') || !c.member("model") || !c.enter('{') || !c.member("vocab") {
		return skimmed{}, false
	}
	vocabAt := c.at
	vocab, ok := c.vocab()
	if !ok {
		return skimmed{}, false
	}
	vocabEnd := c.at
	if !c.comma() || !c.member("merges") {
		return skimmed{}, false
	}
	mergesAt := c.at
	merges, end, ok := skimMerges(data, mergesAt, vocab)
	if !ok {
		return skimmed{}, false
	}
	rest := make([]byte, 0, len(data)-(end-mergesAt)-(vocabEnd-vocabAt)+4)
	rest = append(append(rest, data[:vocabAt]...), "{}"...)
	rest = append(append(rest, data[vocabEnd:mergesAt]...), "[]"...)
	return skimmed{rest: append(rest, data[end:]...), vocab: vocab, merges: merges}, true
}

// skimMerges reads the list of merges that begins at a place, in two halves at the same
// time where it can find a line that begins a merge in the middle: a line break stands in no
// JSON string.
func skimMerges(data []byte, from int, vocab *lexicon) (merges []mergeRule, end int, ok bool) {
	first := cursor{data: data, at: from}
	if !first.enter('[') {
		return nil, 0, false
	}
	if first.peek() == ']' {
		first.at++
		return nil, first.at, true
	}
	second := cursor{data: data, at: len(data)}
	if half := first.at + (len(data)-first.at)/2; len(data)-half > 1<<18 {
		second.at = beginsMerge(data, half, first.peek())
	}
	split := second.at // the second half's cursor belongs to its goroutine until that has ended
	var late []mergeRule
	lateOK := make(chan bool, 1)
	if split < len(data) {
		go func() {
			var ok bool
			late, ok = second.merges(len(data), vocab)
			lateOK <- ok
		}()
	} else {
		lateOK <- false
	}
	merges, ok = first.merges(split, vocab)
	if split == len(data) {
		return merges, first.at, ok && first.ended
	}
	if both := <-lateOK && ok; !both || !second.ended {
		return nil, 0, false
	}
	if first.ended { // the list ended before the middle of what is left of the file
		return merges, first.at, true
	}
	both := makeLarge[mergeRule](len(merges) + len(late))
	copy(both[copy(both, merges):], late)
	return both, second.at, true
}

// beginsMerge returns the next place where a line begins with a merge, which is written with
// this character first; the end of the file where there is none.
func beginsMerge(data []byte, from int, opening byte) int {
	for {
		line := bytes.IndexByte(data[from:], '\n')
		if line < 0 {
			return len(data)
		}
		from += line + 1
		c := cursor{data: data, at: from}
		if c.peek() != opening {
			continue
		}
		// A pair's own tokens begin lines too.
		if opening == '"' {
			before := bytes.TrimRight(data[:from], " \n\r\t")
			if n := len(before); n == 0 || before[n-1] != ',' {
				continue
			}
		}
		return c.at
	}
}

// cursor reads JSON of a known shape. Every method reports false where something else
// stands there.
type cursor struct {
	data  []byte
	at    int
	ended bool // the list of merges has ended
	held  []byte
}

// peek skips white space and returns the next byte; 0 at the end.
func (c *cursor) peek() byte {
	data, i := c.data, c.at
	for i < len(data) {
		switch data[i] {
		case ' ', '\n', '\r', '\t':
			i++
			continue
		}
		c.at = i
		return data[i]
	}
	c.at = i
	return 0
}

func (c *cursor) enter(b byte) bool {
	if c.peek() != b {
		return false
	}
	c.at++
	return true
}

// comma passes the comma that another member or element follows.
func (c *cursor) comma() bool { return c.enter(',') }

// member passes all members of an object before the one of this name, and its name.
func (c *cursor) member(name string) bool {
	for {
		key, ok := c.text()
		if !ok {
			return false
		}
		found := key == name
		if !c.enter(':') {
			return false
		}
		if found {
			return true
		}
		if !c.skip() || !c.comma() {
			return false
		}
	}
}

// skip passes a value, which the general reader checks.
func (c *cursor) skip() bool {
	depth := 0
	for b := c.peek(); c.at < len(c.data); b = c.peek() {
		switch b {
		case '{', '[':
			depth++
			c.at++
		case '}', ']':
			if depth--; depth < 0 {
				return false
			}
			c.at++
		case '"':
			for c.at++; c.at < len(c.data) && c.data[c.at] != '"'; c.at++ {
				if c.data[c.at] == '\\' {
					c.at++
				}
			}
			c.at++
		case ',', ':':
			c.at++
			continue // within a composite
		default:
			for c.at < len(c.data) && !bytes.ContainsRune([]byte(",:]}{[\" \n\r\t"), rune(c.data[c.at])) {
				c.at++
			}
		}
		if depth == 0 {
			return c.at <= len(c.data)
		}
	}
	return false
}

// text reads a string. The result is valid until the next call.
func (c *cursor) text() (string, bool) {
	if !c.enter('"') {
		return "", false
	}
	data, from := c.data, c.at
	i, high := from, byte(0)
	for i < len(data) && data[i] != '"' && data[i] != '\\' {
		if data[i] < ' ' {
			return "", false
		}
		high |= data[i]
		i++
	}
	if i == len(data) {
		return "", false
	}
	out := data[from:i]
	c.at = i + 1
	if data[i] == '\\' {
		c.at = i
		var ok bool
		if out, ok = c.escaped(out); !ok {
			return "", false
		}
	} else if high >= utf8.RuneSelf && !utf8.Valid(out) {
		return "", false
	}
	return unsafe.String(unsafe.SliceData(out), len(out)), true
}

// escaped reads the rest of a string, from its first backslash.
func (c *cursor) escaped(begun []byte) ([]byte, bool) {
	out := append(c.held[:0], begun...)
	data := c.data
	for i := c.at; i < len(data); {
		switch b := data[i]; {
		case b == '"':
			c.at, c.held = i+1, out
			return out, utf8.Valid(out)
		case b < ' ':
			return nil, false
		case b != '\\':
			out = append(out, b)
			i++
		default:
			n := 0
			if out, n = jsonlex.AppendEscape(out, data[i:]); n == 0 {
				return nil, false
			}
			i += n
		}
	}
	return nil, false
}

// number reads an id.
func (c *cursor) number() (uint32, bool) {
	first := c.peek()
	from, n := c.at, uint32(0)
	for c.at < len(c.data) && c.data[c.at] >= '0' && c.data[c.at] <= '9' && n < maxIDs {
		n = n*10 + uint32(c.data[c.at]-'0')
		c.at++
	}
	digits := c.at - from
	return n, digits > 0 && n < maxIDs && (first != '0' || digits == 1)
}

// vocab reads the object of tokens and ids.
func (c *cursor) vocab() (*lexicon, bool) {
	if !c.enter('{') {
		return nil, false
	}
	l := newLexicon(max(1<<17, len(c.data)/128), max(1<<20, len(c.data)/16))
	var group tokenGroup
	for more := true; more; {
		token, ok := c.text()
		if !ok || !c.enter(':') {
			return nil, false
		}
		id, ok := c.number()
		if !ok {
			return nil, false
		}
		group.add(l, token, id)
		switch c.peek() {
		case ',':
			c.at++
		case '}':
			c.at++
			more = false
		default:
			return nil, false
		}
		if (group.full() || !more) && !group.enter(l) {
			return nil, false
		}
	}
	l.clip()
	return l, true
}

// tokenGroup is tokens that are entered together (lexicon.touch).
type tokenGroup struct {
	tokens  [32]lexeme
	lookups [32]lookup
	n       int
	slots   uint32 // keeps the compiler from leaving out reads
}

// add adds a token, which stands in the lexicon's text from now on.
func (g *tokenGroup) add(l *lexicon, token string, id uint32) {
	p := lookupOf(token)
	g.lookups[g.n] = p
	g.tokens[g.n] = lexeme{p.start, uint32(len(l.text)), uint32(len(token)), id}
	g.n++
	l.text = append(l.text, token...)
}

func (g *tokenGroup) full() bool { return g.n == len(g.tokens) }

// enter enters the tokens and empties the group. It reports whether all were new.
func (g *tokenGroup) enter(l *lexicon) bool {
	for i := range g.lookups[:g.n] {
		g.slots += l.touch(&g.lookups[i])
	}
	for i := range g.tokens[:g.n] {
		slot := l.place(l.read(&g.tokens[i]), g.lookups[i])
		if slot.from != 0 {
			return false
		}
		l.fill(slot, g.tokens[i])
	}
	g.n = 0
	return true
}

// merges reads merges up to the end of the list, or to the place where one begins at end.
func (c *cursor) merges(end int, vocab *lexicon) ([]mergeRule, bool) {
	out := makeLarge[mergeRule]((end-c.at)/48 + 16)[:0]
	var group mergeGroup
	for more := true; more; {
		both, cut, ok := c.pair(group.both)
		if !ok {
			return nil, false
		}
		group.add(both, cut)
		switch c.peek() {
		case ',':
			c.at++
			if c.peek(); c.at > end {
				return nil, false
			}
			more = c.at < end
		case ']':
			c.at++
			c.ended, more = true, false
		default:
			return nil, false
		}
		if group.full() || !more {
			if out, ok = group.resolve(out, vocab); !ok {
				return nil, false
			}
		}
	}
	return out, true
}

// mergeGroup is merges whose tokens are looked up together.
type mergeGroup struct {
	both   []byte // the texts of all, one after the other
	merges [32]struct{ cut, end int }
	n      int
	tokens [3 * 32]lookup
	slots  uint32 // keeps the compiler from leaving out reads
}

// add adds a merge whose text has been appended to both and has its second token at cut.
func (g *mergeGroup) add(both []byte, cut int) {
	g.merges[g.n] = struct{ cut, end int }{cut, len(both)}
	g.both = both
	g.n++
}

func (g *mergeGroup) full() bool { return g.n == len(g.merges) }

// resolve appends the merges' ids and empties the group.
func (g *mergeGroup) resolve(out []mergeRule, vocab *lexicon) ([]mergeRule, bool) {
	text := unsafe.String(unsafe.SliceData(g.both), len(g.both)) // only read here
	from := 0
	for i, m := range g.merges[:g.n] {
		if m.cut <= from || m.cut >= m.end {
			return nil, false
		}
		g.tokens[3*i], g.tokens[3*i+1], g.tokens[3*i+2] = lookupOf(text[from:m.cut]), lookupOf(text[m.cut:m.end]), lookupOf(text[from:m.end])
		from = m.end
	}
	for i := range g.tokens[:3*g.n] {
		g.slots += vocab.touch(&g.tokens[i])
	}
	from = 0
	for i, m := range g.merges[:g.n] {
		a := vocab.place(text[from:m.cut], g.tokens[3*i])
		b := vocab.place(text[m.cut:m.end], g.tokens[3*i+1])
		made := vocab.place(text[from:m.end], g.tokens[3*i+2])
		if a.from == 0 || b.from == 0 || made.from == 0 {
			return nil, false
		}
		out = append(out, mergeRule{a.id, b.id, made.id})
		from = m.end
	}
	g.both, g.n = g.both[:0], 0
	return out, true
}

// pair appends the two tokens of a merge, ["a","b"] or "a b", to both, and returns the place
// between them.
func (c *cursor) pair(both []byte) (_ []byte, cut int, ok bool) {
	if c.peek() == '"' {
		text, ok := c.text()
		if !ok {
			return both, 0, false
		}
		a, b, ok := cutPair(text)
		both = append(both, a...)
		return append(both, b...), len(both), ok
	}
	if !c.enter('[') {
		return both, 0, false
	}
	a, ok := c.text()
	if !ok {
		return both, 0, false
	}
	both = append(both, a...)
	cut = len(both)
	if !c.comma() {
		return both, 0, false
	}
	b, ok := c.text()
	return append(both, b...), cut, ok && c.enter(']')
}
