package dialect

import (
	"bytes"

	"weir/internal/infer"
)

// Content gathers the content of a message in the shape that chats use: a string if
// it is a single text, otherwise an array of parts in their order. Package chat
// decides how a template sees several texts.
type Content struct {
	parts []byte // JSON, each with a comma before it
	count int
}

// The ends of a part of text.
const (
	textHead = `,{"type":"text","text":"`
	textTail = `"}`
)

// Reset empties the content and keeps its memory.
func (c *Content) Reset() { c.parts, c.count = c.parts[:0], 0 }

// Empty reports whether nothing was added.
func (c *Content) Empty() bool { return c.count == 0 }

// AddText adds a text, which is the inside of a JSON string.
func (c *Content) AddText(inside []byte) {
	c.parts = append(append(append(c.parts, textHead...), inside...), textTail...)
	c.count++
}

// AddMedia adds a part of a kind of media.
func (c *Content) AddMedia(kind infer.MediaKind) {
	c.parts = append(append(append(c.parts, `,{"type":"`...), kind.String()...), `"}`...)
	c.count++
}

// Append appends the content as a JSON value, which is "" if nothing was added.
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
