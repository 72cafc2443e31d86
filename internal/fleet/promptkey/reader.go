package promptkey

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/dialect"
	"weir/internal/fleet/kvindex"
)

// Shape states where a body has its prompt.
type Shape uint8

// The shapes.
const (
	Unknown     Shape = iota
	Chat              // messages, tools
	Completions       // prompt
	Messages          // system, messages, tools
	Responses         // instructions, input, tools
	Inputs            // input, or messages
	Pairs             // a query and documents
)

var shapes = map[string]Shape{
	"/v1/chat/completions": Chat,
	"/v1/completions":      Completions,
	"/v1/messages":         Messages,
	"/v1/responses":        Responses,
	"/v1/embeddings":       Inputs,
	"/classify":            Inputs,
	"/v1/classify":         Inputs,
	"/pooling":             Inputs,
	"/rerank":              Pairs,
	"/v1/rerank":           Pairs,
	"/v2/rerank":           Pairs,
	"/score":               Pairs,
	"/v1/score":            Pairs,
}

// ShapeOf returns the shape of the bodies that are sent to a path.
func ShapeOf(path string) Shape { return shapes[path] }

// Generates reports whether an answer is generated. Otherwise only the prompt is
// computed.
func (s Shape) Generates() bool { return s >= Chat && s <= Responses }

// Key identifies the prompt of a body.
type Key struct {
	// Blocks are the blocks of the prompt, or of the first of several.
	Blocks []kvindex.Block
	// Bytes is the length of the canonical text of all prompts.
	Bytes int
	// Media is the number of parts that are not text.
	Media int
}

// Reader reads bodies, one at a time. It is large and should be reused.
type Reader struct {
	text        // of the prompt
	side   text // of what only its digest is written of
	media  int
	again  int    // bytes of prompts that have others before them
	role   []byte // of a message of which nothing is written yet; nil: none
	spare  bool   // and that is none if nothing follows
	within bool   // an assistant's message, which a call may join
	word   [128]byte
}

// Read returns the key of a body, and whether there is one. Its blocks are appended to
// dst and follow root, which stands for the model. The head must still have its body and
// fields.
func (r *Reader) Read(dst []kvindex.Block, root kvindex.Block, shape Shape, h *dialect.Head) (k Key, ok bool) {
	had := len(dst)
	f, root := r.fields(h, root)
	r.media, r.again, r.role, r.spare, r.within = 0, 0, nil, false, false
	r.begin(root, dst, MaxBlocks)
	switch shape {
	case Chat:
		ok = r.conversation(f, false)
	case Messages:
		ok = r.conversation(f, true)
	case Completions:
		ok = r.prompts(f[fieldPrompt])
	case Responses:
		ok = r.responses(f)
	case Inputs:
		if none(f[fieldMessages]) {
			ok = r.prompts(f[fieldInput])
		} else {
			ok = r.conversation(f, false)
		}
	case Pairs:
		ok = r.pairs(f)
	}
	k = Key{r.blocks, r.bytes() + r.again, r.media}
	r.blocks, r.role = nil, nil // they may be of the body
	if !ok {
		k.Blocks, k.Bytes, k.Media = k.Blocks[:had], 0, 0
	}
	return k, ok
}

// spelled returns what a short string spells, in room that the next call uses again. A
// longer one that has escapes gives nothing: no word that is known is so long.
func (r *Reader) spelled(raw []byte) []byte {
	word := inside(raw)
	if bytes.IndexByte(word, '\\') < 0 {
		return word
	}
	if len(raw) > len(r.word) {
		return nil
	}
	word, _ = jsontext.AppendUnquote(r.word[:0], raw)
	return word
}

// members are the values of an object's members, by what an index calls them.
type members [16][]byte

// rest is where an index puts members that it does not know, as a digest in r; ignored
// those that change no prompt.
const (
	rest    = -1
	ignored = -2
)

