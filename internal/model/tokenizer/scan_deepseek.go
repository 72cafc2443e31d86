package tokenizer

import "unicode/utf8"

// The scanners of DeepSeek-V3's chain. Their patterns do not match every
// text; what lies between two matches is a piece too.

// digits scans \p{N}{1,3}, or \p{N} if limit is 1.
type digits struct{ limit int }

func (g digits) next(s string, i int, e *Encoder) int {
	if end := numbers(s, i, g.limit); end > i {
		return end
	}
	for part := partAt(s, i); i < len(s); {
		if i >= part {
			if !e.pace() {
				break
			}
			part = partAt(s, i)
		}
		kind, size := kindAt(s, i)
		if kind == kindDigit {
			break
		}
		i += size
	}
	return i
}

// hanKana scans [一-龥぀-ゟ゠-ヿ]+.
type hanKana struct{}

func (hanKana) next(s string, i int, e *Encoder) int {
	inside, first := false, true
	for part := partAt(s, i); i < len(s); {
		if i >= part {
			if !e.pace() {
				break
			}
			part = partAt(s, i)
		}
		r, size := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(s[i:])
		}
		han := r >= 0x4e00 && r <= 0x9fa5 || r >= 0x3040 && r <= 0x30ff
		if first {
			inside, first = han, false
		} else if han != inside {
			break
		}
		i += size
	}
	return i
}

// deepseek scans
//
//	[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|
//	[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|
//	\s*[\r\n]+|\s+(?!\S)|\s+
type deepseek struct{}

func (g deepseek) next(s string, i int, e *Encoder) int {
	if end := g.match(s, i, e); end > i {
		return end
	}
	// No match begins here: the piece goes up to where one does.
	for part := partAt(s, i); i < len(s); {
		if i >= part {
			if !e.pace() {
				break
			}
			part = partAt(s, i)
		}
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
		if i < len(s) && g.match(s, i, e) > i {
			break
		}
	}
	return i
}

const (
	setWord  = setLetter | setMark
	setPunct = 1<<gcPc | 1<<gcPd | 1<<gcPs | 1<<gcPe | 1<<gcPi | 1<<gcPf | 1<<gcPo |
		1<<gcSm | 1<<gcSc | 1<<gcSk | 1<<gcSo
)

// match returns the end of the match at i, or i.
func (g deepseek) match(s string, i int, e *Encoder) int {
	if kinds[s[i]] == kindOther && s[i] > ' ' && s[i] < 0x7f {
		j := i + 1
		for part := partAt(s, j); j < len(s) && kinds[s[j]] == kindLetter; j++ {
			if j == part {
				if !e.pace() {
					break
				}
				part = partAt(s, j)
			}
		}
		if j > i+1 {
			return j
		}
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	c := class(r)
	switch {
	case in(c, setLetter):
		return runIn(s, i, setWord, e)
	case in(c, setPunct):
		return breaks(s, runIn(s, i, setPunct, e), false, e)
	case r != '\r' && r != '\n':
		if end := runIn(s, i+size, setWord, e); end > i+size {
			return end
		}
		if in(c, setMark) {
			return i + size
		}
		if r == ' ' {
			if end := runIn(s, i+1, setPunct, e); end > i+1 {
				return breaks(s, end, false, e)
			}
		}
	}
	if c&bitSpace != 0 {
		return spaces(s, i, true, e)
	}
	return i
}
