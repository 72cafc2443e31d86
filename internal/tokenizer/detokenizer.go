package tokenizer

import (
	"unicode/utf8"
)

// Decode gives the text of ids. Bytes that are not valid UTF-8 become U+FFFD,
// one for each maximal part that could have begun a rune; ids that are no
// tokens have no text; with skipSpecial special tokens have none either.
func (t *Tokenizer) Decode(ids []uint32, skipSpecial bool) string {
	d := NewDetokenizer(t, DetokenizerOptions{SkipSpecial: skipSpecial})
	text, _, _ := d.Append(nil, ids)
	text, _ = d.Finish(text)
	return string(text)
}

// DetokenizerOptions say how ids become text. The zero value gives all of it.
type DetokenizerOptions struct {
	// StopStrings end the text where the first of them is complete. Of several
	// that are complete at the same character the longest counts. Empty strings
	// never match.
	StopStrings []string
	// SkipSpecial leaves special tokens out of the text.
	SkipSpecial bool
	// IncludeStop leaves the stop string in the text.
	IncludeStop bool
}

// Detokenizer turns the ids of one answer into text as they come. It serves
// one goroutine at a time and, once its buffers have grown, allocates nothing.
//
// Text is given out when it is certain: the bytes of an incomplete rune are
// held, and so is text that may be the beginning of a stop string. However
// the ids are cut into calls, the text is the same.
type Detokenizer struct {
	t     *Tokenizer
	skip  bool
	keep  bool
	stops []stopMatcher

	tail    [utf8.UTFMax]byte // an incomplete rune
	tailLen int
	held    []byte // text of a possible stop string
	matched int    // index of the stop string found, or -1
}

// stopMatcher follows one stop string through the text by Knuth, Morris and
// Pratt: state is how much of it the text's end matches.
type stopMatcher struct {
	text  string
	fail  []int32 // longest proper border of each prefix
	state int
}

// NewDetokenizer makes a detokenizer for one answer.
func NewDetokenizer(t *Tokenizer, o DetokenizerOptions) *Detokenizer {
	d := &Detokenizer{t: t, skip: o.SkipSpecial, keep: o.IncludeStop, matched: -1}
	if len(o.StopStrings) == 0 {
		return d
	}
	d.stops = make([]stopMatcher, len(o.StopStrings))
	for i, s := range o.StopStrings {
		d.stops[i] = newStopMatcher(s)
	}
	return d
}

func newStopMatcher(s string) stopMatcher {
	m := stopMatcher{text: s, fail: make([]int32, len(s))}
	for i := 1; i < len(s); i++ {
		k := int(m.fail[i-1])
		for k > 0 && s[i] != s[k] {
			k = int(m.fail[k-1])
		}
		if s[i] == s[k] {
			k++
		}
		m.fail[i] = int32(k)
	}
	return m
}

// step takes one byte and says whether the stop string is complete.
func (m *stopMatcher) step(b byte) bool {
	if m.text == "" {
		return false
	}
	for m.state > 0 && m.text[m.state] != b {
		m.state = int(m.fail[m.state-1])
	}
	if m.text[m.state] == b {
		m.state++
	}
	return m.state == len(m.text)
}

// Append appends to dst the text that ids make certain. used is how many of
// ids were taken: all, unless a stop string was completed, and then those up
// to and including the one that completed it; stopped says so. The text ends
// before the stop string, and from then on Append gives nothing.
func (d *Detokenizer) Append(dst []byte, ids []uint32) (text []byte, used int, stopped bool) {
	if d.matched >= 0 {
		return dst, 0, true
	}
	for i, id := range ids {
		if int(id) >= len(d.t.known) || d.skip && d.t.special[id] {
			continue
		}
		b := d.t.text[d.t.offsets[id]:d.t.offsets[id+1]]
		if dst = d.feed(dst, b); d.matched >= 0 {
			return dst, i + 1, true
		}
	}
	return dst, len(ids), false
}

