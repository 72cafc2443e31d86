package tokenizer

import (
	"slices"
	"unicode/utf8"
)

// Decode returns the text of ids. Ids that are no tokens have no text; with skipSpecial
// special tokens have none either. Bytes that are not valid UTF-8 become U+FFFD: in a
// byte-level vocabulary one for each maximal part that could have begun a rune; in one
// that falls back to bytes, one for each byte of a run of bytes that as a whole is not
// valid.
func (t *Tokenizer) Decode(ids []uint32, skipSpecial bool) string {
	d := NewDetokenizer(t, DetokenizerOptions{SkipSpecial: skipSpecial})
	d.wholeRuns = true
	text, _, _ := d.Append(nil, ids)
	text, _ = d.Finish(text)
	return string(text)
}

// DetokenizerOptions configure how ids become text. The zero value returns all of the
// text.
type DetokenizerOptions struct {
	// Stops end the text where the first of them is complete; nil: nothing does.
	Stops *Stops
	// StopAfter is how many ids must have come before a stop string can be
	// complete: what is complete by one of the first StopAfter ids is text.
	StopAfter int
	// SkipSpecial leaves special tokens out of the text, but for those of Keep,
	// which are few.
	SkipSpecial bool
	Keep        []uint32
	// IncludeStop leaves the stop string in the text.
	IncludeStop bool
}

// Detokenizer turns the ids of one answer into text as they come. It serves
// one goroutine at a time and, once its buffers have grown, allocates nothing.
//
// Text is given out when it is certain: the bytes of an incomplete rune are
// held, and so is text that may be the beginning of a stop string. However
// the ids are cut into calls, the text is the same.
//
// It is also the text that Decode gives, with one exception. A vocabulary that
// falls back to bytes spells a run of runes that are no tokens in bytes. Decode
// looks at the whole run: if it is not valid, all of it becomes U+FFFD. Here
// its runes are given out as they are complete, and stand; only from the first
// bad byte to the run's end each byte becomes U+FFFD.
type Detokenizer struct {
	// The fields that each token reads come first, so that they lie in few cache lines.
	t       *Tokenizer
	matched int          // index of the stop string found, or -1
	early   int          // ids to come in which no stop string is complete
	strip   int          // how often strip may still be taken from the beginning
	stops   []stopString // shared with other detokenizers
	skip    bool
	begun   bool              // a token has been seen
	tail    [utf8.UTFMax]byte // an incomplete rune
	tailLen int

	run       []byte // a run of bytes
	wholeRuns bool   // which is held until its end
	badRun    bool   // and has a byte that is not valid
	keep      bool
	kept      []uint32 // special tokens that are not skipped
	// states say how much of each of stops the text's end matches.
	states []int32
	held   []byte // text of a possible stop string
}

// NewDetokenizer makes a detokenizer for one answer.
func NewDetokenizer(t *Tokenizer, o DetokenizerOptions) *Detokenizer {
	d := &Detokenizer{t: t, skip: o.SkipSpecial, kept: o.Keep, keep: o.IncludeStop, matched: -1, early: o.StopAfter, strip: t.decoding.stripMost}
	if o.Stops != nil {
		d.stops, d.states = o.Stops.list, make([]int32, len(o.Stops.list))
	}
	return d
}

// Append appends to dst the text that ids make certain. used is the number of ids that
// were consumed. It is all of them unless a stop string was completed; then stopped is
// set, and used ends with the id that completed it. The text ends before the stop
// string, and further calls append nothing.
func (d *Detokenizer) Append(dst []byte, ids []uint32) (text []byte, used int, stopped bool) {
	if d.matched >= 0 {
		return dst, 0, true
	}
	for i, id := range ids {
		d.early--
		if int(id) >= len(d.t.known) || d.skip && d.t.special[id] && !slices.Contains(d.kept, id) {
			continue
		}
		if !d.t.known[id] {
			continue
		}
		b := d.t.text[d.t.offsets[id]:d.t.offsets[id+1]]
		if !d.begun {
			d.begun = true
			if text, ok := d.t.firstText[id]; ok {
				b = []byte(text)
			}
		}
		if dst = d.token(dst, id, b); d.matched >= 0 {
			return dst, i + 1, true
		}
	}
	return dst, len(ids), false
}

