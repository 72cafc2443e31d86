package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
)

// A stage is one pre-tokenizer of the file: it cuts what the stage before it
// cut, and may rewrite it first.
type stage interface {
	// cut hands the pieces of s to e.segment with the stage after at. first says
	// that s stands at the very beginning of the text.
	cut(e *Encoder, dst []uint32, s string, first bool, at int) ([]uint32, error)
}

// A matcher finds places in text.
type matcher interface {
	// find puts the matches in s into f, in order and without overlap. It pauses
	// every few thousand steps and gives up when that says so.
	find(f *found, s string, p pauser) error
}

// found is what a matcher finds, and the memory it needs for it, which is
// reused.
type found struct {
	spans []span
	stack []choice // of a regex
}

func (t *Tokenizer) readPreTokenizer(n node) error {
	if n.null() {
		return nil
	}
	kind, err := n.kind()
	if err != nil {
		return err
	}
	if kind == "Sequence" {
		var seq struct {
			Type          string           `json:"type"`
			PreTokenizers []jsontext.Value `json:"pretokenizers"`
		}
		if err := n.decode(&seq); err != nil {
			return err
		}
		return n.each("pretokenizers", seq.PreTokenizers, t.readPreTokenizer)
	}
	if t.byteLevel {
		return n.unsupported(fmt.Sprintf("pre-tokenizer %q after ByteLevel", kind))
	}
	var bare struct {
		Type string `json:"type"`
	}
	var s stage
	switch kind {
	case "ByteLevel":
		return t.readByteLevel(n)
	case "Metaspace":
		return t.readMetaspace(n)
	case "Split":
		s, err = readSplit(n)
	case "Digits":
		var part struct {
			Type       string `json:"type"`
			Individual bool   `json:"individual_digits"`
		}
		err = n.decode(&part)
		s = split{m: eachIn{func(r rune) bool { return traits(r)&bitNumeric != 0 }}, behavior: contiguous}
		if part.Individual {
			s = split{m: eachIn{func(r rune) bool { return traits(r)&bitNumeric != 0 }}, behavior: isolated}
		}
	case "Punctuation":
		part := struct {
			Type     string `json:"type"`
			Behavior string `json:"behavior"`
		}{Behavior: "Isolated"}
		if err := n.decode(&part); err != nil {
			return err
		}
		var b behavior
		b, err = readBehavior(n, part.Behavior)
		s = split{m: eachIn{func(r rune) bool { return traits(r)&bitPunctuation != 0 }}, behavior: b}
	case "Whitespace":
		err = n.decode(&bare)
		s = split{m: words{}, behavior: removed, invert: true}
	case "WhitespaceSplit":
		err = n.decode(&bare)
		s = split{m: eachIn{func(r rune) bool { return class(r)&bitSpace != 0 }}, behavior: removed}
	case "CharDelimiterSplit":
		var part struct {
			Type      string `json:"type"`
			Delimiter string `json:"delimiter"`
		}
		if err := n.decode(&part); err != nil {
			return err
		}
		if utf8.RuneCountInString(part.Delimiter) != 1 {
			return n.at("/delimiter", nil).errorf("want one character, have %q", part.Delimiter)
		}
		s = split{m: literal(part.Delimiter), behavior: removed}
	default:
		return n.unsupported(fmt.Sprintf("pre-tokenizer %q", kind))
	}
	if err != nil {
		return err
	}
	t.stages = append(t.stages, s)
	return nil
}

func (t *Tokenizer) readByteLevel(n node) error {
	var part byteLevelPart
	if err := n.decode(&part); err != nil {
		return err
	}
	t.byteLevel = true
	if part.AddPrefixSpace {
		t.stages = append(t.stages, leadingSpace{})
	}
	if part.UseRegex == nil || *part.UseRegex {
		t.stages = append(t.stages, isolate{gpt2{}})
	}
	return nil
}

func (t *Tokenizer) readMetaspace(n node) error {
	var part metaspacePart
	if err := n.decode(&part); err != nil {
		return err
	}
	scheme, err := part.scheme(n)
	if err != nil {
		return err
	}
	if scheme == "first" {
		if err := t.checkFirst(n.at("/prepend_scheme", nil)); err != nil {
			return err
		}
	}
	t.stages = append(t.stages, metaspace{replacement: part.Replacement, scheme: scheme})
	if part.Split == nil || *part.Split {
		t.stages = append(t.stages, isolate{before(part.Replacement)})
	}
	return nil
}

