package tokenizer

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// runeSet is a set of runes.
type runeSet struct {
	ascii      [2]uint64 // of the whole set, once sealed
	ranges     [][2]rune
	categories uint32 // a bit for each general category
	space      bool   // \s
	word       bool   // \w
	inside     bool   // the \w stands inside a set
	union      []*runeSet
	also       *runeSet // a rune must be in this one too, before negation
	negative   bool
}

func (s *runeSet) has(r rune) bool {
	if r < utf8.RuneSelf {
		return s.ascii[r>>6]>>(r&63)&1 != 0
	}
	return s.holds(r)
}

// holds is has without the table.
func (s *runeSet) holds(r rune) bool {
	in := s.some(r)
	if in && s.also != nil {
		in = s.also.holds(r)
	}
	return in != s.negative
}

func (s *runeSet) some(r rune) bool {
	c := class(r)
	if in(c, s.categories) || s.space && c&bitSpace != 0 {
		return true
	}
	// Inside a set Oniguruma's \w follows Unicode; by itself it takes six
	// numbers of Latin-1 too.
	if s.word && traits(r)&bitSplitWord != 0 && !(s.inside && r < 0x100 && in(c, 1<<gcNo)) {
		return true
	}
	for _, span := range s.ranges {
		if r >= span[0] && r <= span[1] {
			return true
		}
	}
	for _, other := range s.union {
		if other.holds(r) {
			return true
		}
	}
	return false
}

// seal fills in the table for ASCII.
func (s *runeSet) seal() *runeSet {
	s.ascii = [2]uint64{}
	for r := range rune(utf8.RuneSelf) {
		if s.holds(r) {
			s.ascii[r>>6] |= 1 << (r & 63)
		}
	}
	return s
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
	if set.ranges = scriptRanges(name); set.ranges != nil {
		return set, nil
	}
	if set.categories = categorySet(name); set.categories == 0 {
		return nil, fmt.Errorf("\\p{%s}", name)
	}
	return set, nil
}

// categoryNames are the general categories, as numbered in classData.
var categoryNames = strings.Fields("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co")

// categorySet returns the set of a category, or of all that begin with a letter.
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
		set.inside = true
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