// Finish appends the text that is held back, because the stream has ended and nothing
// can complete it. stopped reports whether the replacement of an incomplete rune
// completed a stop string.
func (d *Detokenizer) Finish(dst []byte) (text []byte, stopped bool) {
	if d.matched >= 0 {
		return dst, true
	}
	if dst = d.endRun(dst); d.matched >= 0 {
		return dst, true
	}
	dst = append(dst, d.held...)
	d.held = d.held[:0]
	clear(d.states)
	return dst, false
}

// Stop returns the index of the stop string that was found, or -1.
func (d *Detokenizer) Stop() int { return d.matched }

// Keeps reports whether a special token is left in the text.
func (d *Detokenizer) Keeps(id uint32) bool { return slices.Contains(d.kept, id) }

// Held is how many bytes of text, incomplete runes included, are held back.
func (d *Detokenizer) Held() int { return d.tailLen + len(d.run) + len(d.held) }

// token takes the bytes of one token.
func (d *Detokenizer) token(dst []byte, id uint32, b []byte) []byte {
	switch {
	case d.t.decoding.byteLevel:
		return d.feed(dst, b)
	case d.t.isByte != nil && d.t.isByte[id]:
		return d.runByte(dst, b[0])
	}
	if dst = d.endRun(dst); d.matched >= 0 {
		return dst
	}
	return d.emit(dst, b)
}

// runByte takes a byte of a run.
func (d *Detokenizer) runByte(dst []byte, b byte) []byte {
	switch {
	case d.wholeRuns:
		d.run = append(d.run, b)
		return dst
	case d.badRun:
		return d.emit(dst, d.replacement())
	}
	d.tail[d.tailLen] = b
	d.tailLen++
	rune := d.tail[:d.tailLen]
	switch {
	case utf8.Valid(rune):
		d.tailLen = 0
		return d.emit(dst, rune)
	case partial(rune):
		return dst
	}
	d.badRun = true
	return d.replace(dst)
}

// replace returns U+FFFD for each byte of an incomplete rune.
func (d *Detokenizer) replace(dst []byte) []byte {
	n := d.tailLen
	d.tailLen = 0
	for ; n > 0 && d.matched < 0; n-- {
		dst = d.emit(dst, d.replacement())
	}
	return dst
}

// endRun ends what may be going on: a run of bytes, or in a byte-level
// vocabulary an incomplete rune.
func (d *Detokenizer) endRun(dst []byte) []byte {
	if d.t.decoding.byteLevel {
		d.tailLen = min(d.tailLen, 1)
		return d.replace(dst)
	}
	d.badRun = false
	if len(d.run) > 0 {
		if utf8.Valid(d.run) {
			dst = d.emit(dst, d.run)
		} else {
			for range d.run {
				dst = d.emit(dst, d.replacement())
			}
		}
		d.run = d.run[:0]
	}
	return d.replace(dst)
}

// emit takes valid text.
func (d *Detokenizer) emit(dst, text []byte) []byte {
	for d.strip > 0 && len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		if r != d.t.decoding.strip {
			d.strip = 0
			break
		}
		d.strip--
		text = text[size:]
	}
	if len(d.stops) == 0 {
		return append(dst, text...)
	}
	for i, b := range text {
		longest := 0
		for k := range d.stops {
			s := &d.stops[k]
			state := s.step(d.states[k], b)
			complete := int(state) == len(s.text)
			switch {
			case complete && d.early >= 0:
				state = s.fail[len(s.text)-1]
			case complete && len(s.text) > longest:
				longest, d.matched = len(s.text), k
			}
			d.states[k] = state
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
	for _, state := range d.states {
		possible = max(possible, int(state))
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

// replacement returns U+FFFD without making garbage.
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

// validPrefix returns the length of the valid UTF-8 that b begins with.
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

// partial reports whether b is a proper beginning of a rune's encoding.
func partial(b []byte) bool { return len(b) > 0 && !utf8.FullRune(b) }