// scheme checks a Metaspace and gives its prepend scheme.
func (part metaspacePart) scheme(n node) (string, error) {
	if utf8.RuneCountInString(part.Replacement) != 1 {
		return "", n.at("/replacement", nil).errorf("want one character, have %q", part.Replacement)
	}
	scheme := "always"
	if part.PrependScheme != nil {
		scheme = *part.PrependScheme
	}
	switch {
	case scheme != "always" && scheme != "first" && scheme != "never":
		return "", n.at("/prepend_scheme", nil).errorf("%q is not known; always, first and never are", scheme)
	case part.AddPrefixSpace != nil && !*part.AddPrefixSpace && scheme != "never":
		return "", n.at("/add_prefix_space", nil).errorf("false does not go with prepend_scheme %q", scheme)
	}
	return scheme, nil
}

// checkFirst refuses what moves the beginning of the text, because then the
// reference's idea of where a piece began is its own.
func (t *Tokenizer) checkFirst(n node) error {
	whole, parts := keepsStart(t.normalizers)
	if !whole {
		return n.unsupported("the scheme \"first\" after a normalizer that may take text away from the beginning")
	}
	t.wholeFirst = !parts
	for _, s := range t.stages {
		switch s.(type) {
		case metaspace, leadingSpace:
			return n.unsupported("the scheme \"first\" after a pre-tokenizer that writes text")
		}
		if !parts {
			return n.unsupported("the scheme \"first\" after a pre-tokenizer and a normalizer that changes lengths")
		}
	}
	return nil
}

func readSplit(n node) (stage, error) {
	var part splitPart
	if err := n.decode(&part); err != nil {
		return nil, err
	}
	b, err := readBehavior(n, part.Behavior)
	if err != nil {
		return nil, err
	}
	if part.Pattern.Regex != nil && part.Pattern.String == nil {
		g, ok := grammar(*part.Pattern.Regex)
		// To keep each match apart is also what removing everything else does, if
		// there is nothing else.
		if ok && (b == isolated || b == removed && part.Invert && g.covers) {
			return isolate{g.scan}, nil
		}
	}
	m, err := readPattern(n.at("/pattern", nil), part.Pattern)
	return split{m: m, behavior: b, invert: part.Invert}, err
}

// behavior is the treatment of a match that splits.
type behavior int

const (
	isolated behavior = iota
	removed
	mergedWithPrevious
	mergedWithNext
	contiguous
)

func readBehavior(n node, name string) (behavior, error) {
	for b, known := range []string{"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"} {
		if name == known {
			return behavior(b), nil
		}
	}
	return 0, n.at("/behavior", nil).errorf("%q is not known; Removed, Isolated, MergedWithPrevious, MergedWithNext and Contiguous are", name)
}

// isolate cuts with a scanner and keeps every piece.
type isolate struct{ scan scanner }

func (c isolate) cut(e *Encoder, dst []uint32, s string, first bool, at int) ([]uint32, error) {
	for i := 0; i < len(s); {
		end := c.scan.next(s, i, e)
		var err error
		if dst, err = e.segment(dst, s[i:end], first && i == 0, at+1); err != nil {
			return dst, err
		}
		if e.work--; e.work <= 0 {
			if err := e.pauseAt(len(dst)); err != nil {
				return dst, err
			}
		}
		i = end
	}
	return dst, nil
}

// split cuts at the matches of a pattern.
type split struct {
	m        matcher
	behavior behavior
	invert   bool // what lies between matches is the match
}

// marked is a match, or what lies between two.
type marked struct {
	span
	match bool
}

func (c split) cut(e *Encoder, dst []uint32, s string, first bool, at int) ([]uint32, error) {
	m := &e.memory[at]
	m.spans = m.spans[:0]
	err := c.m.find(&m.found, s, e)
	if err != nil {
		return dst, err
	}
	m.pieces = c.pieces(m.pieces[:0], m.spans, len(s))
	for _, piece := range m.pieces {
		if piece.start == piece.end {
			continue
		}
		if dst, err = e.segment(dst, s[piece.start:piece.end], first && piece.start == 0, at+1); err != nil {
			return dst, err
		}
		if e.work--; e.work <= 0 {
			if err := e.pauseAt(len(dst)); err != nil {
				return dst, err
			}
		}
	}
	return dst, nil
}

// pieces appends the pieces of a text of n bytes with some matches, to keep.
func (c split) pieces(dst []marked, matches []span, n int) []marked {
	done := 0
	for _, m := range matches {
		if done != m.start {
			dst = append(dst, marked{span{done, m.start}, c.invert})
		}
		dst = append(dst, marked{m, !c.invert})
		done = m.end
	}
	if done != n {
		dst = append(dst, marked{span{done, n}, c.invert})
	}
	switch c.behavior {
	case removed:
		return keep(dst, func(_, this marked) (marked, bool, bool) { return this, false, !this.match })
	case contiguous:
		return keep(dst, func(last, this marked) (marked, bool, bool) {
			return marked{span{last.start, this.end}, this.match}, last.match == this.match, true
		})
	case mergedWithPrevious:
		return keep(dst, func(last, this marked) (marked, bool, bool) {
			return marked{span{last.start, this.end}, true}, this.match && !last.match, true
		})
	case mergedWithNext:
		return c.withNext(dst)
	}
	return dst
}

