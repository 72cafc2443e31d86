package outputparse

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxWord bounds a number or a constant.
const maxWord = 64

// literal turns one Python literal into JSON as it comes: strings, numbers,
// True, False, None (and JSON's words for them), lists, tuples, dictionaries
// with strings for keys. JSON is such a literal; with exact it comes out as it went in.
type literal struct {
	exact  bool
	quoted string // a marker on both sides of strings, in objects that have bare keys; empty: as in Python
	tool   *tool  // whose arguments these are, with such a marker
	place  literalPlace
	key    bool // the string at hand is a key
	quote  byte
	triple bool
	marked bool       // the string at hand is between markers
	opened bool       // a value between markers that is no string is under way
	class  paramClass // of the argument at hand
	stack  []byte     // what closes the open ones; its high bit: has an item
}

type literalPlace uint8

const (
	literalValue  literalPlace = iota // a value must begin
	literalItem                       // an item or the end of what is open
	literalColon                      // a key has ended
	literalNext                       // a comma or the end
	literalString                     // within a string
	literalMark                       // a value has ended before its marker
	literalDone
)

const hasItem = 0x80

func (l *literal) reset() { *l = literal{exact: l.exact, stack: l.stack[:0]} }

// resetAs begins arguments in the notation that has a marker as the quotes of strings.
func (l *literal) resetAs(quote string, t *tool) {
	*l = literal{quoted: quote, tool: t, stack: l.stack[:0]}
}

// read appends to out what d says and gives how much of d was taken. ok is
// false if the next byte cannot be; if all is well and the value has not ended,
// what was not taken is read again with more.
func (l *literal) read(out, d []byte, eof bool) (_ []byte, n int, ok bool) {
	for n < len(d) && l.place != literalDone {
		var taken int
		if l.place == literalString {
			out, taken, ok = l.string(out, d[n:])
		} else {
			out, taken, ok = l.token(out, d[n:], eof)
		}
		if !ok || taken == 0 {
			return out, n, ok
		}
		n += taken
	}
	return out, n, true
}

// token reads what is between strings. It returns 0 if the text does not suffice yet.
func (l *literal) token(out, d []byte, eof bool) (_ []byte, n int, ok bool) {
	b := d[0]
	if isSpace(b) {
		return l.space(out, d, eof)
	}
	open := byte(0)
	if len(l.stack) > 0 {
		open = l.stack[len(l.stack)-1] &^ hasItem
	}
	switch l.place {
	case literalMark:
		n, ok = l.mark(d, eof)
		if n > 0 {
			l.place, l.opened = literalNext, false
		}
		return out, n, ok
	case literalColon:
		l.place = literalValue
		return append(out, ':'), 1, b == ':'
	case literalNext, literalItem:
		if b == open {
			l.stack = l.stack[:len(l.stack)-1]
			if b == ')' {
				b = ']'
			}
			l.ended()
			return append(out, b), 1, true
		}
		if l.place == literalNext {
			l.place = literalItem
			return out, 1, b == ','
		}
		out = l.item(out)
	}
	if l.quoted != "" {
		switch n, ok = l.mark(d, eof); {
		case n > 0:
			return l.openMarked(out), n, true
		case ok:
			return out, 0, true
		case l.key && isName(b) && b != ':':
			return l.bareKey(out, d, eof)
		}
	}
	switch b {
	case '\'', '"':
		return l.openString(out, d, eof)
	case '[', '(', '{':
		if l.key || len(l.stack) == maxDepth {
			return out, 0, false
		}
		shut, opened := byte(']'), byte('[')
		if b == '{' {
			shut, opened = '}', '{'
		} else if b == '(' {
			shut = ')'
		}
		l.stack, l.place = append(l.stack, shut), literalItem
		return append(out, opened), 1, true
	}
	if l.key {
		return out, 0, false
	}
	return l.word(out, d, eof)
}

// mark takes the marker of a string. It returns 0 and true if the text does not suffice yet.
func (l *literal) mark(d []byte, eof bool) (n int, ok bool) {
	c := cursor{d: d, eof: eof}
	if c.lit(l.quoted) {
		return c.i, true
	}
	return 0, c.short
}

