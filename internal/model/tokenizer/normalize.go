package tokenizer

import (
	"fmt"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"
)

// A rewriter changes text before it is cut: one normalizer of the file.
type rewriter interface {
	// rewrite appends the new form of s to dst, or reports that s already has that
	// form. It pauses every few thousand steps and gives up if the pause asks for that, or
	// with errGrown before it writes something of the file for which x has no room.
	rewrite(x *scratch, dst []byte, s string, p pauser) (out []byte, changed bool, err error)
}

func (t *Tokenizer) readNormalizer(n node) error {
	if n.null() {
		return nil
	}
	kind, err := n.kind()
	if err != nil {
		return err
	}
	var bare struct {
		Type string `json:"type"`
	}
	var r rewriter
	switch kind {
	case "Sequence":
		var seq struct {
			Type        string           `json:"type"`
			Normalizers []jsontext.Value `json:"normalizers"`
		}
		if err := n.decode(&seq); err != nil {
			return err
		}
		return n.each("normalizers", seq.Normalizers, t.readNormalizer)
	case "NFC":
		r, err = normalForm{compose: true}, n.decode(&bare)
	case "NFD":
		r, err = normalForm{}, n.decode(&bare)
	case "NFKC":
		r, err = normalForm{compat: true, compose: true}, n.decode(&bare)
	case "NFKD":
		r, err = normalForm{compat: true}, n.decode(&bare)
	case "Lowercase":
		r, err = eachRune{lowerCase}, n.decode(&bare)
	case "StripAccents":
		r, err = eachRune{withoutMarks}, n.decode(&bare)
	case "Nmt":
		r, err = eachRune{nmt}, n.decode(&bare)
	case "ByteLevel":
		r, err = byteAlphabet{}, n.decode(&bare)
	case "Precompiled":
		r, err = readCharsmap(n)
	case "Prepend":
		var part struct {
			Type    string `json:"type"`
			Prepend string `json:"prepend"`
		}
		err = n.decode(&part)
		r = prepend{part.Prepend}
	case "Strip":
		var part struct {
			Type  string `json:"type"`
			Left  bool   `json:"strip_left"`
			Right bool   `json:"strip_right"`
		}
		err = n.decode(&part)
		r = strip{part.Left, part.Right}
	case "Replace":
		r, err = readReplace(n)
	default:
		return n.unsupported(fmt.Sprintf("normalizer %q", kind))
	}
	t.normalizers = append(t.normalizers, r)
	return err
}

func readReplace(n node) (replace, error) {
	var part replacePart
	if err := n.decode(&part); err != nil {
		return replace{}, err
	}
	m, err := readPattern(n.at("/pattern", nil), part.Pattern)
	if err != nil {
		return replace{}, err
	}
	if x, ok := m.(*regex); ok && x.matchesEmpty() {
		return replace{}, n.at("/pattern/Regex", nil).unsupported("replacing matches of no text")
	}
	return replace{m, part.Content}, nil
}

// readPattern reads a plain string or a regular expression.
func readPattern(n node, part patternPart) (matcher, error) {
	switch {
	case part.Regex != nil && part.String == nil:
		x, err := compile(*part.Regex)
		if err != nil {
			return nil, n.at("/Regex", nil).unsupported(fmt.Sprintf("the pattern %q (%v)", *part.Regex, err))
		}
		return x, nil
	case part.String == nil || part.Regex != nil:
		return nil, n.errorf("want one of Regex and String")
	case *part.String == "":
		return nil, n.at("/String", nil).unsupported("a pattern that is empty")
	}
	return literal(*part.String), nil
}

// replace writes content in place of each match.
type replace struct {
	m       matcher
	content string
}

func (r replace) rewrite(x *scratch, dst []byte, s string, p pauser) ([]byte, bool, error) {
	if l, ok := r.m.(literal); ok {
		return appendReplaced(dst, s, string(l), r.content, &x.room, p)
	}
	x.spans = x.spans[:0]
	if err := r.m.find(&x.found, s, p); err != nil || len(x.spans) == 0 {
		return dst, false, err
	}
	done := 0
	for i, m := range x.spans {
		if !x.has(len(dst) + m.start - done + len(r.content) - len(s)) {
			return dst, false, errGrown
		}
		dst = append(dst, s[done:m.start]...)
		dst = append(dst, r.content...)
		done = m.end
		if i%(4*pauseSteps) == 4*pauseSteps-1 {
			if err := p.pause(); err != nil {
				return dst, false, err
			}
		}
	}
	return append(dst, s[done:]...), true, nil
}

// appendReplaced appends s with content in place of each old, which is not
// empty.
func appendReplaced(dst []byte, s, old, content string, room *room, p pauser) (out []byte, changed bool, err error) {
	const part = 8 * pauseSteps
	first, done, pause := old[0], 0, part
	for i := 0; i < len(s); {
		if i >= pause {
			pause = i + part
			if err := p.pause(); err != nil {
				return dst, false, err
			}
		}
		if s[i] != first || !strings.HasPrefix(s[i:], old) {
			i++
			continue
		}
		if !room.has(len(dst) + i - done + len(content) - len(s)) {
			return dst, false, errGrown
		}
		dst = append(dst, s[done:i]...)
		dst = append(dst, content...)
		i += len(old)
		done, changed = i, true
	}
	if !changed {
		return dst, false, nil
	}
	return append(dst, s[done:]...), true, nil
}

// onlyRunes reports whether each match is a single rune that becomes exactly one other,
// so that nothing moves.
func (r replace) onlyRunes() bool {
	l, ok := r.m.(literal)
	return ok && utf8.RuneCountInString(string(l)) == 1 && utf8.RuneCountInString(r.content) == 1
}

