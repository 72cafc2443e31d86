package outputparse

import (
	"bytes"
	"slices"
)

// Bounds of what is held until a call's name is known.
const (
	maxName  = 256
	maxSpace = 64 // white space in one place
)

// cursor reads a short, bounded stretch of syntax. If the present text does not
// suffice, short is set, and the stretch is read again with more text.
type cursor struct {
	d     []byte
	i     int
	eof   bool
	short bool
	void  bool // what was read is syntax that says nothing
}

// space passes over white space.
func (c *cursor) space() {
	for start := c.i; c.i-start <= maxSpace; c.i++ {
		if c.i == len(c.d) {
			c.short = c.short || !c.eof
			return
		}
		if !isSpace(c.d[c.i]) {
			return
		}
	}
}

// lit passes over s if that comes next.
func (c *cursor) lit(s string) bool {
	rest := c.d[c.i:]
	if len(rest) >= len(s) {
		if string(rest[:len(s)]) != s {
			return false
		}
		c.i += len(s)
		return true
	}
	if !c.eof && s[:len(rest)] == string(rest) {
		c.short = true
	}
	return false
}

// any passes over the first of several that comes next.
func (c *cursor) any(list []string) bool {
	for _, s := range list {
		if c.lit(s) {
			return true
		}
	}
	return false
}

// tail is any, for what ends a call: where the text ends within it, that is all
// of it.
func (c *cursor) tail(list []string) bool {
	if c.any(list) {
		return true
	}
	if rest := c.d[c.i:]; c.eof && len(rest) > 0 {
		for _, s := range list {
			if len(rest) < len(s) && s[:len(rest)] == string(rest) {
				c.i = len(c.d)
				return true
			}
		}
	}
	return false
}

// next returns the byte that comes next, 0 if that is not known or the end.
func (c *cursor) next() byte {
	if c.i == len(c.d) {
		c.short = c.short || !c.eof
		return 0
	}
	return c.d[c.i]
}

// name reads a name: one to maxName bytes that are no white space, quotes,
// brackets or control characters.
func (c *cursor) name() []byte {
	start := c.i
	for c.i < len(c.d) && isName(c.d[c.i]) && c.i-start < maxName {
		c.i++
	}
	if c.i == len(c.d) {
		c.short = c.short || !c.eof
	}
	return c.d[start:c.i]
}

func isName(b byte) bool {
	switch b {
	case '"', '\'', '`', '<', '>', '(', ')', '[', ']', '{', '}', '=', ',', ';', '|', '\\':
		return false
	}
	return b > ' ' && b != 0x7f
}

// title reads the name of a call or a parameter: quoted or not, or the attribute name of
// the tag.
func (c *cursor) title(attribute bool) (name []byte, ok bool) {
	if attribute {
		return c.attribute("name")
	}
	return c.quotable()
}

// attribute reads white space, an attribute's name and =, and returns its value. Another
// attribute is left.
func (c *cursor) attribute(name string) (value []byte, ok bool) {
	at := c.i
	if c.space(); c.i > at && c.lit(name) {
		if c.space(); c.lit("=") {
			c.space()
			value, ok = c.quotable()
		}
	}
	if !ok {
		c.i = at
	}
	return value, ok
}

// quotable reads a name that may be in quotes.
func (c *cursor) quotable() (name []byte, ok bool) {
	quote := c.next()
	if quote == '"' || quote == '\'' {
		c.i++
		name = c.name()
		return name, len(name) > 0 && c.lit(string(quote))
	}
	name = c.name()
	return name, len(name) > 0
}

// tagClosed reads the end of a tag. closed: it has no content and no other end.
func (c *cursor) tagClosed() (closed, ok bool) {
	if c.space(); c.lit("/>") {
		return true, true
	}
	return false, c.lit(">")
}

// markers are strings to be found in text. None is the beginning of another.
type markers struct {
	list []string
	one  byte // the first byte of all, 0 if they do not share it
}

func newMarkers(lists ...[]string) *markers {
	m := &markers{list: slices.Concat(lists...)}
	for i, s := range m.list {
		if i == 0 {
			m.one = s[0]
		} else if m.one != s[0] {
			m.one = 0
		}
	}
	return m
}

// find returns where the first marker begins and its length, 0 if the text ends before
// that is certain; at is -1 if none begins.
func (m *markers) find(d []byte) (at, length int) {
	if len(m.list) == 0 {
		return -1, 0
	}
	for i := 0; i < len(d); i++ {
		if m.one != 0 {
			n := bytes.IndexByte(d[i:], m.one)
			if n < 0 {
				return -1, 0
			}
			i += n
		}
		rest := d[i:]
		for _, s := range m.list {
			switch {
			case s[0] != rest[0]:
			case len(rest) >= len(s):
				if string(rest[:len(s)]) == s {
					return i, len(s)
				}
			case s[:len(rest)] == string(rest):
				return i, 0
			}
		}
	}
	return -1, 0
}