// openMarked begins what is between markers: a string, or a value of another type where the
// tool's argument has that.
func (l *literal) openMarked(out []byte) []byte {
	if !l.key && len(l.stack) == 1 && l.class == jsonClass && !l.opened {
		l.opened = true
		return out
	}
	l.place, l.marked = literalString, true
	return append(out, '"')
}

// bareKey takes a key without quotes.
func (l *literal) bareKey(out, d []byte, eof bool) (_ []byte, n int, ok bool) {
	for n < len(d) && n < maxName && isName(d[n]) && d[n] != ':' {
		n++
	}
	if n == len(d) && !eof {
		return out, 0, true
	}
	if len(l.stack) == 1 && l.tool != nil {
		l.class = l.tool.classes[string(d[:n])]
	}
	l.key, l.place = false, literalColon
	return append(appendEscaped(append(out, '"'), d[:n]), '"'), n, true
}

// item begins an item of what is open, with the comma that is before it.
func (l *literal) item(out []byte) []byte {
	top := &l.stack[len(l.stack)-1]
	if *top&hasItem != 0 {
		out = append(out, ',')
	}
	*top |= hasItem
	l.place, l.key = literalValue, *top&^hasItem == '}' // after a comma it must go on with an item
	return out
}

// space takes white space. After a comma it waits for what follows: Python's last item may
// have a comma behind it, and JSON's may not.
func (l *literal) space(out, d []byte, eof bool) (_ []byte, n int, ok bool) {
	if !l.exact {
		return out, 1, true
	}
	if l.place != literalItem || l.stack[len(l.stack)-1]&hasItem == 0 {
		return append(out, d[0]), 1, true
	}
	n = spaces(d)
	switch {
	case n > maxSpace: // it is no Python either that has so much there
		n = maxSpace
		out = l.item(out)
	case n == len(d) && !eof:
		return out, 0, true
	case n == len(d) || d[n] != l.stack[len(l.stack)-1]&^hasItem:
		out = l.item(out)
	}
	return append(out, d[:n]...), n, true
}

// openString takes the quotes before a string.
func (l *literal) openString(out, d []byte, eof bool) (_ []byte, n int, ok bool) {
	b := d[0]
	if len(d) < 3 && !eof && (len(d) < 2 || d[1] == b) {
		return out, 0, true
	}
	l.quote, l.triple, n = b, false, 1
	if len(d) >= 3 && d[1] == b && d[2] == b {
		l.triple, n = true, 3
	}
	l.place = literalString
	return append(out, '"'), n, true
}

// string takes a part of a string.
func (l *literal) string(out, d []byte) (_ []byte, n int, ok bool) {
	if l.marked {
		return l.markedString(out, d)
	}
	for n < len(d) && d[n] != l.quote && d[n] != '\\' {
		n++
	}
	if n > 0 {
		return appendEscaped(out, d[:n]), n, true
	}
	if d[0] == '\\' {
		if l.exact && len(d) > 1 && strings.IndexByte(`"\/bfnrt`, d[1]) >= 0 {
			return append(out, d[:2]...), 2, true
		}
		return pythonEscape(out, d)
	}
	if l.triple {
		if len(d) < 3 {
			return out, 0, true
		}
		if d[1] != l.quote || d[2] != l.quote {
			return appendEscaped(out, d[:1]), 1, true
		}
		n = 2
	}
	return l.closeString(out), n + 1, true
}

// closeString ends a string.
func (l *literal) closeString(out []byte) []byte {
	if l.key {
		l.key, l.place = false, literalColon
	} else {
		l.ended()
	}
	return append(out, '"')
}

// markedString takes a part of a string between markers.
func (l *literal) markedString(out, d []byte) (_ []byte, n int, ok bool) {
	for n < len(d) {
		at := bytes.IndexByte(d[n:], l.quoted[0])
		if at < 0 {
			n = len(d)
			break
		}
		n += at
		c := cursor{d: d, i: n}
		if c.lit(l.quoted) {
			l.marked = false
			return l.closeString(appendEscaped(out, d[:n])), c.i, true
		}
		if c.short {
			break
		}
		n++
	}
	return appendEscaped(out, d[:n]), n, true
}