// prepend writes text before any that is not empty.
type prepend struct{ text string }

func (r prepend) rewrite(x *scratch, dst []byte, s string, _ pauser) ([]byte, bool, error) {
	if s == "" || r.text == "" {
		return dst, false, nil
	}
	if !x.has(len(r.text)) {
		return dst, false, errGrown
	}
	dst = append(dst, r.text...)
	return append(dst, s...), true, nil
}

// strip takes the white space from the ends.
type strip struct{ left, right bool }

func (r strip) rewrite(_ *scratch, dst []byte, s string, p pauser) ([]byte, bool, error) {
	e, _ := p.(*Encoder)
	from, to := 0, len(s)
	if r.left {
		from = trimSpaceLeft(s, 0, e)
	}
	if r.right {
		to = trimSpaceRight(s, len(s), from, e)
	}
	if from == 0 && to == len(s) {
		return dst, false, nil
	}
	return append(dst, s[from:to]...), true, nil
}

// eachRune writes something for each rune, whatever stands around it.
type eachRune struct {
	write func(dst []byte, r rune) []byte
}

func (r eachRune) rewrite(_ *scratch, dst []byte, s string, p pauser) ([]byte, bool, error) {
	next := 4 * pauseSteps
	for i, c := range s {
		if dst = r.write(dst, c); i >= next {
			next = i + 4*pauseSteps
			if err := p.pause(); err != nil {
				return dst, false, err
			}
		}
	}
	return dst, true, nil
}

func lowerCase(dst []byte, r rune) []byte {
	if r < utf8.RuneSelf {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return append(dst, byte(r))
	}
	if small, ok := lookUp(lowerIndex, lowerText, r); ok {
		return append(dst, small...)
	}
	return utf8.AppendRune(dst, r)
}

func withoutMarks(dst []byte, r rune) []byte {
	if traits(r)&bitMark != 0 {
		return dst
	}
	return utf8.AppendRune(dst, r)
}

// nmt leaves out control characters, and writes a space for others that are
// taken for white space.
func nmt(dst []byte, r rune) []byte {
	switch {
	case r >= 0x01 && r <= 0x08, r == 0x0b, r >= 0x0e && r <= 0x1f, r == 0x7f, r == 0x8f, r == 0x9f:
		return dst
	case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, r >= 0x200b && r <= 0x200f,
		r == 0x2028, r == 0x2029, r == 0x2581, r == 0xfeff, r == 0xfffd:
		return append(dst, ' ')
	}
	return utf8.AppendRune(dst, r)
}

// byteAlphabet writes bytes in ByteLevel's alphabet.
type byteAlphabet struct{}

func (byteAlphabet) rewrite(_ *scratch, dst []byte, s string, p pauser) ([]byte, bool, error) {
	for i := range len(s) {
		dst = utf8.AppendRune(dst, alphabetRune(s[i]))
		if i%(4*pauseSteps) == 4*pauseSteps-1 {
			if err := p.pause(); err != nil {
				return dst, false, err
			}
		}
	}
	return dst, true, nil
}

// keepsStart says of normalizers how well they keep the place of text that is
// at the very beginning, which prepend_scheme "first" depends on: exactly;
// for the text as a whole, but not for parts of it; or not at all.
func keepsStart(normalizers []rewriter) (whole, parts bool) {
	whole, parts = true, true
	for _, r := range normalizers {
		switch r := r.(type) {
		case replace:
			l, ok := r.m.(literal)
			whole = whole && ok && utf8.RuneCountInString(string(l)) == 1 && r.content != ""
			parts = parts && r.onlyRunes()
		case normalForm, prepend:
			parts = false
		default:
			whole, parts = false, false
		}
	}
	return whole, whole && parts
}

// normalizeToken returns the normal form of an added token.
func (t *Tokenizer) normalizeToken(s string, x *scratch) (string, error) {
	return t.normalize(s, x, new([2][]byte), neverPause{})
}

// normalize returns the normal form of s, which is in one of the buffers if it is another text.
// The longest text on the way takes its room.
func (t *Tokenizer) normalize(s string, x *scratch, buffers *[2][]byte, p pauser) (string, error) {
	into, had, longest := 0, len(s), len(s)
	for _, r := range t.normalizers {
		out, changed, err := r.rewrite(x, buffers[into][:0], s, p)
		if err != nil {
			return s, err
		}
		if !changed {
			continue
		}
		buffers[into] = out
		s = unsafe.String(unsafe.SliceData(out), len(out))
		into = 1 - into
		if longest = max(longest, len(s)); !x.has(longest - had) {
			return s, errGrown
		}
	}
	x.takes(longest - had)
	return s, nil
}

// neverPause is for work that is short and nobody's.
type neverPause struct{}

func (neverPause) pause() error { return nil }

// literal matches a string that is not empty.
type literal string

func (l literal) find(f *found, s string, p pauser) error {
	const part = 16 * pauseSteps
	for i, paused := 0, 0; ; {
		// The search is cut into parts that overlap by what a match may span.
		to := min(len(s), i+part+len(l))
		at := strings.Index(s[i:to], string(l))
		switch {
		case at >= 0:
			f.spans = append(f.spans, span{i + at, i + at + len(l)})
			i += at + len(l)
		case to == len(s):
			return nil
		default:
			i += part
		}
		if i-paused >= part/2 {
			paused = i
			if err := p.pause(); err != nil {
				return err
			}
		}
	}
}
