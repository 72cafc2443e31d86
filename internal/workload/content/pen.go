package content

import (
	"errors"
	"fmt"
	"strings"
)

// pen writes documents, calls and reasoning, and also reads them: the writing code makes
// the same calls in both cases, so that a text can be compared with the only texts that
// could have been written.
//
// A text consists of literals, words, and choices that both reveal. Words follow each other
// by the check of the word list, whatever stands between them. Choices are a function of
// the variant, of the choices before and of the words so far; there are few variants, so a
// reader tries them all. Only the words' free bits depend on the whole prompt, and a reader
// takes them from the text.
type pen struct {
	w    *Words
	last uint16 // the word before, or noWord
	hash uint64 // of the variant, the choices and the words so far

	spent int // values written, against endless documents
	err   error

	// Writing.
	speller *Speller
	prompt  uint64   // hash that the free bits come from
	ids     []uint32 // written
	expect  []uint32 // ids that must come first; others end the writing
	limit   int      // ids wanted; more end the writing
	full    bool     // nothing more is written

	// Reading.
	reading bool
	rest    string // of the text
	over    bool   // the text ended, perhaps too early
}

// variants is the number of texts that differ in more than words. A reader who
// tries them all mistakes a damaged text for another variant's with at most
// this chance, divided by the number of ways the text could have been.
const variants = 1 << 8

func (p *pen) start(w *Words, variant uint64) {
	p.w, p.last, p.hash = w, noWord, mix(variant%variants, 0x589965cc75374cc3)
}

// stopped reports whether nothing more is to be written or read.
func (p *pen) stopped() bool { return p.err != nil || p.full || p.over }

var (
	errMismatch = errors.New("content: other ids were expected")
	errDiffers  = errors.New("content: the text differs from an engine's text")
)

// draw chooses one of n alternatives.
func (p *pen) draw(n int) int {
	if n <= 1 {
		return 0
	}
	k := int(mix(p.hash, 0x1d8e4e27c47d124f) % uint64(n))
	p.hash = mix(p.hash^uint64(k+1), 0xeb44accab455d165)
	return k
}

// literal writes a text that is no choice.
func (p *pen) literal(text string) {
	if p.stopped() {
		return
	}
	if !p.reading {
		n := len(p.ids)
		if p.ids, p.err = p.speller.Spell(p.ids, text); p.err == nil {
			p.wrote(n)
		}
		return
	}
	switch {
	case strings.HasPrefix(p.rest, text):
		p.rest = p.rest[len(text):]
	case strings.HasPrefix(text, p.rest):
		p.rest, p.over = "", true
	default:
		p.err = fmt.Errorf("%w: %.40q where %.40q was due", errDiffers, p.rest, text)
	}
}

// wrote compares the text written since n with the expected one.
func (p *pen) wrote(n int) {
	for ; n < len(p.ids); n++ {
		if n < len(p.expect) && p.ids[n] != p.expect[n] {
			p.err = errMismatch
			return
		}
	}
	p.full = p.limit > 0 && len(p.ids) >= p.limit
}

// next returns the ways in which the text may go on with a word.
func (p *pen) next(free uint16) uint16 { return free<<p.w.checkBits | p.w.after(p.last) }

// wordFits reports whether each word that may come next has at most room bytes,
// its space included.
func (p *pen) wordFits(room int) bool {
	for free := range uint16(1 << freeBits) {
		if len(p.w.text[p.next(free)]) > room {
			return false
		}
	}
	return true
}

// word writes a word and gives its length in bytes, with its space.
func (p *pen) word() int {
	if p.stopped() {
		return 0
	}
	var word uint16
	if p.reading {
		end := 1
		for end < len(p.rest) && p.rest[end] >= 'a' && p.rest[end] <= 'z' {
			end++
		}
		if end >= len(p.rest) {
			// The word may have been cut.
			p.rest, p.over = "", true
			return 0
		}
		i, ok := p.w.byText[p.rest[1:end]]
		if !ok || p.rest[0] != ' ' || i&p.w.mask() != p.w.after(p.last) {
			p.err = fmt.Errorf("%w: %.40q may not follow here", errDiffers, p.rest[:end])
			return 0
		}
		word, p.rest = i, p.rest[end:]
	} else {
		word = p.next(uint16(mix(p.prompt^p.hash, 0xa0761d6478bd642f) >> (64 - freeBits)))
		p.ids = append(p.ids, p.w.ids[word])
		p.wrote(len(p.ids) - 1)
	}
	p.last = word
	p.hash = mix(p.hash^uint64(word+1), 0x4cf5ad432745937f)
	return len(p.w.text[word])
}