// ended ends a value.
func (l *literal) ended() {
	switch l.place = literalNext; {
	case len(l.stack) == 0:
		l.place = literalDone
	case l.opened && len(l.stack) == 1:
		l.place = literalMark
	}
}

// word takes a number or a constant.
func (l *literal) word(out, d []byte, eof bool) (_ []byte, n int, ok bool) {
	for n < len(d) && isWord(d[n]) {
		n++
	}
	if n == 0 || n > maxWord {
		return out, 0, false
	}
	if n == len(d) && !eof {
		return out, 0, true
	}
	l.ended()
	switch word := string(d[:n]); word {
	case "True", "true":
		return append(out, "true"...), n, true
	case "False", "false":
		return append(out, "false"...), n, true
	case "None", "null":
		return append(out, "null"...), n, true
	default:
		if number, ok := appendNumber(out, word); ok || l.class != stringClass || len(l.stack) > min(len(l.quoted), 1) {
			return number, n, ok
		}
		return append(append(append(out, '"'), word...), '"'), n, true // a string without its quotes
	}
}

func isWord(b byte) bool {
	return 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' || '0' <= b && b <= '9' || b == '.' || b == '+' || b == '-' || b == '_'
}

// appendNumber appends a number as it is where JSON has it too.
func appendNumber(out []byte, word string) ([]byte, bool) {
	var s jsonScan
	if n, status := s.scan([]byte(word)); n == len(word) && status == jsonMore && s.numberMayEnd() {
		return append(out, word...), true
	}
	for _, b := range []byte(word) {
		if (b < '0' || b > '9') && b != '.' && b != 'e' && b != 'E' && b != '+' && b != '-' {
			return out, false
		}
	}
	f, err := strconv.ParseFloat(word, 64)
	if err != nil || math.IsInf(f, 0) {
		return out, false
	}
	return strconv.AppendFloat(out, f, 'f', -1, 64), true
}

// pythonEscape reads an escape in a string. A sequence that is not an escape stands for
// itself, as in Python. It returns 0 if the escape may be incomplete.
func pythonEscape(out, d []byte) (_ []byte, n int, ok bool) {
	if len(d) < 2 {
		return out, 0, true
	}
	digits := 0
	switch b := d[1]; b {
	case '\n':
		return out, 2, true
	case '\\', '\'', '"':
		return appendEscaped(out, d[1:2]), 2, true
	case 'n', 't', 'r', 'b', 'f', 'a', 'v':
		const names, bytes = "ntrbfav", "\n\t\r\b\f\a\v"
		for i := range len(names) {
			if names[i] == b {
				out = appendEscape(out, bytes[i])
			}
		}
		return out, 2, true
	case 'x':
		digits = 2
	case 'u':
		digits = 4
	case 'U':
		digits = 8
	default:
		if b >= '0' && b <= '7' {
			return octal(out, d)
		}
		return append(out, '\\', '\\'), 1, true
	}
	r, n := rune(0), 2
	for ; n < 2+digits; n++ {
		if n == len(d) {
			return out, 0, true
		}
		digit, err := strconv.ParseUint(string(d[n]), 16, 8)
		if err != nil {
			return append(out, '\\', '\\'), 1, true
		}
		r = r<<4 | rune(digit)
	}
	if digits == 4 {
		// JSON has the same, halves of pairs too.
		return append(append(out, '\\'), d[1:6]...), n, true
	}
	if !utf8.ValidRune(r) {
		return append(out, '\\', '\\'), 1, true
	}
	return appendEscaped(out, utf8.AppendRune(nil, r)), n, true
}

// octal takes \0 to \777.
func octal(out, d []byte) (_ []byte, n int, ok bool) {
	r := rune(0)
	for n = 1; n < 4; n++ {
		if n == len(d) {
			return out, 0, true
		}
		if d[n] < '0' || d[n] > '7' {
			break
		}
		r = r<<3 | rune(d[n]-'0')
	}
	return appendEscaped(out, utf8.AppendRune(nil, r)), n, true
}

// appendLiteral appends the JSON of a whole Python literal; ok is false if it
// is none.
func appendLiteral(dst, text []byte) (out []byte, ok bool) {
	var l literal
	out, n, ok := l.read(dst, text, true)
	return out, ok && n == len(text) && l.place == literalDone
}
