package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEOF tokenKind = iota
	tokData
	tokBlockBegin
	tokBlockEnd
	tokVarBegin
	tokVarEnd
	tokName
	tokString
	tokInt
	tokFloat
	tokOp
)

// token is one token; text is the operator, the name, the decoded string, the
// digits of a number or the template data.
type token struct {
	kind tokenKind
	text string
	line int
}

// describe names the token in error messages.
func (t token) describe() string {
	switch t.kind {
	case tokEOF:
		return "end of template"
	case tokData:
		return "template data / text"
	case tokBlockBegin:
		return "begin of statement block"
	case tokBlockEnd:
		return "end of statement block"
	case tokVarBegin:
		return "begin of print statement"
	case tokVarEnd:
		return "end of print statement"
	case tokString:
		return "string"
	case tokInt:
		return "integer"
	case tokFloat:
		return "float"
	}
	return t.text
}

// lexer cuts a template into tokens. Its whitespace rules are those of
// trim_blocks and lstrip_blocks: the newline after a statement or comment tag
// goes, and so does the blank start of the line before one; a minus sign takes
// all white space on its side and a plus sign keeps it.
type lexer struct {
	src  string
	pos  int
	line int
	// lineStart is set if the previous match ended with a newline, so that a blank
	// prefix belongs to the start of a line.
	lineStart bool
	out       []token
}

// lex normalizes newlines, drops one trailing newline, and tokenizes.
func lex(source string) ([]token, error) {
	if strings.Contains(source, "\r") {
		source = strings.ReplaceAll(source, "\r\n", "\n")
		source = strings.ReplaceAll(source, "\r", "\n")
	}
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{src: source, line: 1, lineStart: true}
	for l.pos < len(l.src) {
		if err := l.root(); err != nil {
			return nil, err
		}
	}
	l.emit(tokEOF, "")
	return l.out, nil
}

func (l *lexer) emit(k tokenKind, text string) {
	l.out = append(l.out, token{k, text, l.line})
}

// advance moves past n bytes, counting lines.
func (l *lexer) advance(n int) {
	s := l.src[l.pos : l.pos+n]
	l.line += strings.Count(s, "\n")
	l.lineStart = strings.HasSuffix(s, "\n")
	l.pos += n
}

// nextTag finds the start of the next tag at or after the current position.
func (l *lexer) nextTag() int {
	s := l.src[l.pos:]
	for i := 0; ; {
		j := strings.IndexByte(s[i:], '{')
		if j < 0 || i+j+1 >= len(s) {
			return -1
		}
		i += j
		switch s[i+1] {
		case '%', '{', '#':
			return l.pos + i
		}
		i++
	}
}

// root lexes template data up to the next tag, then the tag.
func (l *lexer) root() error {
	at := l.nextTag()
	if at < 0 {
		l.emit(tokData, l.src[l.pos:])
		l.advance(len(l.src) - l.pos)
		return nil
	}
	text, tag := l.src[l.pos:at], l.src[at+1]
	sign := byte(0)
	if at+2 < len(l.src) && (l.src[at+2] == '-' || l.src[at+2] == '+') {
		sign = l.src[at+2]
	}
	l.data(text, sign, tag != '{')
	open := 2
	if sign != 0 {
		open = 3
	}
	if tag == '%' {
		if n := rawBegin(l.src[at+open:]); n > 0 {
			l.advance(open + n)
			return l.raw()
		}
	}
	line := l.line
	switch tag {
	case '#':
		l.advance(open)
		return l.comment(line)
	case '%':
		l.emit(tokBlockBegin, "")
		l.advance(open)
		return l.tag(tokBlockEnd, '%')
	}
	l.emit(tokVarBegin, "")
	l.advance(open)
	return l.tag(tokVarEnd, '}')
}

