package tokenizer

import "unicode/utf8"

// kimi scans the pattern of Moonshot's Kimi models, which is that of o200k with
// words of Han by themselves:
//
//	[\p{Han}]+|
//	[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+C?|
//	[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*C?|
//	\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// Numbers and signs may be of Han where they do not begin a piece.
type kimi struct{}

func (g kimi) next(s string, i int, e *Encoder) int {
	if s[i] >= hanLead {
		if r, size := utf8.DecodeRuneInString(s[i:]); isHan(r) {
			return runHan(s, i+size, e)
		}
	}
	kind, size := kindAt(s, i)
	j := i // after the rune that may lead a word
	if kind == kindOther || kind&(kindSpace|kindBreak) == kindSpace {
		j = i + size
	}
	if end := g.word(s, i, j, e); end > i {
		return end
	}
	switch {
	case kind == kindDigit:
		return numbers(s, i, 3)
	case kind == kindOther:
		return breaks(s, run(s, j, kindOther, e), false, e)
	case s[i] == ' ' && j < len(s):
		if after, size := kindAt(s, j); after == kindOther {
			return breaks(s, run(s, j+size, kindOther, e), false, e)
		}
	}
	return spaces(s, i, true, e)
}

// word is o200k's.
func (g kimi) word(s string, i, j int, e *Encoder) int {
	end := g.small(s, j, e)
	if end < 0 && j > i {
		end = g.small(s, i, e)
	}
	if end < 0 {
		if end = g.run(s, j, setUpper, e); end == j {
			if end = g.run(s, i, setUpper, e); end == i {
				return -1
			}
		}
	}
	if end < len(s) && s[end] == '\'' {
		end += contraction(s, end)
	}
	return end
}

// small is o200k's, of runes that are not Han.
func (g kimi) small(s string, i int, e *Encoder) int {
	both := -1
	for part := partAt(s, i); i < len(s); {
		if i >= part {
			if !e.pace() {
				return i
			}
			part = partAt(s, i)
		}
		r, size := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			if r, size = utf8.DecodeRuneInString(s[i:]); isHan(r) {
				break
			}
		}
		c := class(r)
		if !in(c, setUpper) {
			if in(c, setLower) {
				return g.run(s, i+size, setLower, e)
			}
			break
		}
		i += size
		if in(c, setLower) {
			both = i
		}
	}
	return both
}

// run returns the end of the run of runes whose category is in set and that are not
// Han.
func (kimi) run(s string, i int, set uint32, e *Encoder) int {
	for {
		for part := partAt(s, i); i < part; {
			r, size := rune(s[i]), 1
			if r >= utf8.RuneSelf {
				if r, size = utf8.DecodeRuneInString(s[i:]); isHan(r) {
					return i
				}
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

// runHan returns the end of [\p{Han}]* at i.
func runHan(s string, i int, e *Encoder) int {
	for {
		for part := partAt(s, i); i < part; {
			if s[i] < hanLead {
				return i
			}
			r, size := utf8.DecodeRuneInString(s[i:])
			if !isHan(r) {
				return i
			}
			i += size
		}
		if i >= len(s) || !e.pace() {
			return i
		}
	}
}

// hanLead is the first byte of the lowest rune of Han, U+2E80; of all others it is
// at least that.
const hanLead = 0xe2

// hanRanges are the script's first and last code points, ascending.
var hanRanges = scriptRanges("Han")

func scriptRanges(name string) (out [][2]rune) {
	table := scripts[name]
	for i := 0; i < len(table); i += 6 {
		out = append(out, [2]rune{u24(table, i), u24(table, i+3)})
	}
	return out
}

// isHan reports whether a rune's script is Han. Nearly all runes of Chinese, kana and
// Hangul are classified without the table.
func isHan(r rune) bool {
	switch {
	case r < 0x2e80 || r > 0x303b && r < 0x3400 || r > 0x9fff && r < 0xf900:
		return false
	case r >= 0x4e00 && r <= 0x9fff:
		return true
	}
	for _, span := range hanRanges {
		if r <= span[1] {
			return r >= span[0]
		}
	}
	return false
}
