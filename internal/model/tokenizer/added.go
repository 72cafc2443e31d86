package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// AddedToken is a token that is found in the text itself, before anything
// splits or merges it.
type AddedToken struct {
	ID      uint32
	Content string
	// SingleWord is found only where no word character touches it.
	SingleWord bool
	// LStrip and RStrip swallow the white space before and after it.
	LStrip, RStrip bool
	// Normalized is looked for in the normalized text.
	Normalized bool
	// Special tokens are left out of text decoded with skipSpecial.
	Special bool

	decodes string // what the decoder is given: the content, normalized if Normalized
}

// finder finds a set of added tokens in text: from left to right, at each
// place the longest. It is immutable.
type finder struct {
	tokens []AddedToken
	trie   *trie
	only   int // the one byte that begins every token, or -1
}

// newFinder builds a finder of tokens by their patterns, which are not empty.
// Where two patterns are the same the earlier token is found.
func newFinder(tokens []AddedToken, patterns []string) *finder {
	if len(tokens) == 0 {
		return nil
	}
	f := &finder{tokens: tokens, trie: newTrie(patterns), only: int(patterns[0][0])}
	for _, p := range patterns {
		if int(p[0]) != f.only {
			f.only = -1
			break
		}
	}
	return f
}

// longest returns the longest token at s[i] and its end.
func (f *finder) longest(s string, i int) (token, end int) {
	token = -1
	node := int32(0)
	for ; i < len(s); i++ {
		if node = f.trie.step(node, s[i]); node < 0 {
			break
		}
		if value := f.trie.nodes[node].value; value >= 0 {
			token, end = int(value), i+1
		}
	}
	return token, end
}

// match is an added token found in a text.
type match struct {
	token      *AddedToken
	start, end int // with the white space it swallowed
	resume     int // where to look for the next one
}

// find returns the first token that begins at from or later; start never goes below
// floor, the end of the match before. It pauses in long texts, by e's pace, and finds
// nothing any more when that says to stop.
func (f *finder) find(s string, from, floor int, e *Encoder) (match, bool) {
	// A place where a token may begin costs as much as many bytes passed over.
	const perCandidate, part = 16, 64 << 10
	work := part
	for i := from; i < len(s); i++ {
		if work <= 0 {
			if work = part; !e.pace() {
				break
			}
		}
		if f.only >= 0 {
			reach := min(len(s), i+16*part)
			skip := strings.IndexByte(s[i:reach], byte(f.only))
			if skip < 0 {
				i, work = reach-1, 0
				continue
			}
			i += skip
			work -= skip / 16
		} else if f.trie.root[s[i]] < 0 {
			work--
			continue
		}
		work -= perCandidate
		index, end := f.longest(s, i)
		if index < 0 {
			continue
		}
		t := &f.tokens[index]
		if t.SingleWord && (wordBefore(s, i) || wordAfter(s, end)) {
			i = end - 1 // what it covers is not searched again
			continue
		}
		m := match{token: t, start: i, end: end, resume: end}
		if t.LStrip {
			m.start = trimSpaceRight(s, i, min(floor, i), e)
		}
		if t.RStrip {
			// Inside white space that the match before swallowed, the end is known:
			// looking again each time would cost the square of a run's length.
			m.end = max(end, floor)
			if end >= floor {
				m.end = trimSpaceLeft(s, end, e)
			}
		}
		return m, true
	}
	return match{}, false
}

func wordBefore(s string, i int) bool {
	if i == 0 {
		return false
	}
	r, _ := utf8.DecodeLastRuneInString(s[:i])
	return class(r)&bitWord != 0
}

func wordAfter(s string, i int) bool {
	if i == len(s) {
		return false
	}
	r, _ := utf8.DecodeRuneInString(s[i:])
	return class(r)&bitWord != 0
}

// trimSpaceRight returns where the white space that ends at i begins, at floor or
// after.
func trimSpaceRight(s string, i, floor int, e *Encoder) int {
	for pause := i - scanPart; i > floor; {
		if i <= pause {
			if !e.pace() {
				break
			}
			pause = i - scanPart
		}
		r, size := utf8.DecodeLastRuneInString(s[floor:i])
		if class(r)&bitSpace == 0 {
			break
		}
		i -= size
	}
	return i
}

// trimSpaceLeft returns where the white space that begins at i ends.
func trimSpaceLeft(s string, i int, e *Encoder) int {
	for part := partAt(s, i); i < len(s); {
		if i >= part {
			if !e.pace() {
				break
			}
			part = partAt(s, i)
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if class(r)&bitSpace == 0 {
			break
		}
		i += size
	}
	return i
}
