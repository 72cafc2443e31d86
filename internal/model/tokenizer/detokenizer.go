package tokenizer

import (
	"slices"
	"unicode/utf8"

	"weir/internal/model/stop"
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
	Stops *stop.Set
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
	stops   *stop.Search // nil: there are no stop strings
	early   int          // ids to come in which no stop string is complete
	strip   int          // how often strip may still be taken from the beginning
	skip    bool
	begun   bool              // a token has been seen
	tail    [utf8.UTFMax]byte // an incomplete rune
	tailLen int

	run       []byte   // a run of bytes
	wholeRuns bool     // which is held until its end
	badRun    bool     // and has a byte that is not valid
	kept      []uint32 // special tokens that are not skipped
}

// NewDetokenizer makes a detokenizer for one answer.
func NewDetokenizer(t *Tokenizer, o DetokenizerOptions) *Detokenizer {
	d := &Detokenizer{t: t, skip: o.SkipSpecial, kept: o.Keep, early: o.StopAfter, strip: t.decoding.stripMost}
	if d.stops = stop.NewSearch(o.Stops); d.stops != nil {
		d.stops.Include = o.IncludeStop
	}
	return d
}

// Append appends to dst the text that ids make certain. used is the number of ids that
// were consumed. It is all of them unless a stop string was completed; then stopped is
// set, and used ends with the id that completed it. The text ends before the stop
// string, and further calls append nothing.
func (d *Detokenizer) Append(dst []byte, ids []uint32) (text []byte, used int, stopped bool) {
	if d.stopped() {
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
		if dst = d.token(dst, id, b); d.stopped() {
			return dst, i + 1, true
		}
	}
	return dst, len(ids), false
}

// Finish appends the text that is held back, because the stream has ended and nothing
// can complete it. stopped reports whether the replacement of an incomplete rune
// completed a stop string.
func (d *Detokenizer) Finish(dst []byte) (text []byte, stopped bool) {
	if d.stopped() {
		return dst, true
	}
	if dst = d.endRun(dst); d.stopped() {
		return dst, true
	}
	if d.stops != nil {
		dst = d.stops.Flush(dst)
	}
	return dst, false
}

// Stop returns the index of the stop string that was found, or -1.
func (d *Detokenizer) Stop() int { return d.stops.Found() }

func (d *Detokenizer) stopped() bool { return d.stops.Found() >= 0 }

// Keeps reports whether a special token is left in the text.
func (d *Detokenizer) Keeps(id uint32) bool { return slices.Contains(d.kept, id) }

// Held is how many bytes of text, incomplete runes included, are held back.
func (d *Detokenizer) Held() int { return d.tailLen + len(d.run) + d.stops.Held() }

// token takes the bytes of one token.
func (d *Detokenizer) token(dst []byte, id uint32, b []byte) []byte {
	switch {
	case d.t.decoding.byteLevel:
		return d.feed(dst, b)
	case d.t.isByte != nil && d.t.isByte[id]:
		return d.runByte(dst, b[0])
	}
	if dst = d.endRun(dst); d.stopped() {
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
	for ; n > 0 && !d.stopped(); n-- {
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
	if d.stops == nil {
		return append(dst, text...)
	}
	d.stops.Early = d.early >= 0
	return d.stops.Append(dst, text)
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
		if d.stopped() {
			return dst
		}
	}
	for len(b) > 0 {
		n := validPrefix(b)
		if n > 0 {
			if dst = d.emit(dst, b[:n]); d.stopped() {
				return dst
			}
			b = b[n:]
			continue
		}
		if partial(b) {
			d.tailLen = copy(d.tail[:], b)
			return dst
		}
		if dst = d.emit(dst, d.replacement()); d.stopped() {
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
