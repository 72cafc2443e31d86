package tokenizer

import (
	"unicode/utf8"

	"weir/internal/infer"
)

// regex is a regular expression of the file that is none of the known
// grammars. It means what it means to the reference's engine, Oniguruma with
// Ruby's syntax, by the reference's own Unicode tables; what is not sure to
// mean the same is refused by compile.
//
// A library would be less code. But the engines of Go's libraries follow other
// versions of Unicode and other rules of folding and of empty matches; those
// that look ahead can be kept from running for ever by a wall clock and a
// goroutine of their own only; and none lets others run in between. This one
// counts steps.
//
// It backtracks, on an explicit stack, through a program of instructions, as
// Oniguruma does, so that the first alternative that matches wins.
type regex struct {
	prog  []instruction
	empty bool // it may match no text
}

type opcode uint8

const (
	opSet     opcode = iota // a rune of set
	opRun                   // min to max runes of set
	opSplit                 // go on at x, or else at y
	opJump                  // go on at x
	opLook                  // what sub says about the text here
	opAtomic                // sub, of which only the first match counts
	opText                  // the text begins (x = 0) or ends (x = 1) here
	opLine                  // a line begins (x = 0) or ends (x = 1) here
	opWord                  // a word begins or ends here (x = 0), or not (x = 1)
	opMatched               // the end
)

type instruction struct {
	op       opcode
	set      *runeSet
	x, y     int32
	min, max int32 // of opRun; max is -1 without bound
	greed    greed
	sub      [][]instruction // of opLook and opAtomic: one of them matches
	back     []int           // of a look behind: the length of each, in runes
	behind   bool
	negative bool
}

// greed says in which order the lengths of a repetition are tried.
type greed uint8

const (
	greedy     greed = iota // longest first
	lazy                    // shortest first
	possessive              // longest alone
)

// The steps a regular expression may take on one text: some for any, and some
// for each byte.
const (
	regexSteps     = 16 << 20
	regexByteSteps = 1 << 10
)

// machine runs a regex over one text.
type machine struct {
	s     string
	steps int // left
	until int // steps at which to pause
	stack []choice
	p     pauser
	err   error
}

// choice is a way not taken yet.
type choice struct {
	kind  choiceKind
	pc    int32
	count int32
	pos   int
	least int
}

type choiceKind uint8

const (
	goOn    choiceKind = iota // at pc from pos
	shorter                   // at pc behind a run that ends before pos, down to least
	longer                    // behind the lazy run at pc, with up to count more runes; -1 is any number
)

func (x *regex) matchesEmpty() bool { return x.empty }

// find is matcher.find. As in the reference, a match of no text right
// behind another match does not count.
func (x *regex) find(f *found, s string, p pauser) error {
	budget := regexSteps + regexByteSteps*len(s)
	m := machine{s: s, steps: budget, until: budget - 4*pauseSteps, p: p, stack: f.stack}
	defer func() { f.stack = m.stack[:0] }()
	lastEnd := -1
	for from := 0; from <= len(s); {
		start, end := m.search(x.prog, from)
		if m.err != nil {
			return m.err
		}
		if start < 0 {
			break
		}
		if start == end && end == lastEnd {
			size := 1
			if from < len(s) {
				_, size = utf8.DecodeRuneInString(s[from:])
			}
			from += size
			continue
		}
		f.spans = append(f.spans, span{start, end})
		from, lastEnd = end, end
	}
	return nil
}

// search returns the first match at from or later, or -1.
func (m *machine) search(prog []instruction, from int) (start, end int) {
	for at := from; at <= len(m.s); {
		m.stack = m.stack[:0]
		if end := m.run(prog, at); end >= 0 || m.err != nil {
			return at, end
		}
		if at == len(m.s) {
			break
		}
		_, size := utf8.DecodeRuneInString(m.s[at:])
		at += size
	}
	return -1, -1
}

// step counts and says whether to go on.
func (m *machine) step(n int) bool {
	m.steps -= n
	if m.steps <= m.until {
		m.until = m.steps - 4*pauseSteps
		if m.err == nil {
			m.err = m.p.pause()
		}
	}
	if m.steps < 0 && m.err == nil {
		m.err = infer.Invalid("", "the model's split pattern takes more than %d steps on this text: send a shorter or plainer one", regexSteps+regexByteSteps*len(m.s))
	}
	return m.err == nil
}