// data emits the text before a tag, stripped as the tag asks, and moves past
// all of it.
func (l *lexer) data(text string, sign byte, lstrip bool) {
	keep := text
	switch {
	case sign == '-':
		keep = strings.TrimRightFunc(text, isSpace)
	case sign != '+' && lstrip:
		at := strings.LastIndexByte(text, '\n') + 1
		if at > 0 || l.lineStart {
			if tail := text[at:]; tail != "" && strings.TrimFunc(tail, isSpace) == "" {
				keep = text[:at]
			}
		}
	}
	if keep != "" {
		l.emit(tokData, keep)
	}
	l.advance(len(text))
}

// rawBegin returns the length of `raw %}` at the start of s, 0 if it is not there.
// White space after `-%}` belongs to it; a newline after `%}` does not.
func rawBegin(s string) int {
	rest := strings.TrimLeftFunc(s, isSpace)
	if !strings.HasPrefix(rest, "raw") {
		return 0
	}
	rest = strings.TrimLeftFunc(rest[3:], isSpace)
	if r, ok := strings.CutPrefix(rest, "-%}"); ok {
		return len(s) - len(strings.TrimLeftFunc(r, isSpace))
	}
	if r, ok := strings.CutPrefix(rest, "%}"); ok {
		return len(s) - len(r)
	}
	return 0
}

// raw lexes up to and past the endraw tag.
func (l *lexer) raw() error {
	for i := l.pos; ; i++ {
		j := strings.Index(l.src[i:], "{%")
		if j < 0 {
			return syntaxErrorf(l.line, "Missing end of raw directive")
		}
		i += j
		rest, sign := l.src[i+2:], byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			sign, rest = rest[0], rest[1:]
		}
		rest = strings.TrimLeftFunc(rest, isSpace)
		if !strings.HasPrefix(rest, "endraw") {
			continue
		}
		rest = strings.TrimLeftFunc(rest[len("endraw"):], isSpace)
		n := tagEnd(rest, '%', true)
		if n == 0 {
			continue
		}
		l.data(l.src[l.pos:i], sign, true)
		l.advance(len(l.src) - len(rest) + n - l.pos)
		return nil
	}
}

// tagEnd returns the length of a tag's end at the start of s with the white space it
// takes along, 0 if there is none. c is the byte before the brace.
func tagEnd(s string, c byte, trim bool) int {
	end := string([]byte{c, '}'})
	if r, ok := strings.CutPrefix(s, "-"+end); ok {
		return len(s) - len(strings.TrimLeftFunc(r, isSpace))
	}
	if trim && strings.HasPrefix(s, "+"+end) {
		return 3
	}
	if !strings.HasPrefix(s, end) {
		return 0
	}
	if trim && len(s) > 2 && s[2] == '\n' {
		return 3
	}
	return 2
}

func (l *lexer) comment(line int) error {
	i := strings.Index(l.src[l.pos:], "#}")
	if i < 0 {
		return syntaxErrorf(line, "Missing end of comment tag")
	}
	i += l.pos
	if i > l.pos && (l.src[i-1] == '-' || l.src[i-1] == '+') {
		i--
	}
	l.advance(i - l.pos + tagEnd(l.src[i:], '#', true))
	return nil
}

