package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The bounds of a pattern: its length in bytes, how deep its groups nest, and
// how long its program becomes when counted repetitions are written out.
const (
	maxPattern = 16 << 10
	maxNesting = 64
	maxProgram = 64 << 10
)

// compile reads a regular expression in Oniguruma's syntax for Ruby. What is
// not sure to mean the same here is an error that names it.
func compile(pattern string) (*regex, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("it is longer than %d bytes", maxPattern)
	}
	if !utf8.ValidString(pattern) {
		return nil, errors.New("it is not valid UTF-8")
	}
	r := &regexReader{text: pattern}
	tree, err := r.alternatives(false)
	if err == nil && r.at < len(pattern) {
		err = errors.New("a parenthesis too many")
	}
	if err != nil {
		return nil, fmt.Errorf("at byte %d: %w", r.at, err)
	}
	c := &regexWriter{}
	if err := c.write(tree); err != nil {
		return nil, err
	}
	least, _ := tree.width()
	return &regex{prog: append(c.prog, instruction{op: opMatched}), empty: least == 0}, nil
}

// regexTree is a parsed expression.
type regexTree struct {
	op       treeOp
	set      *runeSet
	subs     []*regexTree
	min, max int // of a repetition; max is -1 without bound
	greed    greed
	edge     instruction // of treeEdge
	behind   bool
	negative bool
}

type treeOp uint8

const (
	treeSet treeOp = iota
	treeSequence
	treeAlternatives
	treeRepeat
	treeLook
	treeAtomic
	treeEdge
)

// width returns the least and the greatest number of runes that match; -1 is no bound.
func (t *regexTree) width() (least, most int) {
	switch t.op {
	case treeSet:
		return 1, 1
	case treeSequence:
		for _, sub := range t.subs {
			a, b := sub.width()
			least += a
			if most >= 0 && b >= 0 {
				most += b
			} else {
				most = -1
			}
		}
	case treeAlternatives:
		for i, sub := range t.subs {
			a, b := sub.width()
			if i == 0 {
				least, most = a, b
				continue
			}
			least = min(least, a)
			if most >= 0 && b >= 0 {
				most = max(most, b)
			} else {
				most = -1
			}
		}
	case treeRepeat:
		a, b := t.subs[0].width()
		least, most = a*t.min, -1
		if b == 0 {
			most = 0
		} else if t.max >= 0 && b >= 0 {
			most = b * t.max
		}
	case treeAtomic:
		return t.subs[0].width()
	case treeLook, treeEdge:
	}
	return least, most
}

// regexReader parses.
type regexReader struct {
	text  string
	at    int
	depth int
	fold  bool // (?i: is in force
}

func (r *regexReader) more() bool { return r.at < len(r.text) }

// take steps over a prefix, if it is there.
func (r *regexReader) take(prefix string) bool {
	if strings.HasPrefix(r.text[r.at:], prefix) {
		r.at += len(prefix)
		return true
	}
	return false
}

// alternatives reads up to the end, or up to a closing parenthesis.
func (r *regexReader) alternatives(inGroup bool) (*regexTree, error) {
	if r.depth++; r.depth > maxNesting {
		return nil, fmt.Errorf("groups nest deeper than %d", maxNesting)
	}
	defer func() { r.depth-- }()
	t := &regexTree{op: treeAlternatives}
	for {
		sub, err := r.sequence()
		if err != nil {
			return nil, err
		}
		t.subs = append(t.subs, sub)
		if r.take("|") {
			continue
		}
		if inGroup && !r.take(")") {
			return nil, errors.New("a group that is not closed")
		}
		if len(t.subs) == 1 {
			return sub, nil
		}
		return t, nil
	}
}

func (r *regexReader) sequence() (*regexTree, error) {
	t := &regexTree{op: treeSequence}
	before := rune(0) // the letter before, while folding
	for r.more() && r.text[r.at] != '|' && r.text[r.at] != ')' {
		from := r.at
		sub, err := r.atom()
		if err != nil {
			return nil, err
		}
		this := rune(0)
		if r.fold && sub.op == treeSet && r.at == from+1 {
			this = rune(r.text[from] | 0x20)
			// These fold to one letter beyond ASCII.
			switch pair := string([]rune{before, this}); pair {
			case "ss", "st", "ff", "fi", "fl":
				return nil, fmt.Errorf("folding the case of %q", pair)
			}
		}
		before = this
		if sub, err = r.repeats(sub); err != nil {
			return nil, err
		}
		t.subs = append(t.subs, sub)
	}
	return t, nil
}

