package tokenizer

import "unicode/utf8"

// A scanner cuts text into pieces as a split pattern does. next returns the end of the
// piece that begins at i, with 0 <= i < len(s); every piece is at least one rune long
// and every byte is in a piece. s is valid UTF-8 and one whole segment: the pattern
// ends at its end.
//
// Scanners pause inside long runs, by e's pace. If the pace reports that the result is
// no longer needed, a run may end anywhere. e may be nil.
type scanner interface {
	next(s string, i int, e *Encoder) int
}

// contraction returns the length of the English contraction at s[i], which is an
// apostrophe: (?i:'s|'t|'re|'ve|'m|'ll|'d), or 0. Folding case, the reference finds one
// letter beyond ASCII: U+017F, the long s.
func contraction(s string, i int) int {
	if i+1 >= len(s) {
		return 0
	}
	switch s[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	case 'r', 'v':
		if i+2 < len(s) && s[i+2]|0x20 == 'e' {
			return 3
		}
	case 'l':
		if i+2 < len(s) && s[i+2]|0x20 == 'l' {
			return 3
		}
	case 0xc5 | 0x20:
		if s[i+1] == 0xc5 && i+2 < len(s) && s[i+2] == 0xbf {
			return 3
		}
	}
	return 0
}

// numbers returns the end of \p{N}{1,limit} at i, where a number begins.
func numbers(s string, i, limit int) int {
	for n := 0; n < limit && i < len(s); n++ {
		kind, size := kindAt(s, i)
		if kind != kindDigit {
			break
		}
		i += size
	}
	return i
}

// breaks returns the end of [\r\n]* at i, or of [\r\n/]* with slash.
func breaks(s string, i int, slash bool, e *Encoder) int {
	for part := partAt(s, i); i < len(s) && (s[i] == '\r' || s[i] == '\n' || slash && s[i] == '/'); i++ {
		if i == part {
			if !e.pace() {
				break
			}
			part = partAt(s, i)
		}
	}
	return i
}

// spaces returns the end of the piece at i, where white space begins that belongs to no
// word: \s*[\r\n]+|\s+(?!\S)|\s+, or without the first alternative if lines is false.
// The first takes all up to the last line break of the run; the second leaves the last
// rune of the run to the word that follows it; the third takes a single rune before a
// word.
func spaces(s string, i int, lines bool, e *Encoder) int {
	end, last, lastBreak := i, i, -1
	for part := partAt(s, i); end < len(s); {
		if end >= part {
			if !e.pace() {
				return end
			}
			part = partAt(s, end)
		}
		kind, size := kindAt(s, end)
		if kind&kindSpace == 0 {
			break
		}
		last = end
		end += size
		if kind&kindBreak != 0 {
			lastBreak = end
		}
	}
	switch {
	case lines && lastBreak > 0:
		return lastBreak
	case end == len(s) || last == i:
		return end
	}
	return last
}

// cl100k scans the patterns of GPT-4's family:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
//	 ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
type cl100k struct {
	digits int // longest run of numbers in a piece
	// marks counts \p{M} among the letters instead of among the rest.
	marks bool
}

func (g cl100k) next(s string, i int, e *Encoder) int {
	c := s[i]
	if c == '\'' {
		if n := contraction(s, i); n > 0 {
			return i + n
		}
	}
	if g.marks {
		return g.nextMarks(s, i, e)
	}
	kind, size := kindAt(s, i)
	switch {
	case kind == kindLetter:
		return run(s, i+size, kindLetter, e)
	case kind == kindDigit:
		return numbers(s, i, g.digits)
	case kind&kindBreak != 0:
		return spaces(s, i, true, e)
	}
	// A rune that is neither letter, number nor line break may lead a word.
	j := i + size
	if j == len(s) {
		return j
	}
	after, size := kindAt(s, j)
	switch {
	case after == kindLetter:
		return run(s, j+size, kindLetter, e)
	case kind == kindOther:
		return breaks(s, run(s, j, kindOther, e), false, e)
	case c == ' ' && after == kindOther:
		return breaks(s, run(s, j+size, kindOther, e), false, e)
	}
	return spaces(s, i, true, e)
}