// tag lexes the inside of a statement or print tag, up to and past its end.
// The end is not looked for inside brackets, as in `{{ {'a': {}} }}`.
func (l *lexer) tag(end tokenKind, c byte) error {
	var open []byte
	for l.pos < len(l.src) {
		rest := l.src[l.pos:]
		if len(open) == 0 {
			if n := tagEnd(rest, c, end == tokBlockEnd); n > 0 {
				l.emit(end, "")
				l.advance(n)
				return nil
			}
		}
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case isSpace(r):
			l.advance(size)
			continue
		case r >= '0' && r <= '9':
			l.number(rest)
			continue
		case r == '_' || unicode.IsLetter(r):
			n := strings.IndexFunc(rest, func(r rune) bool { return !isNameRune(r) })
			if n < 0 {
				n = len(rest)
			}
			l.emit(tokName, rest[:n])
			l.advance(n)
			continue
		case r == '\'' || r == '"':
			if err := l.str(rest); err != nil {
				return err
			}
			continue
		}
		op := operatorAt(rest)
		if op == "" {
			return syntaxErrorf(l.line, "unexpected char %q", r)
		}
		switch op {
		case "(", "[", "{":
			open = append(open, op[0])
		case ")", "]", "}":
			if len(open) == 0 {
				return syntaxErrorf(l.line, "unexpected '%s'", op)
			}
			want := map[byte]string{'(': ")", '[': "]", '{': "}"}[open[len(open)-1]]
			if op != want {
				return syntaxErrorf(l.line, "unexpected '%s', expected '%s'", op, want)
			}
			open = open[:len(open)-1]
		}
		l.emit(tokOp, op)
		l.advance(len(op))
	}
	return nil
}

func isNameRune(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.Is(unicode.Mn, r) || unicode.Is(unicode.Mc, r)
}

func operatorAt(s string) string {
	if len(s) >= 2 {
		switch s[:2] {
		case "//", "**", "==", "!=", ">=", "<=":
			return s[:2]
		}
	}
	if strings.IndexByte("+-/*%~[](){}><=.:|,;", s[0]) >= 0 {
		return s[:1]
	}
	return ""
}

// number emits an integer or a float. A number right after a dot is never a
// float: `a.0.1` is two subscripts.
func (l *lexer) number(s string) {
	if l.pos == 0 || l.src[l.pos-1] != '.' {
		if n := floatLen(s); n > 0 {
			l.emit(tokFloat, strings.ReplaceAll(s[:n], "_", ""))
			l.advance(n)
			return
		}
	}
	n := intLen(s)
	l.emit(tokInt, strings.ReplaceAll(s[:n], "_", ""))
	l.advance(n)
}

// digitsLen returns the length of digits with single underscores between them.
func digitsLen(s string, ok func(byte) bool) int {
	n := 0
	for n < len(s) {
		switch {
		case ok(s[n]):
			n++
		case s[n] == '_' && n > 0 && n+1 < len(s) && ok(s[n+1]):
			n += 2
		default:
			return n
		}
	}
	return n
}

func isDecimal(c byte) bool { return c >= '0' && c <= '9' }

func floatLen(s string) int {
	n := digitsLen(s, isDecimal)
	if n == 0 {
		return 0
	}
	frac := 0
	if n < len(s) && s[n] == '.' {
		if d := digitsLen(s[n+1:], isDecimal); d > 0 {
			frac = 1 + d
		}
	}
	m := n + frac
	if m < len(s) && (s[m] == 'e' || s[m] == 'E') {
		e := m + 1
		if e < len(s) && (s[e] == '+' || s[e] == '-') {
			e++
		}
		if d := digitsLen(s[e:], isDecimal); d > 0 {
			return e + d
		}
	}
	if frac > 0 {
		return m
	}
	return 0
}

func intLen(s string) int {
	if s[0] != '0' {
		return digitsLen(s, isDecimal)
	}
	if len(s) > 2 {
		var ok func(byte) bool
		switch s[1] {
		case 'x', 'X':
			ok = func(c byte) bool { return isDecimal(c) || c|32 >= 'a' && c|32 <= 'f' }
		case 'o', 'O':
			ok = func(c byte) bool { return c >= '0' && c <= '7' }
		case 'b', 'B':
			ok = func(c byte) bool { return c == '0' || c == '1' }
		}
		if ok != nil {
			// One underscore may stand right after the base's letter.
			skip := 2
			if s[2] == '_' {
				skip = 3
			}
			if d := digitsLen(s[skip:], ok); d > 0 {
				return skip + d
			}
		}
	}
	return digitsLen(s, func(c byte) bool { return c == '0' })
}
