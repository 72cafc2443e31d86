package content

import (
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"
)

// pattern is a regular expression that texts are made for.
type pattern struct {
	text string
	expr *regexp.Regexp
	tree *syntax.Regexp
	size int // instructions of its program: matching takes as many steps for each byte
}

// patternTries is how many texts are made before one must fit.
const patternTries = 64

// Bounds of patterns, and of the work on one text.
const (
	maxPatternProgram = 1 << 14 // instructions
	maxPatternText    = maxStringLength
	maxPatternWork    = 1 << 23 // steps; beyond them no text is tried
)

// compilePattern reads a regular expression in the syntax that RE2 and
// ECMA-262 share.
func compilePattern(text, path string) (*pattern, error) {
	expr, err := regexp.Compile(text)
	if err != nil {
		return nil, refuse(path, "pattern %q cannot be written by: %v", text, err)
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, refuse(path, "pattern %q cannot be written by: %v", text, err)
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil || len(program.Inst) > maxPatternProgram {
		return nil, refuse(path, "pattern %.40q... is too large to be written by", text)
	}
	return &pattern{text, expr, tree, len(program.Inst)}, nil
}

// write returns a text that the node admits, and false if none was found.
func (x *pattern) write(n *node, draw func(int) int) (string, bool) {
	work := 0
	for try := 0; try < patternTries && work < maxPatternWork; try++ {
		w := patternWriter{draw: draw, more: try % 4 * n.length.min / 3}
		w.write(x.tree)
		// A text may stand in for a match only as a whole, so that nothing around
		// it needs to be made.
		s := w.b.String()
		if work += w.steps + len(s)*x.size; !w.failed && n.admitsString(s) {
			return s, true
		}
	}
	return "", false
}

// writable reports whether the first tries all find a text: they are those of
// draws that always take the first, always the last, and that change.
func (x *pattern) writable(n *node) bool {
	for _, draw := range []func(int) int{
		func(int) int { return 0 },
		func(n int) int { return n - 1 },
	} {
		if _, ok := x.write(n, draw); ok {
			return true
		}
	}
	turn := 0
	_, ok := x.write(n, func(n int) int { turn++; return turn * 7 % n })
	return ok
}

// patternWriter makes one text.
type patternWriter struct {
	b      strings.Builder
	draw   func(int) int
	more   int // repetitions beyond the least, for texts that must be long
	steps  int
	failed bool
}

// maxPatternSteps bounds the work on a text. Repetitions of nothing could make it endless.
const maxPatternSteps = 1 << 16

func (w *patternWriter) write(re *syntax.Regexp) {
	w.steps++
	if w.failed || w.b.Len() > maxPatternText || w.steps > maxPatternSteps {
		w.failed = true
		return
	}
	switch re.Op {
	case syntax.OpLiteral:
		for _, r := range re.Rune {
			w.b.WriteRune(r)
		}
	case syntax.OpCharClass:
		w.class(re.Rune)
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		w.b.WriteByte(byte('a' + w.draw(26)))
	case syntax.OpCapture:
		w.write(re.Sub[0])
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			w.write(sub)
		}
	case syntax.OpAlternate:
		w.write(re.Sub[w.draw(len(re.Sub))])
	case syntax.OpQuest:
		w.repeat(re.Sub[0], 0, 1)
	case syntax.OpStar:
		w.repeat(re.Sub[0], 0, -1)
	case syntax.OpPlus:
		w.repeat(re.Sub[0], 1, -1)
	case syntax.OpRepeat:
		w.repeat(re.Sub[0], re.Min, re.Max)
	case syntax.OpNoMatch:
		w.failed = true
	default:
		// Anchors and word boundaries take no text; whether they hold is seen
		// when the text is matched.
	}
}

// repeat writes a repetition of at most four beyond the least, or more where
// texts must be long.
func (w *patternWriter) repeat(re *syntax.Regexp, least, most int) {
	n := least + w.draw(4) + w.more
	if most >= 0 {
		n = min(n, most)
	}
	for i := 0; i < n && !w.failed; i++ {
		w.write(re)
	}
}

// class writes a character of a class: a printable ASCII one where there is
// any.
func (w *patternWriter) class(ranges []rune) {
	var plain []rune
	for i := 0; i+1 < len(ranges); i += 2 {
		for r := max(ranges[i], ' '); r <= min(ranges[i+1], '~'); r++ {
			plain = append(plain, r)
		}
	}
	if len(plain) > 0 {
		w.b.WriteRune(plain[w.draw(len(plain))])
		return
	}
	for i := 0; i+1 < len(ranges); i += 2 {
		if r := ranges[i]; utf8.ValidRune(r) {
			w.b.WriteRune(r)
			return
		}
	}
	w.failed = true
}
