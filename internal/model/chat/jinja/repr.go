package jinja

import (
	"math"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// maxValueDepth bounds how deep nested values are followed, where Python's
// recursion limit does.
const maxValueDepth = 1000

// nest is called once per element that an operation follows into a nested
// value.
func (st *state) nest(depth int) error {
	if depth > maxValueDepth {
		return errorf(KindLimit, "maximum recursion depth exceeded")
	}
	return st.step(1)
}

// appendStr appends Python's str() of v.
func appendStr(st *state, b []byte, v Value) ([]byte, error) {
	switch v := v.(type) {
	case Str:
		return append(b, v...), nil
	case Markup:
		return append(b, v...), nil
	case *Undefined:
		return b, nil
	}
	return appendRepr(st, b, v, 0)
}

// text is Python's str() of v.
func text(st *state, v Value) (string, error) {
	if s, ok := asText(v); ok {
		// The caller is about to read it.
		return s, st.scan(s)
	}
	b, err := appendStr(st, nil, v)
	if err != nil {
		return "", err
	}
	return string(b), st.alloc(len(b))
}

// appendRepr appends Python's repr() of v.
func appendRepr(st *state, b []byte, v Value, depth int) ([]byte, error) {
	if err := st.nest(depth); err != nil {
		return nil, err
	}
	if len(b)-st.base > st.opt.MaxOutput {
		return nil, errorf(KindLimit, "the template renders more than %d bytes", st.opt.MaxOutput)
	}
	switch v := v.(type) {
	case noneType:
		return append(b, "None"...), nil
	case Bool:
		if v {
			return append(b, "True"...), nil
		}
		return append(b, "False"...), nil
	case Int:
		return strconv.AppendInt(b, int64(v), 10), nil
	case *Big:
		return appendBig(b, v)
	case Float:
		return appendFloat(b, float64(v)), nil
	case Str:
		return appendReprStr(b, string(v)), nil
	case Markup:
		return append(appendReprStr(append(b, "Markup("...), string(v)), ')'), nil
	case *List:
		return appendItems(st, b, v.Items, "[", "]", depth)
	case *Tuple:
		if len(v.Items) == 1 {
			return appendItems(st, b, v.Items, "(", ",)", depth)
		}
		return appendItems(st, b, v.Items, "(", ")", depth)
	case *Dict:
		return appendDict(st, b, v, depth)
	case *View:
		items := make([]Value, v.d.Len())
		for i := range items {
			items[i] = v.at(i)
		}
		return appendItems(st, b, items, v.typeName()+"([", "])", depth)
	case *Range:
		b = append(b, "range("...)
		b = strconv.AppendInt(b, v.start, 10)
		b = strconv.AppendInt(append(b, ", "...), v.stop, 10)
		if v.step != 1 {
			b = strconv.AppendInt(append(b, ", "...), v.step, 10)
		}
		return append(b, ')'), nil
	case *Undefined:
		return append(b, "Undefined"...), nil
	case *Namespace:
		b, err := appendDict(st, append(b, "<Namespace "...), v.d, depth)
		return append(b, '>'), err
	case *Macro:
		if v.code.name == "" {
			return append(b, "<Macro anonymous>"...), nil
		}
		return append(appendReprStr(append(b, "<Macro "...), v.code.name), '>'), nil
	case *Loop:
		n, err := v.len(st)
		b = strconv.AppendInt(append(b, "<LoopContext "...), int64(v.index0+1), 10)
		return append(strconv.AppendInt(append(b, '/'), int64(n), 10), '>'), err
	}
	// Python prints an address here, which no template can rely on.
	return nil, errorf(KindUnsupported, "printing a '%s' object is not supported", v.typeName())
}

func appendItems(st *state, b []byte, items []Value, open, end string, depth int) ([]byte, error) {
	b = append(b, open...)
	var err error
	for i, it := range items {
		if i > 0 {
			b = append(b, ", "...)
		}
		if b, err = appendRepr(st, b, it, depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, end...), nil
}

func appendDict(st *state, b []byte, d *Dict, depth int) ([]byte, error) {
	b = append(b, '{')
	var err error
	for i, k := range d.keys {
		if i > 0 {
			b = append(b, ", "...)
		}
		if b, err = appendRepr(st, b, k, depth+1); err != nil {
			return nil, err
		}
		if b, err = appendRepr(st, append(b, ": "...), d.vals[i], depth+1); err != nil {
			return nil, err
		}
	}
	return append(b, '}'), nil
}

// maxIntDigits is the longest integer that Python converts to or from text.
const maxIntDigits = 4300

func appendBig(b []byte, v *Big) ([]byte, error) {
	if v.n.BitLen() > 15000 {
		return nil, valueErrorf("Exceeds the limit (4300 digits) for integer string conversion")
	}
	s := v.n.String()
	if len(s) > maxIntDigits+1 || len(s) > maxIntDigits && s[0] != '-' {
		return nil, valueErrorf("Exceeds the limit (4300 digits) for integer string conversion")
	}
	return append(b, s...), nil
}

// appendFloat appends Python's repr of a float: the shortest digits that read
// back, in exponent form below 1e-4 and from 1e16.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	mark := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	for _, c := range b[mark:] {
		if c == '.' {
			return b
		}
	}
	return append(b, ".0"...)
}

const hexDigits = "0123456789abcdef"

// appendReprStr appends Python's repr of a string.
func appendReprStr(b []byte, s string) []byte {
	quote := byte('\'')
	for i := 0; i < len(s); i++ {
		if s[i] == '\'' {
			quote = '"'
		}
		if s[i] == '"' {
			quote = '\''
			break
		}
	}
	b = append(b, quote)
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			i++
			switch {
			case c == quote || c == '\\':
				b = append(b, '\\', c)
			case c == '\n':
				b = append(b, `\n`...)
			case c == '\r':
				b = append(b, `\r`...)
			case c == '\t':
				b = append(b, `\t`...)
			case c < ' ' || c == 0x7f:
				b = append(b, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
			default:
				b = append(b, c)
			}
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case unicode.IsPrint(r):
			b = append(b, s[i:i+n]...)
		case r < 0x100:
			b = appendHex(append(b, `\x`...), r, 2)
		case r < 0x10000:
			b = appendHex(append(b, `\u`...), r, 4)
		default:
			b = appendHex(append(b, `\U`...), r, 8)
		}
		i += n
	}
	return append(b, quote)
}

func appendHex(b []byte, r rune, digits int) []byte {
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		b = append(b, hexDigits[r>>shift&15])
	}
	return b
}
