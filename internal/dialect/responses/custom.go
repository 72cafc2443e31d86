package responses

import (
	"bytes"
	"strings"
	"unicode/utf16"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// A custom tool takes free text. Chat templates and engines know none, so the model is shown
// it as a function of one text, as vLLM and SGLang show it, and an answer's calls have the text.

// customParameters are the parameters of that function.
const customParameters = `{"type":"object","properties":{"input":{"type":"string","description":"The freeform text payload for this tool."}},"required":["input"],"additionalProperties":false}`

// appendCustomArguments appends a text as the arguments of that function, as vLLM writes them.
func appendCustomArguments(dst []byte, text string) []byte {
	return append(dialect.AppendString(append(dst, `{"input": `...), text), '}')
}

// customFormat reads the format of a custom tool and reports whether it is a grammar.
func (d *decoding) customFormat(path string, raw []byte) (grammar bool, err error) {
	if dialect.KindOf(raw) != '{' {
		return false, dialect.WrongType(path, "an object", raw)
	}
	kind, err := typeOf(path, raw)
	switch {
	case err != nil:
		return false, err
	case kind == "grammar":
		return true, nil
	case kind == "":
		return false, infer.Invalid(path+".type", "%s.type is required: send \"text\" or \"grammar\"", path)
	case kind != "text":
		return false, infer.Invalid(path+".type", "%s.type must be text or grammar, found %q", path, dialect.Clip(kind, 32))
	}
	return false, dialect.EachMember(raw, func(name string, value []byte) error {
		if name == "type" || dialect.KindOf(value) == 'n' {
			return nil
		}
		return d.UnknownMember(path+"."+dialect.Clip(name, 64), "type")
	})
}

// customText takes the text of a call out of the arguments that the model writes, which come in
// pieces. Arguments that do not begin as those of customParameters are the text themselves.
type customText struct {
	at   customPlace
	held []byte // what is not known to be text yet: a beginning, or a part of an escape
}

type customPlace uint8

const (
	customBefore customPlace = iota // the text has not begun
	customInside
	customBehind // it has ended
	customBare   // all of the arguments are the text
)

// append appends what a piece has of the text, as the inside of a JSON string.
func (c *customText) append(dst, piece []byte) []byte {
	if c.at == customBare {
		return dialect.AppendEscaped(dst, piece)
	}
	if c.at == customBehind {
		return dst
	}
	c.held = append(c.held, piece...)
	if c.at == customBefore {
		n, begun, bare := textBegins(c.held)
		switch {
		case bare:
			c.at = customBare
			return dialect.AppendEscaped(dst, c.held)
		case !begun:
			return dst
		}
		c.at, c.held = customInside, c.held[n:]
	}
	n := 0
	for n < len(c.held) {
		run := bytes.IndexAny(c.held[n:], `"\`)
		if run < 0 {
			run = len(c.held) - n
		}
		dst = dialect.AppendEscaped(dst, c.held[n:n+run])
		if n += run; n == len(c.held) {
			break
		}
		if c.held[n] == '"' {
			c.at, c.held = customBehind, nil
			return dst
		}
		said, size := escape(c.held[n:])
		if size == 0 {
			break
		}
		dst = append(dst, said...)
		n += size
	}
	c.held = append(c.held[:0], c.held[n:]...)
	return dst
}

// end appends what is held back when no more comes: arguments that were never those of
// customParameters. A part of an escape says nothing.
func (c *customText) end(dst []byte) []byte {
	if c.at == customBefore {
		dst = dialect.AppendEscaped(dst, c.held)
	}
	c.held = nil
	return dst
}

// textBegins finds the first byte of the text in arguments; bare reports that they have none.
func textBegins(b []byte) (n int, begun, bare bool) {
	for _, word := range [...]string{`{`, `"input"`, `:`, `"`} {
		n += len(b[n:]) - len(bytes.TrimLeft(b[n:], " \t\r\n"))
		rest := b[n:]
		switch {
		case len(rest) < len(word):
			return n, false, !strings.HasPrefix(word, string(rest))
		case string(rest[:len(word)]) != word:
			return n, false, true
		}
		n += len(word)
	}
	return n, true, false
}

// escape returns the escape that b begins with, as a JSON string may have it, and its size in
// b; a size of 0 asks for more. What is no escape is a backslash.
func escape(b []byte) (said []byte, size int) {
	const backslash, replacement = `\\`, `\ufffd`
	switch {
	case len(b) < 2:
		return nil, 0
	case strings.IndexByte(`"\/bfnrt`, b[1]) >= 0:
		return b[:2], 2
	case b[1] != 'u':
		return []byte(backslash), 1
	}
	unit, ok, whole := unitOf(b)
	switch {
	case !ok:
		return []byte(backslash), 1
	case !whole:
		return nil, 0
	case !utf16.IsSurrogate(unit):
		return b[:6], 6
	case unit >= 0xdc00 || len(b) > 6 && b[6] != '\\' || len(b) > 7 && b[7] != 'u':
		return []byte(replacement), 6 // half a pair
	case len(b) < 8:
		return nil, 0
	}
	low, ok, whole := unitOf(b[6:])
	switch {
	case !ok:
		return []byte(replacement), 6
	case !whole:
		return nil, 0
	case low < 0xdc00 || low > 0xdfff:
		return []byte(replacement), 6
	}
	return b[:12], 12
}

// unitOf reads the \uXXXX that b begins with; ok is false where it is none.
func unitOf(b []byte) (unit rune, ok, whole bool) {
	for i := 2; i < 6; i++ {
		if i == len(b) {
			return 0, true, false
		}
		digit := strings.IndexByte("0123456789abcdef", b[i]|0x20)
		if b[i] < '0' || digit < 0 {
			return 0, false, false
		}
		unit = unit<<4 | rune(digit)
	}
	return unit, true, true
}
