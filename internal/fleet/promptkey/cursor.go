package promptkey

import "weir/internal/dialect"

// cursor walks JSON. It may be anything: what it cannot walk ends it.
type cursor struct {
	b     []byte
	i     int
	bad   bool
	comma bool // a value has come, so that a comma or an end must
}

// kind returns the first byte of the value that comes, 0 where there is none.
func (c *cursor) kind() byte {
	c.i = dialect.SkipSpace(c.b, c.i)
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

// more reports whether another item or member comes, and goes past the end if not.
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

// name returns a member's name, with its quotes, and goes to its value; nil where there
// is none.
func (c *cursor) name() []byte {
	raw := c.value()
	if len(raw) < 2 || raw[0] != '"' || c.kind() != ':' {
		c.bad = true
		return nil
	}
	c.i++
	return raw
}

// value returns the value that comes, and goes past it; nil where there is none. It
// gives some bytes of a value that is not well-formed.
func (c *cursor) value() []byte {
	c.i = dialect.SkipSpace(c.b, c.i)
	end := -1
	if !c.bad {
		end = dialect.SkipValue(c.b, c.i)
	}
	if end < 0 {
		c.bad = true
		return nil
	}
	raw := c.b[c.i:end]
	c.i, c.comma = end, true
	return raw
}

// none reports whether a value is as good as none: not there, null, or empty.
func none(raw []byte) bool {
	switch {
	case len(raw) == 0 || raw[0] == 'n':
		return true
	case raw[0] == '"':
		return len(raw) == 2
	case raw[0] == '[' || raw[0] == '{':
		return dialect.SkipSpace(raw, 1) == len(raw)-1
	}
	return false
}

// inside returns the inside of a string, nil of what is none.
func inside(raw []byte) []byte {
	if len(raw) < 2 || raw[0] != '"' {
		return nil
	}
	return raw[1 : len(raw)-1]
}
