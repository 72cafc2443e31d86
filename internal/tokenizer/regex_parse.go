package tokenizer

import (
	"errors"
	"fmt"
	"slices"
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

// width gives the least and the greatest number of runes that match; -1 is no
// bound.
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
		return nil, errors.New("a repetition of what may match no text")
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

// rune gives the tree of one rune.
func (r *regexReader) rune(c rune) (*regexTree, error) {
	set := (&runeSet{ranges: [][2]rune{{c, c}}}).seal()
	var err error
	if r.fold {
		err = set.fold()
	}
	return &regexTree{op: treeSet, set: set}, err
}

// fold adds the other cases of a set of ASCII.
func (s *runeSet) fold() error {
	if s.negative || s.union != nil || s.also != nil || s.categories != 0 || s.space || s.word {
		return errors.New("folding the case of a set")
	}
	for _, span := range s.ranges {
		if span[1] >= utf8.RuneSelf {
			return fmt.Errorf("folding the case of %q", span[1])
		}
	}
	for r := 'a'; r <= 'z'; r++ {
		capital := r &^ 0x20
		if !s.has(r) && !s.has(capital) {
			continue
		}
		s.ranges = append(s.ranges, [2]rune{r, r}, [2]rune{capital, capital})
		switch r { // each has one other case beyond ASCII
		case 's':
			s.ranges = append(s.ranges, [2]rune{'ſ', 'ſ'})
		case 'k':
			s.ranges = append(s.ranges, [2]rune{'\u212a', '\u212a'})
		}
	}
	s.seal()
	return nil
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

// property reads {Name} or {^Name}.
func (r *regexReader) property(negative bool) (*runeSet, error) {
	rest := r.text[r.at:]
	end := strings.IndexByte(rest, '}')
	if !strings.HasPrefix(rest, "{") || end < 0 {
		return nil, errors.New("\\p without {...}")
	}
	r.at += end + 1
	name, inverse := strings.CutPrefix(rest[1:end], "^")
	set := &runeSet{negative: negative != inverse}
	if table, ok := scripts[name]; ok {
		for i := 0; i < len(table); i += 6 {
			set.ranges = append(set.ranges, [2]rune{u24(table, i), u24(table, i+3)})
		}
		return set, nil
	}
	if set.categories = categorySet(name); set.categories == 0 {
		return nil, fmt.Errorf("\\p{%s}", name)
	}
	return set, nil
}

// categoryNames are the general categories, as numbered in classData.
var categoryNames = strings.Fields("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co")

// categorySet gives the set of a category, or of all that begin with a letter.
func categorySet(name string) uint32 {
	set := uint32(0)
	for i, category := range categoryNames {
		if name == category || len(name) == 1 && name == category[:1] {
			set |= 1 << i
		}
	}
	return set
}

// class reads a set in brackets.
func (r *regexReader) class() (*runeSet, error) {
	if r.depth++; r.depth > maxNesting {
		return nil, fmt.Errorf("sets nest deeper than %d", maxNesting)
	}
	defer func() { r.depth-- }()
	r.at++
	whole := &runeSet{negative: r.take("^")}
	part, first := whole, true
	for {
		switch {
		case !r.more():
			return nil, errors.New("a set that is not closed")
		case r.text[r.at] == ']' && first:
			return nil, errors.New("a set that begins with ]")
		case r.take("]"):
			return whole.seal(), nil
		case strings.HasPrefix(r.text[r.at:], "[:"):
			return nil, errors.New("a POSIX bracket")
		case r.text[r.at] == '[':
			sub, err := r.class()
			if err != nil {
				return nil, err
			}
			part.union = append(part.union, sub)
		case r.take("&&"):
			if first {
				return nil, errors.New("&& with nothing before it")
			}
			part.also = &runeSet{}
			part = part.also
		default:
			if err := r.member(part); err != nil {
				return nil, err
			}
		}
		first = false
	}
}

// member reads a rune, a range or a set into a set.
func (r *regexReader) member(into *runeSet) error {
	set, from, err := r.memberRune()
	if err != nil {
		return err
	}
	isRange := strings.HasPrefix(r.text[r.at:], "-") && !strings.HasPrefix(r.text[r.at:], "-]")
	switch {
	case set != nil && isRange:
		return errors.New("a range that begins with a set")
	case set != nil:
		into.union = append(into.union, set.seal())
		return nil
	case !isRange:
		into.ranges = append(into.ranges, [2]rune{from, from})
		return nil
	}
	r.at++
	set, to, err := r.memberRune()
	switch {
	case err != nil:
		return err
	case set != nil || to < from:
		return errors.New("a range without order")
	}
	into.ranges = append(into.ranges, [2]rune{from, to})
	return nil
}

func (r *regexReader) memberRune() (*runeSet, rune, error) {
	if !r.more() {
		return nil, 0, errors.New("a set that is not closed")
	}
	if r.text[r.at] == '\\' {
		return r.escaped()
	}
	c, size := utf8.DecodeRuneInString(r.text[r.at:])
	if c == '[' || c == '&' && strings.HasPrefix(r.text[r.at:], "&&") {
		return nil, 0, fmt.Errorf("%q at this place of a set", c)
	}
	r.at += size
	return nil, c, nil
}

// regexWriter writes the program.
type regexWriter struct {
	prog []instruction
}

func (c *regexWriter) add(i instruction) (int, error) {
	if len(c.prog) >= maxProgram {
		return 0, fmt.Errorf("its counted repetitions make more than %d steps", maxProgram)
	}
	c.prog = append(c.prog, i)
	return len(c.prog) - 1, nil
}

func (c *regexWriter) write(t *regexTree) error {
	switch t.op {
	case treeSet:
		_, err := c.add(instruction{op: opSet, set: t.set})
		return err
	case treeSequence:
		for _, sub := range t.subs {
			if err := c.write(sub); err != nil {
				return err
			}
		}
		return nil
	case treeAlternatives:
		return c.alternatives(t.subs)
	case treeRepeat:
		return c.repeat(t)
	case treeEdge:
		_, err := c.add(t.edge)
		return err
	}
	i := instruction{op: opAtomic, behind: t.behind, negative: t.negative}
	if t.op == treeLook {
		i.op = opLook
	}
	for _, sub := range t.subs {
		inner := &regexWriter{}
		if err := inner.write(sub); err != nil {
			return err
		}
		least, _ := sub.width()
		i.sub = append(i.sub, append(inner.prog, instruction{op: opMatched}))
		i.back = append(i.back, least)
	}
	_, err := c.add(i)
	return err
}

func (c *regexWriter) alternatives(subs []*regexTree) error {
	var ends []int
	for k, sub := range subs {
		split := -1
		var err error
		if k < len(subs)-1 {
			if split, err = c.add(instruction{op: opSplit}); err != nil {
				return err
			}
			c.prog[split].x = int32(len(c.prog))
		}
		if err := c.write(sub); err != nil {
			return err
		}
		if split >= 0 {
			end, err := c.add(instruction{op: opJump})
			if err != nil {
				return err
			}
			ends = append(ends, end)
			c.prog[split].y = int32(len(c.prog))
		}
	}
	for _, end := range ends {
		c.prog[end].x = int32(len(c.prog))
	}
	return nil
}

func (c *regexWriter) repeat(t *regexTree) error {
	sub := t.subs[0]
	if sub.op == treeSet {
		_, err := c.add(instruction{op: opRun, set: sub.set, min: int32(t.min), max: int32(t.max), greed: t.greed})
		return err
	}
	if t.greed == possessive {
		plain := *t
		plain.greed = greedy
		return c.write(&regexTree{op: treeAtomic, subs: []*regexTree{&plain}})
	}
	for range t.min {
		if err := c.write(sub); err != nil {
			return err
		}
	}
	if t.max < 0 {
		split, err := c.add(instruction{op: opSplit})
		if err != nil {
			return err
		}
		if err := c.write(sub); err != nil {
			return err
		}
		if _, err := c.add(instruction{op: opJump, x: int32(split)}); err != nil {
			return err
		}
		c.choose(split, t.greed)
		return nil
	}
	var splits []int
	for range t.max - t.min {
		split, err := c.add(instruction{op: opSplit})
		if err != nil {
			return err
		}
		splits = append(splits, split)
		if err := c.write(sub); err != nil {
			return err
		}
	}
	slices.Reverse(splits)
	for _, split := range splits {
		c.choose(split, t.greed)
	}
	return nil
}

// choose lets a split go on with what follows it or behind the program so far.
func (c *regexWriter) choose(split int, g greed) {
	in, out := int32(split+1), int32(len(c.prog))
	if g == lazy {
		in, out = out, in
	}
	c.prog[split].x, c.prog[split].y = in, out
}