// run matches a program at pos and gives the end, or -1. It leaves the stack
// as it was.
func (m *machine) run(prog []instruction, pos int) int {
	base := len(m.stack)
	pc := int32(0)
	for m.step(1) {
		i := &prog[pc]
		ok := true
		switch i.op {
		case opSet:
			if ok = pos < len(m.s); ok {
				r, size := decode(m.s, pos)
				if ok = i.set.has(r); ok {
					pos += size
				}
			}
		case opRun:
			pos, ok = m.repeat(i, pc, pos)
		case opSplit:
			m.stack = append(m.stack, choice{kind: goOn, pc: i.y, pos: pos})
			pc = i.x
			continue
		case opJump:
			pc = i.x
			continue
		case opLook:
			ok = m.look(i, pos) != i.negative
		case opAtomic:
			end := m.run(i.sub[0], pos)
			if ok = end >= 0; ok {
				pos = end
			}
		case opText:
			ok = pos == 0 && i.x == 0 || pos == len(m.s) && i.x == 1
		case opLine:
			ok = m.lineEdge(pos, i.x == 0)
		case opWord:
			ok = m.wordEdge(pos) == (i.x == 0)
		case opMatched:
			m.stack = m.stack[:base]
			return pos
		}
		if ok {
			pc++
			continue
		}
		if pc, pos, ok = m.back(prog, base); !ok {
			return -1
		}
	}
	m.stack = m.stack[:base]
	return -1
}

func decode(s string, i int) (rune, int) {
	if s[i] < utf8.RuneSelf {
		return rune(s[i]), 1
	}
	return utf8.DecodeRuneInString(s[i:])
}

// repeat matches a run of one set and notes its other lengths.
func (m *machine) repeat(i *instruction, pc int32, pos int) (end int, ok bool) {
	most := i.max
	if i.greed == lazy {
		most = i.min
	}
	least := pos
	n := int32(0)
	for pos < len(m.s) && (most < 0 || n < most) {
		r, size := decode(m.s, pos)
		if !i.set.has(r) {
			break
		}
		pos += size
		if n++; n <= i.min {
			least = pos
		}
	}
	if !m.step(int(n)) || n < i.min {
		return pos, false
	}
	switch {
	case i.greed == greedy && pos > least:
		m.stack = append(m.stack, choice{kind: shorter, pc: pc + 1, pos: pos, least: least})
	case i.greed == lazy && i.max != i.min:
		left := int32(-1)
		if i.max >= 0 {
			left = i.max - n
		}
		m.stack = append(m.stack, choice{kind: longer, pc: pc, count: left, pos: pos})
	}
	return pos, true
}

// back takes the last choice above base, if there is one.
func (m *machine) back(prog []instruction, base int) (pc int32, pos int, ok bool) {
	for len(m.stack) > base {
		c := &m.stack[len(m.stack)-1]
		switch c.kind {
		case goOn:
			m.stack = m.stack[:len(m.stack)-1]
			return c.pc, c.pos, true
		case shorter:
			_, size := utf8.DecodeLastRuneInString(m.s[:c.pos])
			if c.pos -= size; c.pos == c.least {
				m.stack = m.stack[:len(m.stack)-1]
			}
			return c.pc, c.pos, true
		case longer:
			if pos = m.oneMore(&prog[c.pc], c); pos >= 0 {
				return c.pc + 1, pos, true
			}
		}
		m.stack = m.stack[:len(m.stack)-1]
	}
	return 0, 0, false
}

// oneMore returns where a lazy run ends that takes one more rune, or -1.
func (m *machine) oneMore(i *instruction, c *choice) int {
	if c.count == 0 || c.pos == len(m.s) {
		return -1
	}
	r, size := decode(m.s, c.pos)
	if !i.set.has(r) {
		return -1
	}
	c.pos += size
	if c.count > 0 {
		c.count--
	}
	return c.pos
}

// look reports whether what an instruction looks for is at pos, or before it.
func (m *machine) look(i *instruction, pos int) bool {
	for k, sub := range i.sub {
		at := pos
		if i.behind {
			for range i.back[k] {
				_, size := utf8.DecodeLastRuneInString(m.s[:max(at, 0)])
				if size == 0 {
					at = -1
					break
				}
				at -= size
			}
			if at < 0 {
				continue
			}
		}
		if end := m.run(sub, at); end >= 0 && (!i.behind || end == pos) {
			return true
		}
	}
	return false
}

// lineEdge reports whether a line begins or ends at pos. None begins after a line break
// that ends the text.
func (m *machine) lineEdge(pos int, begin bool) bool {
	if begin {
		return pos == 0 || pos < len(m.s) && m.s[pos-1] == '\n'
	}
	return pos == len(m.s) || m.s[pos] == '\n'
}

func (m *machine) wordEdge(pos int) bool {
	before, _ := utf8.DecodeLastRuneInString(m.s[:pos])
	after, _ := utf8.DecodeRuneInString(m.s[pos:])
	is := func(r rune, there bool) bool { return there && traits(r)&bitSplitWord != 0 }
	return is(before, pos > 0) != is(after, pos < len(m.s))
}