// repeats reads what says how often sub comes.
func (r *regexReader) repeats(sub *regexTree) (*regexTree, error) {
	low, high := 0, -1
	counted := false
	switch {
	case r.take("*"):
	case r.take("+"):
		low = 1
	case r.take("?"):
		high = 1
	case r.more() && r.text[r.at] == '{':
		var err error
		if low, high, err = r.counts(); err != nil {
			return nil, err
		}
		counted = true
	default:
		return sub, nil
	}
	t := &regexTree{op: treeRepeat, subs: []*regexTree{sub}, min: low, max: high}
	switch {
	case r.take("?"):
		if counted && low == high {
			return nil, errors.New("{n}?, which is no lazy repetition in Ruby")
		}
		t.greed = lazy
	case r.take("+"):
		if counted {
			return nil, errors.New("a repetition of {n,m}")
		}
		t.greed = possessive
	}
	if r.more() && strings.ContainsRune("*+?{", rune(r.text[r.at])) {
		return nil, errors.New("a repetition of a repetition")
	}
	least, _ := sub.width()
	switch {
	case sub.op == treeEdge || sub.op == treeLook:
		return nil, errors.New("a repetition of an assertion")
	case least == 0 && high != 0 && high != 1:
		return nil, errors.New("a repetition of a group that may match the empty text")
	}
	return t, nil
}

// counts reads {n}, {n,}, {n,m} or {,m}.
func (r *regexReader) counts() (low, high int, err error) {
	end := strings.IndexByte(r.text[r.at:], '}')
	if end < 0 {
		return 0, 0, errors.New("a brace that is not closed")
	}
	inside := r.text[r.at+1 : r.at+end]
	a, b, two := strings.Cut(inside, ",")
	number := func(s string, other int) int {
		if s == "" {
			return other
		}
		n, convErr := strconv.Atoi(s)
		if convErr != nil || n < 0 || n > 1000 {
			err = fmt.Errorf("the count {%s}", inside)
		}
		return n
	}
	low, high = number(a, 0), number(b, -1)
	if !two {
		high = low
	}
	if inside == "" || inside == "," || high >= 0 && high < low {
		err = fmt.Errorf("the count {%s}", inside)
	}
	r.at += end + 1
	return low, high, err
}

func (r *regexReader) atom() (*regexTree, error) {
	c, size := utf8.DecodeRuneInString(r.text[r.at:])
	switch c {
	case '(':
		r.at++
		return r.group()
	case '[':
		set, err := r.class()
		if err == nil && r.fold {
			err = set.fold()
		}
		return &regexTree{op: treeSet, set: set}, err
	case '\\':
		return r.escape()
	case '.':
		r.at++
		return &regexTree{op: treeSet, set: (&runeSet{ranges: [][2]rune{{'\n', '\n'}}, negative: true}).seal()}, nil
	case '^', '$':
		r.at++
		return edge(opLine, c == '$'), nil
	case '*', '+', '?', '{':
		return nil, fmt.Errorf("%q with nothing to repeat", c)
	case ']', '}':
		return nil, fmt.Errorf("%q without its beginning", c)
	}
	r.at += size
	return r.rune(c)
}

func edge(op opcode, second bool) *regexTree {
	i := instruction{op: op}
	if second {
		i.x = 1
	}
	return &regexTree{op: treeEdge, edge: i}
}

// rune returns the tree of one rune.
func (r *regexReader) rune(c rune) (*regexTree, error) {
	set := (&runeSet{ranges: [][2]rune{{c, c}}}).seal()
	var err error
	if r.fold {
		err = set.fold()
	}
	return &regexTree{op: treeSet, set: set}, err
}