// nextMarks is next for the pattern with [\p{L}\p{M}]+ and
// [^\s\p{L}\p{M}\p{N}]+. A mark that could lead a word is in the word's own
// class too, so that it makes no difference which of the two took it.
func (g cl100k) nextMarks(s string, i int, e *Encoder) int {
	const word = setLetter | setMark
	if end := runIn(s, i, word, e); end > i {
		return end
	}
	kind, size := kindAt(s, i)
	switch {
	case kind == kindDigit:
		return numbers(s, i, g.digits)
	case kind&kindBreak != 0:
		return spaces(s, i, true, e)
	}
	j := i + size
	if end := runIn(s, j, word, e); end > j {
		return end
	}
	if kind == kindOther {
		return breaks(s, runOther(s, j, e), false, e)
	}
	if s[i] == ' ' {
		if end := runOther(s, j, e); end > j {
			return breaks(s, end, false, e)
		}
	}
	return spaces(s, i, true, e)
}

// runOther returns the end of [^\s\p{L}\p{M}\p{N}]* at i.
func runOther(s string, i int, e *Encoder) int {
	for part := partAt(s, i); i < len(s); {
		if i >= part {
			if !e.pace() {
				break
			}
			part = partAt(s, i)
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if c := class(r); c&bitSpace != 0 || in(c, setLetter|setMark|setNumber) {
			break
		}
		i += size
	}
	return i
}

// gpt2 scans the pattern that ByteLevel itself applies:
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
type gpt2 struct{}

func (gpt2) next(s string, i int, e *Encoder) int {
	if s[i] == '\'' {
		if n := contraction(s, i); n > 0 && lowerASCII(s[i+1:i+n]) {
			return i + n
		}
	}
	kind, size := kindAt(s, i)
	if kind&kindSpace == 0 {
		return run(s, i+size, kind, e)
	}
	if s[i] == ' ' && i+1 < len(s) {
		if after, size := kindAt(s, i+1); after&kindSpace == 0 {
			return run(s, i+1+size, after, e)
		}
	}
	return spaces(s, i, false, e)
}

func lowerASCII(s string) bool {
	for i := range len(s) {
		if s[i] < 'a' || s[i] > 'z' {
			return false
		}
	}
	return true
}

// o200k scans the patterns of GPT-4o's family, where a word's capitals come
// before its small letters:
//
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+C?|
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*C?|
//	\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+
//
// C is the contractions, which Tekken's pattern leaves out.
type o200k struct {
	digits       int
	contractions bool
}

func (g o200k) next(s string, i int, e *Encoder) int {
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
		return numbers(s, i, g.digits)
	case kind == kindOther:
		return breaks(s, run(s, j, kindOther, e), true, e)
	case s[i] == ' ' && j < len(s):
		if after, size := kindAt(s, j); after == kindOther {
			return breaks(s, run(s, j+size, kindOther, e), true, e)
		}
	}
	return spaces(s, i, true, e)
}

// word tries the two alternatives of a word, each first with the leading rune
// s[i:j] and then without it, as the pattern's backtracking does.
func (g o200k) word(s string, i, j int, e *Encoder) int {
	end := small(s, j, e)
	if end < 0 && j > i {
		end = small(s, i, e)
	}
	if end < 0 {
		if end = runIn(s, j, setUpper, e); end == j {
			if end = runIn(s, i, setUpper, e); end == i {
				return -1
			}
		}
	}
	if g.contractions && end < len(s) && s[end] == '\'' {
		end += contraction(s, end)
	}
	return end
}

// small matches [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ at
// i, or gives -1. If no small letter follows the first run, that run gives
// back down to its last rune that is in both classes.
func small(s string, i int, e *Encoder) int {
	both := -1
	for part := partAt(s, i); i < len(s); {
		if i >= part {
			if !e.pace() {
				return i
			}
			part = partAt(s, i)
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		c := class(r)
		if !in(c, setUpper) {
			if in(c, setLower) {
				return runIn(s, i+size, setLower, e)
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
