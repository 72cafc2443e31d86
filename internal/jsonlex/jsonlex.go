// Package jsonlex has the parts of JSON texts (RFC 8259) that are alike for all who read JSON
// in place: numbers, strings and their escapes; and token ids as they are written. Nothing is
// allocated but the room of what is appended.
package jsonlex

import (
	"encoding/binary"
	"math/bits"
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

const (
	ones  = 0x0101010101010101 // each byte of a word is 1
	highs = 0x8080808080808080 // the high bit of each byte of a word
)

// stops marks the bytes of a word that a string cannot hold as they are: quotes, backslashes
// and control characters. The lowest byte whose high bit is set in the result is the first of
// them. Those above it may be set wrongly. Bytes from 0x80 on are none.
func stops(w uint64) uint64 {
	quote, slash := w^'"'*ones, w^'\\'*ones
	return ((w - ' '*ones) | (quote - ones) | (slash - ones)) &^ w & highs
}

// AppendString appends what the string spells whose opening quote is before b[i], and returns
// the place behind its closing quote. ok is false if the string does not end or is no text:
// halves of surrogate pairs and bytes that are not UTF-8 are none. dst then has any bytes.
//
// Eight bytes are copied as they are looked at, and those from an escape on are overwritten: a
// prompt has an escape in each of its lines.
func AppendString(dst, b []byte, i int) (_ []byte, end int, ok bool) {
	const room = 8 // for a word, and for what an escape stands for
	var seen uint64
	from, n := len(dst), len(dst)
	dst = dst[:cap(dst)]
	for {
		for i+8 <= len(b) && n+8 <= len(dst) {
			w := binary.LittleEndian.Uint64(b[i:])
			binary.LittleEndian.PutUint64(dst[n:], w)
			if stop := stops(w); stop != 0 {
				k := bits.TrailingZeros64(stop)
				seen |= w & (1<<(k&^7) - 1)
				i += k >> 3
				n += k >> 3
				break
			}
			seen |= w
			i += 8
			n += 8
		}
		// A line ends with an escape, and the next one often begins with some. Some clients
		// write angle brackets and ampersands as \u003c and the like.
		for i+1 < len(b) && b[i] == '\\' && n < len(dst) {
			if c := short[b[i+1]]; c != 0 {
				dst[n] = c
				i += 2
			} else if r, ok := Unit(b[i:]); ok && r < utf8.RuneSelf {
				dst[n] = byte(r)
				i += 6
			} else {
				break
			}
			n++
		}
		if i == len(b) {
			return dst[:n], i, false
		}
		if len(dst)-n < room {
			dst = append(dst[:n], make([]byte, max(n, 64))...)
			dst = dst[:cap(dst)]
		}
		switch c := b[i]; {
		case c == '"':
			return dst[:n], i + 1, seen&highs == 0 || utf8.Valid(dst[from:n])
		case c < ' ':
			return dst[:n], i, false
		case c != '\\':
			dst[n] = c
			seen |= uint64(c)
			i++
			n++
			continue
		case i+1 < len(b) && short[b[i+1]] != 0:
			dst[n] = short[b[i+1]]
			i += 2
			n++
			continue
		}
		out, size := AppendEscape(dst[:n], b[i:])
		if size == 0 {
			return dst[:n], i, false
		}
		i += size
		n = len(out)
	}
}

// Spelling is a set of what is special about a string.
type Spelling uint8

// The members of a Spelling.
const (
	Escaped Spelling = 1 << iota // it has escapes
	Half                         // one of them is half of a surrogate pair without the other
)

// String returns the place behind the string whose opening quote is before b[i], and how it is
// spelled. If the string is not valid or does not end, ok is false and the place is that of the
// error. Bytes that are not UTF-8 are valid here.
func String(b []byte, i int) (end int, how Spelling, ok bool) {
	for {
		stop := uint64(0)
		for i+8 <= len(b) {
			if stop = stops(binary.LittleEndian.Uint64(b[i:])); stop != 0 {
				i += bits.TrailingZeros64(stop) >> 3
				break
			}
			i += 8
		}
		if stop == 0 {
			for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' ' {
				i++
			}
			if i == len(b) {
				return i, how, false
			}
		}
		switch b[i] {
		case '"':
			return i + 1, how, true
		case '\\':
		default:
			return i, how, false
		}
		// A line ends with an escape and the next one often begins with some.
		from := i
		for i+1 < len(b) && b[i] == '\\' {
			if short[b[i+1]] != 0 {
				i += 2
			} else if r, ok := Unit(b[i:]); ok && !utf16.IsSurrogate(r) {
				i += 6
			} else {
				break
			}
		}
		if i > from {
			how |= Escaped
			continue
		}
		n, half := escape(b[i:])
		if n == 0 {
			return i, how, false
		}
		how |= Escaped | half
		i += n
	}
}

// escape returns the length of the escape that b begins with, and Half if it is half of a
// surrogate pair. A whole pair is one escape.
func escape(b []byte) (n int, half Spelling) {
	if len(b) > 1 && short[b[1]] != 0 {
		return 2, 0
	}
	r, ok := Unit(b)
	switch {
	case !ok:
		return 0, 0
	case !utf16.IsSurrogate(r):
		return 6, 0
	}
	if low, _ := Unit(b[6:]); utf16.DecodeRune(r, low) == utf8.RuneError {
		return 6, Half
	}
	return 12, 0
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
	n = digit[b[0]]<<12 | digit[b[1]]<<8 | digit[b[2]]<<4 | digit[b[3]]
	if n >= noDigit {
		return 0, false
	}
	return n, true
}

// digit are the values of hexadecimal digits, and noDigit of other bytes.
var digit = func() (d [256]rune) {
	for i := range d {
		switch c := byte(i); {
		case c-'0' <= 9:
			d[i] = rune(c - '0')
		case c|0x20-'a' <= 5:
			d[i] = rune(c|0x20-'a') + 10
		default:
			d[i] = noDigit
		}
	}
	return d
}()

// noDigit stays above all numbers of four digits, wherever it stands.
const noDigit = 1 << 16

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
