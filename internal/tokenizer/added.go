package tokenizer

import (
	"slices"
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
}

// finder finds a set of added tokens in text: from left to right, at each
// place the longest. It is immutable.
type finder struct {
	tokens []AddedToken
	nodes  []trieNode
	edges  []trieEdge
	first  [256]bool // bytes that begin a token
	only   int       // the one byte that begins every token, or -1
}

// trieNode has its edges in finder.edges, sorted by byte.
type trieNode struct {
	edges, count int32
	token        int32 // index in tokens of the token that ends here, or -1
}

type trieEdge struct {
	label byte
	node  int32
}

// newFinder builds a finder of tokens by their patterns, which are not empty.
// Where two patterns are the same the earlier token is found.
func newFinder(tokens []AddedToken, patterns []string) *finder {
	if len(tokens) == 0 {
		return nil
	}
	f := &finder{tokens: tokens, only: -1}
	order := make([]int, len(tokens))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return strings.Compare(patterns[a], patterns[b]) })
	f.build(order, patterns, 0)
	begins := 0
	for b, yes := range f.first {
		if yes {
			begins, f.only = begins+1, b
		}
	}
	if begins > 1 {
		f.only = -1
	}
	return f
}

// build adds the node for the sorted patterns in order, which agree in their
// first depth bytes.
func (f *finder) build(order []int, patterns []string, depth int) int32 {
	at := int32(len(f.nodes))
	f.nodes = append(f.nodes, trieNode{token: -1})
	for len(order) > 0 && len(patterns[order[0]]) == depth {
		if f.nodes[at].token < 0 {
			f.nodes[at].token = int32(order[0])
		}
		order = order[1:]
	}
	var edges []trieEdge
	for len(order) > 0 {
		label, n := patterns[order[0]][depth], 0
		for n < len(order) && patterns[order[n]][depth] == label {
			n++
		}
		if depth == 0 {
			f.first[label] = true
		}
		edges = append(edges, trieEdge{label, f.build(order[:n], patterns, depth+1)})
		order = order[n:]
	}
	f.nodes[at].edges, f.nodes[at].count = int32(len(f.edges)), int32(len(edges))
	f.edges = append(f.edges, edges...)
	return at
}

// longest gives the longest token at s[i] and its end.
func (f *finder) longest(s string, i int) (token, end int) {
	token = -1
	node := f.nodes[0]
	for {
		if node.token >= 0 {
			token, end = int(node.token), i
		}
		if i == len(s) {
			return token, end
		}
		next := int32(-1)
		for _, e := range f.edges[node.edges : node.edges+node.count] {
			if e.label == s[i] {
				next = e.node
				break
			}
		}
		if next < 0 {
			return token, end
		}
		node = f.nodes[next]
		i++
	}
}

// match is an added token found in a text.
type match struct {
	token      *AddedToken
	start, end int // with the white space it swallowed
	resume     int // where to look for the next one
}

// find gives the first token that begins at from or later; start never goes
// below floor, the end of the match before. It pauses in long texts, by e's
// pace, and finds nothing any more when that says to stop.
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
		} else if !f.first[s[i]] {
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

// trimSpaceRight gives where the white space that ends at i begins, at floor
// or after.
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

// trimSpaceLeft gives where the white space that begins at i ends.
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