// group reads what follows an opening parenthesis.
func (r *regexReader) group() (*regexTree, error) {
	fold := r.fold
	defer func() { r.fold = fold }()
	switch {
	case r.take("?:"):
	case r.take("?i:"):
		r.fold = true
	case r.take("?-i:"):
		r.fold = false
	case r.take("?>"):
		sub, err := r.alternatives(true)
		return &regexTree{op: treeAtomic, subs: []*regexTree{sub}}, err
	case r.take("?="):
		return r.look(false, false)
	case r.take("?!"):
		return r.look(false, true)
	case r.take("?<="):
		return r.look(true, false)
	case r.take("?<!"):
		return r.look(true, true)
	case r.more() && r.text[r.at] == '?':
		return nil, fmt.Errorf("a group that begins with %q", r.text[r.at-1:min(len(r.text), r.at+2)])
	}
	return r.alternatives(true)
}

// look reads what is looked for, ahead or behind. Behind, each alternative has
// one length.
func (r *regexReader) look(behind, negative bool) (*regexTree, error) {
	sub, err := r.alternatives(true)
	if err != nil {
		return nil, err
	}
	t := &regexTree{op: treeLook, subs: []*regexTree{sub}, behind: behind, negative: negative}
	if !behind {
		return t, nil
	}
	if sub.op == treeAlternatives {
		t.subs = sub.subs
	}
	for _, alternative := range t.subs {
		if least, most := alternative.width(); least != most {
			return nil, errors.New("looking behind for texts of several lengths")
		}
	}
	return t, nil
}

// escape reads what a backslash begins, outside a set.
func (r *regexReader) escape() (*regexTree, error) {
	if r.at+1 < len(r.text) {
		c := r.text[r.at+1]
		switch c {
		case 'A', 'z':
			r.at += 2
			return edge(opText, c == 'z'), nil
		case 'b', 'B':
			r.at += 2
			return edge(opWord, c == 'B'), nil
		}
	}
	set, c, err := r.escaped()
	if err != nil {
		return nil, err
	}
	if set != nil {
		if r.fold && set.ranges != nil {
			return nil, errors.New("folding the case of a set")
		}
		return &regexTree{op: treeSet, set: set.seal()}, nil
	}
	return r.rune(c)
}

// escaped reads a backslash and what belongs to it: a set or a rune.
func (r *regexReader) escaped() (*runeSet, rune, error) {
	if r.at++; !r.more() {
		return nil, 0, errors.New("a backslash at the end")
	}
	c, size := utf8.DecodeRuneInString(r.text[r.at:])
	r.at += size
	switch c {
	case 's', 'S':
		return &runeSet{space: true, negative: c == 'S'}, 0, nil
	case 'd', 'D':
		return &runeSet{categories: 1 << gcNd, negative: c == 'D'}, 0, nil
	case 'w', 'W':
		return &runeSet{word: true, negative: c == 'W'}, 0, nil
	case 'p', 'P':
		set, err := r.property(c == 'P')
		return set, 0, err
	case 'n':
		return nil, '\n', nil
	case 'r':
		return nil, '\r', nil
	case 't':
		return nil, '\t', nil
	case 'f':
		return nil, '\f', nil
	case 'v':
		return nil, '\v', nil
	case 'x', 'u':
		n, err := r.codePoint(c)
		return nil, n, err
	}
	if c < utf8.RuneSelf && (c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9') {
		return nil, 0, fmt.Errorf("\\%c", c)
	}
	return nil, c, nil
}

// codePoint reads what follows \x or \u.
func (r *regexReader) codePoint(kind rune) (rune, error) {
	digits := ""
	switch rest := r.text[r.at:]; {
	case kind == 'x' && strings.HasPrefix(rest, "{") && strings.Contains(rest, "}"):
		digits = rest[1:strings.IndexByte(rest, '}')]
		r.at += len(digits) + 2
	case kind == 'x' && len(rest) >= 2:
		digits = rest[:2]
		r.at += 2
	case kind == 'u' && len(rest) >= 4:
		digits = rest[:4]
		r.at += 4
	}
	n, err := strconv.ParseUint(digits, 16, 32)
	// Below 0x80 a byte is a rune; two digits above are bytes of one.
	if err != nil || !utf8.ValidRune(rune(n)) || kind == 'x' && len(digits) == 2 && n >= utf8.RuneSelf {
		return 0, fmt.Errorf("the code point \\%c%s", kind, digits)
	}
	return rune(n), nil
}