// object reads the object that the cursor stands before. known gives a member's place.
// The digest stands for the members that are the rest, in any order.
func (r *Reader) object(c *cursor, known func(name []byte) int) (m members, digest uint64) {
	if c.kind() != '{' {
		c.bad = true
		return m, 0
	}
	c.open()
	for c.more() {
		name := r.spelled(c.name())
		at := known(name)
		var named kvindex.Block
		if at == rest {
			named = kvindex.Block(0).Next(name) // which is in room that is used again
		}
		raw := c.value()
		switch {
		case at >= 0:
			m[at] = raw
		case at == rest && !none(raw):
			digest += r.digest(named, raw, 0)
		}
	}
	return m, digest
}

// maxDepth bounds how deep a digest, and a content, look into what is inside of others.
const maxDepth = 8

// digest stands for a value, with what came before it. The members of its objects may
// come in any order.
func (r *Reader) digest(before kvindex.Block, raw []byte, depth int) uint64 {
	if none(raw) {
		return uint64(before)
	}
	c := cursor{b: raw}
	switch {
	case depth == maxDepth, raw[0] != '{' && raw[0] != '[':
		r.side.begin(before, nil, 0)
		r.side.value(raw)
		return r.side.end()
	case raw[0] == '[':
		c.open()
		for c.more() {
			before = kvindex.Block(r.digest(before.Next([]byte{','}), c.value(), depth+1))
		}
		return uint64(before)
	}
	var sum uint64
	c.open()
	for c.more() {
		r.side.begin(before, nil, 0)
		r.side.string(inside(c.name()))
		named := kvindex.Block(r.side.end())
		if raw := c.value(); !none(raw) {
			sum += r.digest(named, raw, depth+1)
		}
	}
	return sum
}

// medium writes a part of which only its digest is written.
func (r *Reader) medium(digest uint64) {
	r.media++
	r.mark(markMedia)
	for range mediaBytes / 8 {
		r.uint64(digest)
	}
}

// field writes a text with its name, if there is one.
func (r *Reader) field(name byte, raw []byte) {
	if none(raw) {
		return
	}
	r.begun()
	r.mark(markField)
	r.mark(name)
	r.any(raw)
}

// any writes a value: a text, or what was written freely.
func (r *Reader) any(raw []byte) {
	if raw[0] == '"' {
		r.string(inside(raw))
	} else {
		r.value(raw)
	}
}

// rest writes what stands for members that are not known by name.
func (r *Reader) rest(digest uint64) {
	if digest != 0 {
		r.mark(markDigest)
		r.uint64(digest)
	}
}

// message begins a message: nothing of it is written before it has something, or ends.
// The role must stay as it is until then.
func (r *Reader) message(role []byte) {
	r.ended()
	if role == nil {
		role = []byte{}
	}
	r.role = role
	r.within = string(role) == "assistant"
}

// begun writes the beginning of the message, if it is not.
func (r *Reader) begun() {
	if r.role == nil {
		return
	}
	r.mark(markMessage)
	r.string(r.role)
	r.role, r.spare = nil, false
}

// ended ends the message: one that has nothing is one too, unless it is spare.
func (r *Reader) ended() {
	if r.spare {
		r.role, r.spare = nil, false
	}
	r.begun()
}

// billing begins a line that Claude Code puts into its system prompt, another each time.
const billing = "x-anthropic-billing-header"

// part writes a part of a content that is text.
func (r *Reader) part(raw []byte, system bool) {
	text := inside(raw)
	if system && bytes.HasPrefix(text, []byte(billing)) {
		_, text, _ = bytes.Cut(text, []byte(`\n`))
	}
	if len(text) == 0 {
		return
	}
	r.begun()
	r.mark(markText)
	r.string(text)
}

// roleOf returns a role: those that are known as one slice each, whatever their
// spelling.
func (r *Reader) roleOf(raw []byte) []byte {
	switch string(r.spelled(raw)) {
	case "system":
		return roleSystem
	case "user":
		return roleUser
	case "assistant":
		return roleAssistant
	case "tool":
		return roleTool
	}
	return inside(raw)
}

var (
	roleSystem    = []byte("system")
	roleUser      = []byte("user")
	roleAssistant = []byte("assistant")
	roleTool      = []byte("tool")
)