// Finish appends what is held: the stream has ended and nothing can complete
// it. stopped says that what an incomplete rune became completed a stop
// string.
func (d *Detokenizer) Finish(dst []byte) (text []byte, stopped bool) {
	if d.matched >= 0 {
		return dst, true
	}
	if d.tailLen > 0 {
		d.tailLen = 0
		if dst = d.emit(dst, d.replacement()); d.matched >= 0 {
			return dst, true
		}
	}
	dst = append(dst, d.held...)
	d.held = d.held[:0]
	for i := range d.stops {
		d.stops[i].state = 0
	}
	return dst, false
}

// Stop is the index among the stop strings of the one that was found, or -1.
func (d *Detokenizer) Stop() int { return d.matched }

// Held is how many bytes of text, incomplete runes included, are held back.
func (d *Detokenizer) Held() int { return d.tailLen + len(d.held) }

// emit takes valid text.
func (d *Detokenizer) emit(dst, text []byte) []byte {
	if len(d.stops) == 0 {
		return append(dst, text...)
	}
	for i, b := range text {
		longest := 0
		for k := range d.stops {
			m := &d.stops[k]
			if m.step(b) && len(m.text) > longest {
				longest, d.matched = len(m.text), k
			}
		}
		if d.matched >= 0 {
			d.held = append(d.held, text[:i+1]...)
			if !d.keep {
				d.held = d.held[:len(d.held)-longest]
			}
			dst = append(dst, d.held...)
			d.held = d.held[:0]
			return dst
		}
	}
	possible := 0
	for k := range d.stops {
		possible = max(possible, d.stops[k].state)
	}
	// held and text together end in what may be a stop string's beginning.
	certain := len(d.held) + len(text) - possible
	if certain <= len(d.held) {
		dst = append(dst, d.held[:certain]...)
		d.held = append(d.held[:copy(d.held, d.held[certain:])], text...)
		return dst
	}
	dst = append(dst, d.held...)
	certain -= len(d.held)
	dst = append(dst, text[:certain]...)
	d.held = append(d.held[:0], text[certain:]...)
	return dst
}

// replacement gives U+FFFD without making garbage.
func (d *Detokenizer) replacement() []byte {
	d.tail = [utf8.UTFMax]byte{0xef, 0xbf, 0xbd}
	return d.tail[:3]
}

// feed takes the bytes of one token.
func (d *Detokenizer) feed(dst, b []byte) []byte {
	for d.tailLen > 0 && len(b) > 0 {
		// The held bytes are a proper beginning of a rune; one more byte goes
		// on with it, completes it, or proves them invalid.
		d.tail[d.tailLen] = b[0]
		n := d.tailLen + 1
		switch {
		case utf8.Valid(d.tail[:n]):
			d.tailLen = 0
			dst = d.emit(dst, d.tail[:n])
			b = b[1:]
		case partial(d.tail[:n]):
			d.tailLen = n
			b = b[1:]
		default:
			d.tailLen = 0
			dst = d.emit(dst, d.replacement())
		}
		if d.matched >= 0 {
			return dst
		}
	}
	for len(b) > 0 {
		n := validPrefix(b)
		if n > 0 {
			if dst = d.emit(dst, b[:n]); d.matched >= 0 {
				return dst
			}
			b = b[n:]
			continue
		}
		if partial(b) {
			d.tailLen = copy(d.tail[:], b)
			return dst
		}
		if dst = d.emit(dst, d.replacement()); d.matched >= 0 {
			return dst
		}
		n = 1
		for n < len(b) && partial(b[:n+1]) {
			n++
		}
		b = b[n:]
	}
	return dst
}

// validPrefix gives the length of the valid UTF-8 that b begins with.
func validPrefix(b []byte) int {
	i := 0
	for i < len(b) {
		if b[i] < utf8.RuneSelf {
			i++
			continue
		}
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size <= 1 {
			break
		}
		i += size
	}
	return i
}

// partial says whether b is a proper beginning of a rune's encoding.
func partial(b []byte) bool { return len(b) > 0 && !utf8.FullRune(b) }
