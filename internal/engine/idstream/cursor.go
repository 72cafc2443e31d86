package idstream

import (
	"bytes"
	"math"

	"weir/internal/jsonlex"
)

// Cursor reads a JSON text in place, from its beginning to its end, and allocates nothing.
// It takes what encoding/json takes, of one form each: a name has no escapes, a number that
// is read is an unsigned integer, and arrays and objects are at most maxDepth deep. Bad
// reports that something else came; whoever reads then has read nothing, and reads the
// text anew with the Scanner.
//
//	for more := c.Open('{'); more; more = c.More('}') {
//		switch string(c.Name()) {
//		...
//		}
//	}
type Cursor struct {
	data []byte
	at   int
	bad  bool
}

// maxDepth bounds how deep values are that are passed over.
const maxDepth = 16

// NewCursor returns a cursor at the beginning of data.
func NewCursor(data []byte) Cursor { return Cursor{data: data} }

// Bad reports whether the text is not one that the cursor reads.
func (c *Cursor) Bad() bool { return c.bad }

// Whole reports whether all of the text was read, and nothing of it was bad.
func (c *Cursor) Whole() bool {
	c.space()
	return !c.bad && c.at == len(c.data)
}

// fail ends the reading.
func (c *Cursor) fail() { c.bad, c.at = true, len(c.data) }

func (c *Cursor) space() {
	for c.at < len(c.data) {
		switch c.data[c.at] {
		case ' ', '\t', '\n', '\r':
			c.at++
		default:
			return
		}
	}
}

// Peek returns the first byte of what comes next, 0 at the end.
func (c *Cursor) Peek() byte {
	c.space()
	if c.at == len(c.data) {
		return 0
	}
	return c.data[c.at]
}

// Open enters the object or array that begins with a byte, and reports whether there is
// something in it.
func (c *Cursor) Open(begin byte) bool {
	if c.Peek() != begin {
		c.fail()
		return false
	}
	c.at++
	if c.Peek() == begin+2 { // '[' and ']', '{' and '}'
		c.at++
		return false
	}
	return true
}

// More goes on behind an element, and reports whether there is another before the end.
func (c *Cursor) More(end byte) bool {
	switch c.Peek() {
	case ',':
		c.at++
		if !c.bad {
			return true
		}
	case end:
		if c.at++; !c.bad {
			return false
		}
	}
	c.fail()
	return false
}

// Name reads the name of a member, up to its value.
func (c *Cursor) Name() []byte {
	name := c.Text()
	if c.Peek() != ':' {
		c.fail()
		return nil
	}
	c.at++
	return name
}

// Text reads a string without escapes and returns what is between its quotes.
func (c *Cursor) Text() []byte {
	if c.Peek() != '"' {
		c.fail()
		return nil
	}
	from := c.at + 1
	size := bytes.IndexByte(c.data[from:], '"')
	if size < 0 {
		c.fail()
		return nil
	}
	text := c.data[from : from+size]
	for _, b := range text {
		if b < ' ' || b == '\\' {
			c.fail()
			return nil
		}
	}
	c.at = from + size + 1
	return text
}

// Count reads a number from 0 to the largest int32.
func (c *Cursor) Count() int {
	n := c.digits(math.MaxInt32)
	return int(n)
}

// ID reads a token id.
func (c *Cursor) ID() uint32 { return uint32(c.digits(math.MaxUint32)) }

// digits reads an unsigned integer of at most a value.
func (c *Cursor) digits(most uint64) (n uint64) {
	c.space()
	from := c.at
	for c.at < len(c.data) && c.data[c.at]-'0' <= 9 {
		if n = 10*n + uint64(c.data[c.at]-'0'); n > most {
			c.fail()
			return 0
		}
		c.at++
	}
	switch {
	case c.at == from, c.data[from] == '0' && c.at > from+1:
		c.fail()
		return 0
	case c.at < len(c.data) && (c.data[c.at] == '.' || c.data[c.at]|0x20 == 'e'):
		c.fail()
		return 0
	}
	return n
}

// Null reads null.
func (c *Cursor) Null() { c.literal("null") }

func (c *Cursor) literal(word string) {
	if c.space(); len(c.data)-c.at < len(word) || string(c.data[c.at:c.at+len(word)]) != word {
		c.fail()
		return
	}
	c.at += len(word)
}

// Skip passes over a value.
func (c *Cursor) Skip() { c.skip(0) }

func (c *Cursor) skip(depth int) {
	if depth > maxDepth {
		c.fail()
		return
	}
	switch b := c.Peek(); b {
	case '"':
		c.skipText()
	case '{':
		for more := c.Open('{'); more; more = c.More('}') {
			c.skipText()
			if c.Peek() != ':' {
				c.fail()
				return
			}
			c.at++
			c.skip(depth + 1)
		}
	case '[':
		for more := c.Open('['); more; more = c.More(']') {
			c.skip(depth + 1)
		}
	case 't':
		c.literal("true")
	case 'f':
		c.literal("false")
	case 'n':
		c.literal("null")
	default:
		c.skipNumber()
	}
}

// skipText passes over a string. A name may have escapes here too: it is none that anybody
// asks for.
func (c *Cursor) skipText() {
	if c.Peek() != '"' {
		c.fail()
		return
	}
	data, i := c.data, c.at+1
	for i < len(data) {
		switch b := data[i]; {
		case b == '"':
			c.at = i + 1
			return
		case b < ' ':
			c.fail()
			return
		case b != '\\':
			i++
		default:
			n := jsonlex.Escape(data[i:])
			if n == 0 {
				c.fail()
				return
			}
			i += n
		}
	}
	c.fail()
}

// skipNumber passes over a number.
func (c *Cursor) skipNumber() {
	n := jsonlex.Number(c.data[c.at:])
	if n == 0 {
		c.fail()
		return
	}
	c.at += n
}

// IDs reads an array of ids and returns the text between its brackets, as Scanner.Array
// does, and how many there are.
func (c *Cursor) IDs() (array []byte, n int) {
	from := 0
	for more := c.Open('['); more; more = c.More(']') {
		if n == 0 {
			from = c.at
		}
		c.ID()
		n++
	}
	if c.bad || n == 0 {
		return nil, 0
	}
	return c.data[from : c.at-1], n
}
