package tokenizer

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"
)

// asciiPieces finds the pieces that most text in Latin letters consists of: words of ASCII
// letters, with the byte before that belongs to them, and short runs of punctuation, numbers and
// white space. It looks at eight bytes of a word at once. A loop over the bytes costs more,
// because the processor cannot predict where a word ends. The bytes that it has read are the
// piece's key as well.
//
// It decides nothing that a scanner would decide otherwise: where it is not certain, the scanner
// is asked.
type asciiPieces struct {
	// lead is 0x80 for a byte that may be before the letters of a word, and 0 for the others,
	// letters included.
	lead [256]uint8
	// fold is 0x20 in each byte if capitals are letters of a word like any other.
	fold uint64
	// after is a byte that may go on with a word although it is no letter; 0 if none does.
	after byte
	// class says what a byte is in pieces that are no words.
	class  [256]uint8
	digits int // most digits of a piece
}

// The bits of a class.
const (
	asciiMark  = 1 << iota // belongs to runs of punctuation
	asciiTail              // may stand behind them in their piece
	asciiDigit             // is a number
	asciiSpace             // is white space
	asciiBreak             // ends a piece of white space, whatever white space is behind
)

// asciiRoom is how many bytes asciiPieces reads: the longest piece that it finds, and one behind.
const asciiRoom = shortPiece + 1

// asciiPattern is what asciiPieces has to know of a pattern.
type asciiPattern struct {
	leads    func(c byte) bool // whether a byte may be before the letters of a word
	capitals bool              // they are letters of a word like any other
	after    byte              // as in asciiPieces
	words    bool              // only words are found
	digits   int               // most digits of a piece; 0 if only the scanner knows
	tail     string            // what may stand behind punctuation in its piece
	breaks   bool              // a piece of white space ends behind a line break
}

func newASCIIPieces(p asciiPattern) *asciiPieces {
	a := &asciiPieces{after: p.after, digits: p.digits}
	if p.capitals {
		a.fold = 0x20 * eachByte
	}
	for i := range 0x80 {
		c := byte(i)
		if kinds[c]&(kindLetter|kindBreak|kindDigit) == 0 && p.leads(c) {
			a.lead[c] = 0x80
		}
		switch {
		case p.words:
		case kinds[c] == kindOther:
			a.class[c] = asciiMark
		case kinds[c] == kindDigit && p.digits > 0:
			a.class[c] = asciiDigit
		case kinds[c]&kindBreak != 0 && p.breaks:
			a.class[c] = asciiSpace | asciiBreak
		case kinds[c]&kindSpace != 0:
			a.class[c] = asciiSpace
		}
	}
	for i := range len(p.tail) {
		a.class[p.tail[i]] |= asciiTail
	}
	return a
}

// appendWhole appends the tokens of the pieces from b[i] on, as long as it finds them, each is a
// token, dst has room, and they begin before stop. It returns the place of the next piece, and the
// length and key of that one; no length if it is not known.
//
// It looks for keys and not for lengths, unlike pieceTable.find, which would be a call for each
// piece. Of pieces that differ only in zeros at their ends, it may come upon another one first. Its
// caller then asks pieceTable.find.
func (a *asciiPieces) appendWhole(dst []uint32, t *pieceTable, b []byte, i, stop int) (_ []uint32, at int, k pieceKey, n int) {
	for i < stop && i+asciiRoom <= len(b) {
		if k, n = a.find((*[asciiRoom]byte)(b[i:])); n == 0 || len(dst) == cap(dst) {
			return dst, i, k, n
		}
		var token *pieceToken
		hash := k.hash(n)
		if n <= tinyPiece {
			at := t.tinyPlace(hash)
			for t.tiny[at].lo != k.lo && atomic.LoadUint32(&t.tiny[at].note) != 0 {
				at = t.tinyAfter(at)
			}
			token = &t.tiny[at].pieceToken
		} else {
			at := hash >> t.shift
			for t.slots[at].key != k && atomic.LoadUint32(&t.slots[at].note) != 0 {
				at = (at + 1) & uint64(len(t.slots)-1)
			}
			token = &t.slots[at].pieceToken
		}
		if atomic.LoadUint32(&token.note) != uint32(n)|pieceWhole {
			return dst, i, k, n
		}
		dst = append(dst, token.id)
		i += n
	}
	return dst, i, k, 0
}

