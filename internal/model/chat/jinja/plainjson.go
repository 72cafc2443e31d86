package jinja

import (
	"bytes"
	"encoding/binary"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// plainJSON reads JSON in one pass over its bytes. A prompt is nearly all string, and
// jsontext looks at each of its bytes several times. It decides nothing by itself: for
// anything that it does not read, such as what is not JSON, it gives up, and jsontext has
// the last word.
type plainJSON struct {
	names
	src []byte // what is left
}

// space passes over white space, and returns the byte behind it; 0 at the end.
func (p *plainJSON) space() byte {
	for i, c := range p.src {
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			p.src = p.src[i:]
			return c
		}
	}
	p.src = nil
	return 0
}

// takes passes over a byte behind white space, if it is next.
func (p *plainJSON) takes(c byte) bool {
	if p.space() != c {
		return false
	}
	p.src = p.src[1:]
	return true
}

func (p *plainJSON) value(depth int) (Value, bool) {
	if depth > maxValueDepth {
		return nil, false
	}
	switch c := p.space(); c {
	case '"':
		s, ok := p.str()
		return Str(s), ok
	case '{':
		p.src = p.src[1:]
		return p.object(depth)
	case '[':
		p.src = p.src[1:]
		return p.array(depth)
	case 'n':
		return None, p.word("null")
	case 't':
		return Bool(true), p.word("true")
	case 'f':
		return Bool(false), p.word("false")
	}
	return p.number()
}

func (p *plainJSON) word(w string) bool {
	rest, ok := bytes.CutPrefix(p.src, []byte(w))
	p.src = rest
	return ok
}

func (p *plainJSON) array(depth int) (Value, bool) {
	l := &List{}
	if p.takes(']') {
		return l, true
	}
	for {
		v, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		if l.Items = append(l.Items, v); p.takes(']') {
			return l, true
		}
		if !p.takes(',') {
			return nil, false
		}
	}
}

func (p *plainJSON) object(depth int) (Value, bool) {
	obj := NewDict(4)
	if p.takes('}') {
		return obj, true
	}
	for {
		if p.space() != '"' {
			return nil, false
		}
		key, ok := p.str()
		if !ok || !p.takes(':') {
			return nil, false
		}
		name := p.name(key)
		v, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		if obj.put(string(name.(Str)), name, v); p.takes('}') {
			return obj, true
		}
		if !p.takes(',') {
			return nil, false
		}
	}
}

func (p *plainJSON) number() (Value, bool) {
	s, i := p.src, 0
	digits := func() bool {
		from := i
		for i < len(s) && s[i]-'0' <= 9 {
			i++
		}
		return i > from
	}
	if i < len(s) && s[i] == '-' {
		i++
	}
	if i < len(s) && s[i] == '0' {
		i++
	} else if !digits() {
		return nil, false
	}
	if i < len(s) && s[i] == '.' {
		if i++; !digits() {
			return nil, false
		}
	}
	if i < len(s) && s[i]|0x20 == 'e' {
		if i++; i < len(s) && (s[i] == '+' || s[i] == '-') {
			i++
		}
		if !digits() {
			return nil, false
		}
	}
	v, err := jsonNumber(string(s[:i]))
	p.src = s[i:]
	return v, err == nil
}

// str reads a string, which is next.
func (p *plainJSON) str() (string, bool) {
	src := p.src[1:]
	end := bytes.IndexByte(src, '"')
	if end < 0 {
		return "", false
	}
	escape := bytes.IndexByte(src[:end], '\\')
	if escape < 0 {
		p.src = src[end+1:]
		return string(src[:end]), readable(src[:end])
	}
	end = closing(src, escape)
	if end < 0 {
		return "", false
	}
	p.src = src[end+1:]
	var out strings.Builder
	out.Grow(end)
	for src = src[:end]; ; {
		if escape < 0 {
			out.Write(src)
			return out.String(), readable(src)
		}
		if !readable(src[:escape]) {
			return "", false
		}
		out.Write(src[:escape])
		n := jsonEscape(&out, src[escape:])
		if n == 0 {
			return "", false
		}
		src = src[escape+n:]
		escape = bytes.IndexByte(src, '\\')
	}
}

// closing returns where a string ends whose first escape is known; -1 if nowhere.
func closing(src []byte, escape int) int {
	for i := escape; ; {
		if i += 2; i > len(src) { // the escaped byte is not the end
			return -1
		}
		quote := bytes.IndexByte(src[i:], '"')
		if quote < 0 {
			return -1
		}
		next := bytes.IndexByte(src[i:i+quote], '\\')
		if next < 0 {
			return i + quote
		}
		i += next
	}
}

// jsonEscape writes what an escape stands for, and returns its length; 0 if it is none.
func jsonEscape(out *strings.Builder, src []byte) int {
	if len(src) < 2 {
		return 0
	}
	switch c := src[1]; c {
	case '"', '\\', '/':
		out.WriteByte(c)
	case 'n':
		out.WriteByte('\n')
	case 't':
		out.WriteByte('\t')
	case 'r':
		out.WriteByte('\r')
	case 'b':
		out.WriteByte('\b')
	case 'f':
		out.WriteByte('\f')
	case 'u':
		r := hex4(src)
		if !utf16.IsSurrogate(r) && r >= 0 {
			out.WriteRune(r)
			return 6
		}
		if r < 0 || len(src) < 12 || src[6] != '\\' || src[7] != 'u' {
			return 0
		}
		if r = utf16.DecodeRune(r, hex4(src[6:])); r == utf8.RuneError {
			return 0
		}
		out.WriteRune(r)
		return 12
	default:
		return 0
	}
	return 2
}

// hex4 is the number of an escape \uXXXX; -1 if it is none.
func hex4(src []byte) (r rune) {
	if len(src) < 6 {
		return -1
	}
	for _, c := range src[2:6] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case (c|0x20)-'a' <= 5:
			c = (c | 0x20) - 'a' + 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}

// readable reports whether text may stand in a string as it is: it is UTF-8 without control
// characters.
func readable(text []byte) bool {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	ascii, rest := uint64(0), text
	for ; len(rest) >= 8; rest = rest[8:] {
		x := binary.LittleEndian.Uint64(rest)
		if (x-ones*0x20)&^x&highs != 0 {
			return false
		}
		ascii |= x
	}
	for _, c := range rest {
		if c < 0x20 {
			return false
		}
		ascii |= uint64(c)
	}
	return ascii&highs == 0 || utf8.Valid(text)
}
