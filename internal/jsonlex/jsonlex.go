// Package jsonlex has the parts of JSON texts (RFC 8259) that are alike for all who read JSON
// in place: numbers, and the escapes of strings. Each function looks at the beginning of a
// text and allocates nothing.
package jsonlex

import (
	"unicode/utf16"
	"unicode/utf8"
)

// Number returns the length of the number that b begins with; 0 if it begins with none.
func Number(b []byte) int {
	from := 0
	if len(b) > 0 && b[0] == '-' {
		from = 1
	}
	i := digits(b, from)
	if i == from {
		return 0
	}
	if b[from] == '0' {
		i = from + 1 // a digit behind it belongs to nothing
	}
	if i < len(b) && b[i] == '.' {
		from = i + 1
		if i = digits(b, from); i == from {
			return 0
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		from = i + 1
		if from < len(b) && (b[from] == '+' || b[from] == '-') {
			from++
		}
		if i = digits(b, from); i == from {
			return 0
		}
	}
	return i
}

// digits returns the place after the digits at b[i].
func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	return i
}

// short are the bytes that escapes of two bytes stand for, by their second one.
var short = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// Escape returns the length of the escape that b begins with, its backslash included; 0 if it
// begins with none. Half of a surrogate pair is an escape of its own.
func Escape(b []byte) int {
	if len(b) < 2 || b[0] != '\\' {
		return 0
	}
	if short[b[1]] != 0 {
		return 2
	}
	if _, ok := Unit(b); ok {
		return 6
	}
	return 0
}

// Unit returns the UTF-16 code unit of the escape \uXXXX that b begins with.
func Unit(b []byte) (unit rune, ok bool) {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0, false
	}
	return Hex(b[2:])
}

// Hex returns the number of the four hexadecimal digits that b begins with.
func Hex(b []byte) (n rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20-'a' <= 5:
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		n = n<<4 | rune(c)
	}
	return n, true
}

// AppendEscape appends what the escape that b begins with stands for, and returns its length.
// A surrogate pair is one escape of twelve bytes. The length is 0 if b begins with no escape,
// or with half of a pair, which is no text.
func AppendEscape(dst, b []byte) (_ []byte, n int) {
	if len(b) < 2 || b[0] != '\\' {
		return dst, 0
	}
	if c := short[b[1]]; c != 0 {
		return append(dst, c), 2
	}
	r, ok := Unit(b)
	switch {
	case !ok:
		return dst, 0
	case !utf16.IsSurrogate(r):
		return utf8.AppendRune(dst, r), 6
	}
	low, _ := Unit(b[6:])
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return dst, 0
	}
	return utf8.AppendRune(dst, r), 12
}