// find returns the length and the key of the piece that w begins with; no length if it is not
// known. The piece has at most shortPiece bytes.
func (a *asciiPieces) find(w *[asciiRoom]byte) (k pieceKey, n int) {
	k.lo = binary.LittleEndian.Uint64(w[:])
	lead := a.lead[w[0]]
	letters := k.lo
	others := otherThanLetters(letters|a.fold) &^ uint64(lead)
	if others == 0 {
		letters = binary.LittleEndian.Uint64(w[8:])
		if others = otherThanLetters(letters | a.fold); others == 0 {
			return k, 0
		}
		at := bits.TrailingZeros64(others) & 0x38
		k.hi = letters & (1<<at - 1)
		n = 8 + at>>3
	} else {
		at := bits.TrailingZeros64(others) & 0x38
		if n = at >> 3; n <= int(lead>>7) {
			return a.other(w)
		}
		k.lo = letters & (1<<at - 1)
	}
	if next := w[n]; next >= 0x80 || next == a.after {
		return k, 0
	}
	return k, n
}

// other is find where w begins with no word that find knows.
func (a *asciiPieces) other(w *[asciiRoom]byte) (k pieceKey, n int) {
	if w[0] == ' ' {
		n = 1
	}
	switch a.class[w[n]] &^ asciiTail {
	case asciiMark:
		for n++; n < shortPiece && a.class[w[n]]&asciiMark != 0; {
			n++
		}
		if n == 1 && kinds[w[1]] == kindLetter { // of a word in capitals, or a contraction
			return k, 0
		}
		for n < shortPiece && a.class[w[n]]&asciiTail != 0 {
			n++
		}
		if n == shortPiece || w[n] >= 0x80 {
			return k, 0
		}
	case asciiDigit:
		if n > 0 {
			break // a space and a number
		}
		for n < a.digits && a.class[w[n]]&asciiDigit != 0 {
			n++
		}
		if w[n] >= 0x80 {
			return k, 0
		}
	default:
		broken, i := 0, 0
		for ; i < shortPiece && a.class[w[i]]&asciiSpace != 0; i++ {
			if a.class[w[i]]&asciiBreak != 0 {
				broken = i + 1
			}
		}
		if i == shortPiece || w[i] >= 0x80 {
			return k, 0
		}
		if n = broken; n == 0 {
			n = max(i, 1) - 1 // the last one belongs to what is behind
		}
	}
	return keyOf(w[:], 0, n), n
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

// plain is a scanner of a pattern whose pieces asciiPieces finds, too.
type plain interface{ ascii() *asciiPieces }

func anyLead(byte) bool { return true }

// Each of the patterns of GPT-4's family lets a word begin with what is neither letter, number
// nor line break. An apostrophe may begin a contraction.
var cl100kASCII = func() (a [4]*asciiPieces) {
	for digits := range a {
		a[digits] = newASCIIPieces(asciiPattern{leads: func(c byte) bool { return c != '\'' }, capitals: true, digits: digits, tail: "\r\n", breaks: true})
	}
	return a
}()

func (g cl100k) ascii() *asciiPieces { return cl100kASCII[g.digits] }

var gpt2ASCII = newASCIIPieces(asciiPattern{leads: func(c byte) bool { return c == ' ' }, capitals: true})

func (gpt2) ascii() *asciiPieces { return gpt2ASCII }

// A word of GPT-4o's family ends before a capital. Contractions belong to it.
var (
	o200kASCII  = newASCIIPieces(asciiPattern{leads: anyLead, after: '\'', digits: 3, tail: "\r\n/", breaks: true})
	tekkenASCII = newASCIIPieces(asciiPattern{leads: anyLead, digits: 1, tail: "\r\n/", breaks: true})
	kimiASCII   = newASCIIPieces(asciiPattern{leads: anyLead, after: '\'', digits: 3, tail: "\r\n", breaks: true})
)

func (g o200k) ascii() *asciiPieces {
	if g.contractions {
		return o200kASCII
	}
	return tekkenASCII
}

func (kimi) ascii() *asciiPieces { return kimiASCII }

var deepseekASCII = newASCIIPieces(asciiPattern{leads: anyLead, capitals: true, words: true})

func (deepseek) ascii() *asciiPieces { return deepseekASCII }
