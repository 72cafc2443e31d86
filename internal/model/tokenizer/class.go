package tokenizer

import "unicode/utf8"

// The bits of a code point's class beside its general category, as in
// classData.
const (
	gcMask      = 1<<5 - 1
	bitSpace    = 1 << 5 // \s of the split engine
	bitWord     = 1 << 6 // what a single_word added token may not touch
	bitUnstable = 1 << 7 // NFC may change it or join it to what is before it
)

// Sets of general categories, one bit each.
const (
	setLetter = 1<<gcLu | 1<<gcLl | 1<<gcLt | 1<<gcLm | 1<<gcLo
	setMark   = 1<<gcMn | 1<<gcMc | 1<<gcMe
	setNumber = 1<<gcNd | 1<<gcNl | 1<<gcNo
	// setUpper and setLower are the two letter classes of o200k's pattern; they
	// overlap in what has no case.
	setUpper = 1<<gcLu | 1<<gcLt | 1<<gcLm | 1<<gcLo | setMark
	setLower = 1<<gcLl | 1<<gcLm | 1<<gcLo | setMark
)

// class returns the class of a rune.
func class(r rune) byte {
	return classData[int(classIndex[r>>8])<<8|int(r&0xff)]
}

// in reports whether a class's general category is in a set.
func in(class byte, set uint32) bool { return set>>(class&gcMask)&1 != 0 }

// The kinds of byte the scanners look at first. Exactly one bit is set for an
// ASCII byte, except that a line break is also a space.
const (
	kindLetter = 1 << iota
	kindDigit
	kindSpace
	kindBreak // \r and \n
	kindOther // neither space, letter nor digit
	kindHigh  // part of a rune beyond ASCII
)

var kinds = makeKinds()

func makeKinds() (k [256]byte) {
	for b := range k {
		switch c := byte(b); {
		case c >= utf8.RuneSelf:
			k[b] = kindHigh
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z':
			k[b] = kindLetter
		case c >= '0' && c <= '9':
			k[b] = kindDigit
		case c == '\r' || c == '\n':
			k[b] = kindSpace | kindBreak
		case c == ' ' || c >= '\t' && c <= '\r':
			k[b] = kindSpace
		default:
			k[b] = kindOther
		}
	}
	return k
}

// kindAt returns the kind of the rune at s[i], which must exist, with its length in
// bytes; kindHigh is resolved.
func kindAt(s string, i int) (kind byte, size int) {
	if k := kinds[s[i]]; k != kindHigh {
		return k, 1
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	switch c := class(r); {
	case in(c, setLetter):
		return kindLetter, size
	case in(c, setNumber):
		return kindDigit, size
	case c&bitSpace != 0:
		return kindSpace, size
	}
	return kindOther, size
}

// run returns the end of the run of runes of one kind that begins at or after i.
func run(s string, i int, kind byte, e *Encoder) int {
	for {
		for part := partAt(s, i); i < part; {
			if k := kinds[s[i]]; k&kind != 0 {
				i++
			} else if k != kindHigh {
				return i
			} else if k, size := kindAt(s, i); k&kind != 0 {
				i += size
			} else {
				return i
			}
		}
		if i >= len(s) || !e.pace() {
			return i
		}
	}
}

// runIn returns the end of the run of runes whose category is in set.
func runIn(s string, i int, set uint32, e *Encoder) int {
	for {
		for part := partAt(s, i); i < part; {
			r, size := rune(s[i]), 1
			if r >= utf8.RuneSelf {
				r, size = utf8.DecodeRuneInString(s[i:])
			}
			if !in(class(r), set) {
				return i
			}
			i += size
		}
		if i >= len(s) || !e.pace() {
			return i
		}
	}
}

// scanPart is how many bytes of one run are scanned between two pauses: at the
// 2 to 4 ns that a byte beyond ASCII takes, about 100 us.
const scanPart = 32 << 10

// partAt returns where a scan that has come to i pauses next.
func partAt(s string, i int) int { return min(len(s), i+scanPart) }

// The bits of a code point's traits beside its grapheme class, as in
// traitData.
const (
	graphemeMask   = 1<<4 - 1
	bitNumeric     = 1 << 4 // what pre-tokenizer Digits takes
	bitPunctuation = 1 << 5 // what pre-tokenizer Punctuation takes
	bitMark        = 1 << 6 // what normalizer StripAccents takes
	bitSplitWord   = 1 << 7 // \w of the split engine
)

// traits returns the traits of a rune.
func traits(r rune) byte {
	return traitData[int(traitIndex[r>>8])<<8|int(r&0xff)]
}
