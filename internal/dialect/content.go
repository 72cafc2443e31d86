package dialect

import (
	"bytes"

	"weir/internal/infer"
)

// Content gathers the content of a message in the shape that chats have it: a
// string where it is one text, else an array of parts in their order. What chat
// templates make of several texts is for package chat to find out.
type Content struct {
	parts []byte // JSON, each with a comma before it
	count int
}

// The ends of a part of text.
const (
	textHead = `,{"type":"text","text":"`
	textTail = `"}`
)

// Reset empties it, and keeps its room.
func (c *Content) Reset() { c.parts, c.count = c.parts[:0], 0 }

// Empty says that nothing was added.
func (c *Content) Empty() bool { return c.count == 0 }

// AddText adds a text, which is the inside of a JSON string.
func (c *Content) AddText(inside []byte) {
	c.parts = append(append(append(c.parts, textHead...), inside...), textTail...)
	c.count++
}

// AddMedia adds a part of that kind.
func (c *Content) AddMedia(kind infer.MediaKind) {
	c.parts = append(append(append(c.parts, `,{"type":"`...), kind.String()...), `"}`...)
	c.count++
}

// Append appends the JSON value; of nothing it is the empty string.
func (c *Content) Append(dst []byte) []byte {
	switch {
	case c.count == 0:
		return append(dst, `""`...)
	case c.count == 1 && bytes.HasPrefix(c.parts, []byte(textHead)):
		text := c.parts[len(textHead) : len(c.parts)-len(textTail)]
		return append(append(append(dst, '"'), text...), '"')
	}
	return append(append(append(dst, '['), c.parts[1:]...), ']')
}
