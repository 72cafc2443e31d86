package tokenizer

import (
	"encoding/binary"
	"math/bits"
)

// asciiWords finds the ends of the pieces that most text in Latin letters consists of: words of
// ASCII letters, with the byte before that belongs to them. It looks at eight bytes at once. A
// loop over the bytes of a word costs more, because the processor foresees the length of no
// word.
//
// It decides nothing that a scanner would decide otherwise: where it is not certain, the scanner
// is asked.
type asciiWords struct {
	// before is how many bytes are before the letters of a word that begins with a byte: 0 for a
	// letter, 1 for what may lead a word, and noWord for the others.
	before [256]uint8
	// fold is 0x20 in each byte if capitals are letters of a word like any other.
	fold uint64
	// after is a byte that may go on with a word although it is no letter; 0 if none does.
	after byte
}

const (
	noWord = 2
	// wordLetters is the most letters of a word that asciiWords finds, and wordRoom the bytes that
	// it reads: those, one before and one behind them.
	wordLetters = 15
	wordRoom    = 1 + 16
)

// newASCIIWords makes one of a pattern whose words may have one of the given bytes before
// their letters.
func newASCIIWords(leads func(c byte) bool, capitals bool, after byte) *asciiWords {
	a := &asciiWords{after: after}
	if capitals {
		a.fold = 0x20 * eachByte
	}
	for i := range a.before {
		a.before[i] = noWord
		switch c := byte(i); {
		case kinds[c] == kindLetter:
			if capitals || c >= 'a' {
				a.before[i] = 0
			}
		case c < 0x80 && kinds[c]&(kindBreak|kindDigit) == 0 && leads(c):
			a.before[i] = 1
		}
	}
	return a
}

// end returns the end of the word that is the piece of s at i; 0 if that is another piece, or
// is not known to be a word.
func (a *asciiWords) end(s []byte, i int) int {
	if i+wordRoom > len(s) {
		return 0
	}
	w := (*[wordRoom]byte)(s[i:])
	before := int(a.before[w[0]])
	if before == noWord {
		return 0
	}
	n, letters := 0, binary.LittleEndian.Uint64(w[before:])
	others := otherThanLetters(letters | a.fold)
	if others == 0 {
		n, letters = 8, binary.LittleEndian.Uint64(w[before+8:])
		if others = otherThanLetters(letters | a.fold); others == 0 {
			return 0
		}
	}
	at := bits.TrailingZeros64(others) &^ 7
	n += at >> 3
	if next := byte(letters >> at); n == 0 || next >= 0x80 || next == a.after {
		return 0
	}
	return i + before + n
}

// eachByte has a 1 in each byte.
const eachByte = 0x0101010101010101

// otherThanLetters sets the high bit of each byte of a word that is no small letter.
func otherThanLetters(w uint64) uint64 {
	const highs = 0x80 * eachByte
	low := w &^ highs
	from, behind := low+(0x80-'a')*eachByte, low+(0x80-'z'-1)*eachByte
	return ^(from &^ behind &^ w) & highs
}

// wordy is a scanner whose words asciiWords finds, too.
type wordy interface{ words() *asciiWords }

// Each of the patterns of GPT-4's family lets a word begin with what is neither letter, number
// nor line break. An apostrophe may begin a contraction.
var cl100kWords = newASCIIWords(func(c byte) bool { return c != '\'' }, true, 0)

func (cl100k) words() *asciiWords { return cl100kWords }

var gpt2Words = newASCIIWords(func(c byte) bool { return c == ' ' }, true, 0)

func (gpt2) words() *asciiWords { return gpt2Words }

// A word of GPT-4o's family ends before a capital. Contractions belong to it.
var (
	o200kWords  = newASCIIWords(func(byte) bool { return true }, false, '\'')
	tekkenWords = newASCIIWords(func(byte) bool { return true }, false, 0)
)

func (g o200k) words() *asciiWords {
	if g.contractions {
		return o200kWords
	}
	return tekkenWords
}

func (kimi) words() *asciiWords { return o200kWords }

var deepseekWords = newASCIIWords(func(byte) bool { return true }, true, 0)

func (deepseek) words() *asciiWords { return deepseekWords }
