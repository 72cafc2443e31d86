package dialect

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// AppendEscaped appends text as the inside of a JSON string. Only what JSON
// demands is escaped: the quote, the backslash and control characters. Bytes
// that are not UTF-8, which text never holds by contract, become U+FFFD each.
//
// Eight bytes are looked at together, since nearly all text needs nothing.
func AppendEscaped(dst, text []byte) []byte {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	start := 0
	for i := 0; i < len(text); {
		if len(text)-i >= 8 {
			// The high bit of a byte of stop is set if the byte is not ASCII,
			// is below 0x20, or is one of the two. A borrow may set it for
			// bytes after such a one too, never before, and only the first
			// counts.
			x := binary.LittleEndian.Uint64(text[i:])
			stop := (x | (x - 0x20*ones) | ((x ^ '"'*ones) - ones) | ((x ^ '\\'*ones) - ones)) & highs
			if stop == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(stop) / 8
		}
		c := text[i]
		if c >= utf8.RuneSelf {
			// Text that is not ASCII comes in runs.
			for i < len(text) && text[i] >= utf8.RuneSelf {
				r, size := utf8.DecodeRune(text[i:])
				if r == utf8.RuneError && size == 1 {
					dst = append(dst, text[start:i]...)
					dst = append(dst, "\uFFFD"...)
					start = i + 1
				}
				i += size
			}
			continue
		}
		if c < ' ' || c == '"' || c == '\\' {
			dst = append(dst, text[start:i]...)
			dst = appendEscape(dst, c)
			start = i + 1
		}
		i++
	}
	return append(dst, text[start:]...)
}

func appendEscape(dst []byte, c byte) []byte {
	const hex = "0123456789abcdef"
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	}
	return append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
}

// AppendString appends s as a JSON string.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	dst = AppendEscaped(dst, []byte(s))
	return append(dst, '"')
}

// AppendStringOrNull appends s as a JSON string, and null for an empty one.
func AppendStringOrNull(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, "null"...)
	}
	return AppendString(dst, s)
}