// keep folds pieces from left to right: join says of one and the piece before
// it what both make, whether they are to be one, and whether to keep it. A
// joined piece counts as what its last part was.
func keep(pieces []marked, join func(last, this marked) (both marked, one, kept bool)) []marked {
	n := 0
	for _, this := range pieces {
		var last marked
		if n > 0 {
			last = pieces[n-1]
		}
		both, one, kept := join(last, this)
		switch {
		case one && n > 0:
			pieces[n-1] = both
		case kept:
			pieces[n] = this
			n++
		}
	}
	return pieces[:n]
}

// withNext joins a match to what follows it, unless that is a match too.
func (c split) withNext(pieces []marked) []marked {
	n := len(pieces)
	for i := len(pieces) - 1; i >= 0; i-- {
		this := pieces[i]
		if n < len(pieces) && this.match && !pieces[n].match {
			pieces[n] = marked{span{this.start, pieces[n].end}, true}
			continue
		}
		n--
		pieces[n] = this
	}
	return pieces[n:]
}

// eachIn matches each rune of a set by itself.
type eachIn struct{ in func(rune) bool }

func (m eachIn) find(f *found, s string, p pauser) error {
	next := 4 * pauseSteps
	for i := 0; i < len(s); {
		r, size := rune(s[i]), 1
		if r >= utf8.RuneSelf {
			r, size = utf8.DecodeRuneInString(s[i:])
		}
		if m.in(r) {
			f.spans = append(f.spans, span{i, i + size})
		}
		if i += size; i >= next {
			next = i + 4*pauseSteps
			if err := p.pause(); err != nil {
				return err
			}
		}
	}
	return nil
}

// words matches \w+|[^\w\s]+ of the reference's own regular expressions.
type words struct{}

func (words) find(f *found, s string, p pauser) error {
	next := 4 * pauseSteps
	last := byte(0) // what the open match is of: bitWord, bitSpace, or 1
	for i, r := range s {
		kind := byte(1)
		if c := class(r); c&bitWord != 0 {
			kind = bitWord
		} else if c&bitSpace != 0 {
			kind = bitSpace
		}
		switch {
		case kind == bitSpace:
		case kind == last:
			f.spans[len(f.spans)-1].end = i + utf8.RuneLen(r)
		default:
			f.spans = append(f.spans, span{i, i + utf8.RuneLen(r)})
		}
		last = kind
		if i >= next {
			next = i + 4*pauseSteps
			if err := p.pause(); err != nil {
				return err
			}
		}
	}
	return nil
}

// leadingSpace writes a space before text that has none.
type leadingSpace struct{}

func (leadingSpace) cut(e *Encoder, dst []uint32, s string, first bool, at int) ([]uint32, error) {
	if s[0] != ' ' {
		if !e.scratch.takes(1) {
			return dst, errGrown
		}
		m := &e.memory[at]
		m.text = append(append(m.text[:0], ' '), s...)
		s = unsafe.String(unsafe.SliceData(m.text), len(m.text))
	}
	return e.segment(dst, s, first, at+1)
}

// metaspace writes a visible sign for spaces, and one before the text.
type metaspace struct {
	replacement string
	scheme      string
}

func (c metaspace) cut(e *Encoder, dst []uint32, s string, first bool, at int) ([]uint32, error) {
	m := &e.memory[at]
	m.text = m.text[:0]
	leads := s[0] == ' ' || strings.HasPrefix(s, c.replacement)
	if !leads && (c.scheme == "always" || c.scheme == "first" && first) {
		m.text = append(m.text, c.replacement...)
	}
	text, changed, err := appendReplaced(m.text, s, " ", c.replacement, &e.scratch.room, e)
	if err != nil {
		return dst, err
	}
	if m.text = text; !changed {
		if len(text) == 0 {
			return e.segment(dst, s, first, at+1)
		}
		m.text = append(text, s...)
	}
	if !e.scratch.takes(len(m.text) - len(s)) {
		return dst, errGrown
	}
	return e.segment(dst, unsafe.String(unsafe.SliceData(m.text), len(m.text)), first, at+1)
}

// before scans pieces that begin at a sign.
type before string

func (c before) next(s string, i int, _ *Encoder) int {
	_, size := utf8.DecodeRuneInString(s[i:])
	at := strings.Index(s[i+size:], string(c))
	if at < 0 {
		return len(s)
	}
	return i + size + at
}
