package api

import "weir/internal/infer"

// Content gathers the content of a message as chat templates take it: one text, of
// which each addition is a line; or, where there are media, an array of parts in
// their order. Texts are the insides of JSON strings.
type Content struct {
	text  []byte
	texts int
	parts []byte // JSON, each with a comma before it
}

// Reset empties it, and keeps its room.
func (c *Content) Reset() { c.text, c.texts, c.parts = c.text[:0], 0, c.parts[:0] }

// Empty says that nothing was added.
func (c *Content) Empty() bool { return c.texts == 0 && len(c.parts) == 0 }

// AddText adds a text.
func (c *Content) AddText(inside []byte) {
	if c.texts > 0 {
		c.text = append(c.text, `\n`...)
	}
	c.text = append(c.text, inside...)
	c.texts++
}

// AddMedia adds a part of that kind.
func (c *Content) AddMedia(kind infer.MediaKind) {
	c.part()
	c.parts = append(append(append(c.parts, `,{"type":"`...), kind.String()...), `"}`...)
}

// part makes a part of the text so far.
func (c *Content) part() {
	if c.texts > 0 {
		c.parts = append(append(append(c.parts, `,{"type":"text","text":"`...), c.text...), `"}`...)
		c.text, c.texts = c.text[:0], 0
	}
}

// Append appends the JSON value. Nothing is added after it.
func (c *Content) Append(dst []byte) []byte {
	if len(c.parts) == 0 {
		return append(append(append(dst, '"'), c.text...), '"')
	}
	c.part()
	return append(append(append(dst, '['), c.parts[1:]...), ']')
}
