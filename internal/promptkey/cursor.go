package promptkey

import (
	"bytes"

	"weir/internal/api"
)

// cursor walks JSON. It may be anything: what it cannot walk ends it.
type cursor struct {
	b     []byte
	i     int
	bad   bool
	comma bool // a value has come, so that a comma or an end must
}

// kind gives the first byte of the value that comes, 0 where there is none.
func (c *cursor) kind() byte {
	c.i = api.SkipSpace(c.b, c.i)
	if c.i == len(c.b) {
		return 0
	}
	return c.b[c.i]
}

// open goes into the array or the object that comes.
func (c *cursor) open() {
	c.i++
	c.comma = false
}

// more says whether another item or member comes, and goes past the end if not.
func (c *cursor) more() bool {
	k := c.kind()
	if c.comma && k == ',' {
		c.i++
		k = c.kind()
	}
	c.comma = true
	switch k {
	case 0:
		c.bad = true
		return false
	case ']', '}':
		c.i++
		return false
	}
	return !c.bad
}

// name gives a member's name, with its quotes, and goes to its value; nil where there is
// none.
func (c *cursor) name() []byte {
	raw := c.value()
	if len(raw) < 2 || raw[0] != '"' || c.kind() != ':' {
		c.bad = true
		return nil
	}
	c.i++
	return raw
}

// value gives the value that comes, and goes past it; nil where there is none. Of a value
// that is not well-formed it gives something.
func (c *cursor) value() []byte {
	c.i = api.SkipSpace(c.b, c.i)
	end := -1
	if !c.bad && c.i < len(c.b) {
		end = valueEnd(c.b, c.i)
	}
	if end < 0 {
		c.bad = true
		return nil
	}
	raw := c.b[c.i:end]
	c.i, c.comma = end, true
	return raw
}

// valueEnd gives the place after the value at b[i:], or -1. That it is JSON was checked
// with the rest of the body, so only strings and brackets are looked at.
func valueEnd(b []byte, i int) int {
	switch b[i] {
	case '"':
		return stringEnd(b, i)
	case '{', '[':
		for depth := 0; i < len(b); {
			switch b[i] {
			case '"':
				if i = stringEnd(b, i); i < 0 {
					return -1
				}
				continue
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
			i++
		}
		return -1
	}
	from := i
	for i < len(b) && b[i] > ' ' && b[i] != ',' && b[i] != ']' && b[i] != '}' && b[i] != ':' && b[i] != '"' {
		i++
	}
	if i == from {
		return -1
	}
	return i
}

// stringEnd gives the place after the string at b[i:], or -1. Escapes are only looked at
// before a quote.
func stringEnd(b []byte, i int) int {
	for i++; ; {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		end := i + n
		slashes := end
		for slashes > i && b[slashes-1] == '\\' {
			slashes--
		}
		i = end + 1
		if (end-slashes)%2 == 0 {
			return i
		}
	}
}

// none says whether a value is as good as none: not there, null, or empty.
func none(raw []byte) bool {
	switch {
	case len(raw) == 0 || raw[0] == 'n':
		return true
	case raw[0] == '"':
		return len(raw) == 2
	case raw[0] == '[' || raw[0] == '{':
		return api.SkipSpace(raw, 1) == len(raw)-1
	}
	return false
}

// inside gives the inside of a string, nil of what is none.
func inside(raw []byte) []byte {
	if len(raw) < 2 || raw[0] != '"' {
		return nil
	}
	return raw[1 : len(raw)-1]
}
