package outputparse

import (
	"strings"

	"weir/internal/model/callid"
)

// opening is the state at a marker of a call, or at the byte that opens bare
// calls, or after another call at what may be the next.
func (p *Parser) opening(d []byte, eof bool) (int, bool) {
	c := cursor{d: d, eof: eof}
	var ok bool
	calls, muted := p.calls, p.muted
	switch p.tools.body {
	case objectBody:
		ok = p.openObject(&c)
	case pythonBody:
		ok = p.openPython(&c)
	default:
		ok = p.openNamed(&c)
	}
	switch {
	case c.short:
		return 0, true
	case !ok:
		return p.reject(d, c.i)
	case c.void:
		p.begin(p.span)
		return c.i, false
	case p.muted && !muted:
		p.muted = false
		p.say(d[:c.i])
		p.release()
		p.muted = true
		return c.i, false
	case p.open || p.calls > calls || p.muted:
		return c.i, false
	}
	return 0, false // the name is still to come
}

// openNamed reads a call's opening where the name comes first.
func (p *Parser) openNamed(c *cursor) bool {
	s := p.tools
	if !p.again && c.any(s.section) {
		c.space()
		if c.any(s.sectionEnd) {
			c.void = true
			return true
		}
	}
	if !c.any(s.call) {
		return false
	}
	if !s.attributes {
		c.space()
	}
	if s.prefix != "" && !c.lit(s.prefix) {
		return false
	}
	name, ok := c.title(s.attributes)
	if !ok {
		return false
	}
	closed := false
	c.space()
	switch {
	case s.attributes:
		if closed, ok = c.tagClosed(); !ok {
			return false
		}
	case s.body == taggedBody && s.nameEnd == nil:
		// The name ends where the first key or the call's end begins.
		at := c.i
		if !c.any(s.key) && !c.any(s.callEnd) {
			return false
		}
		c.i = at
	case s.body == literalBody:
		if c.next() != '{' {
			return false
		}
	case !c.any(s.nameEnd):
		return false
	}
	if c.short || !p.beginNamed(c, string(name)) {
		return false
	}
	if closed {
		p.endParams()
	}
	return true
}

// beginNamed begins the call whose name was read, if that is a tool's.
func (p *Parser) beginNamed(c *cursor, name string) bool {
	id := ""
	if p.tools.ids == callid.Typed {
		typed, number, ok := p.listed.typed(name)
		if !ok && counts(typed) {
			p.object = object{pos: c.i, id: number}
			p.state = (*Parser).readCounted
			return true
		}
		if name = typed; ok {
			id = number
		}
	}
	tool, ok := p.listed.resolve(name)
	if !ok && p.span == Reasoning {
		return false // which its closing tag ends wherever it stands
	}
	if !ok {
		p.muted, p.wrong, p.quoted = true, false, false
		p.scan.reset()
	} else {
		p.beginCall(tool, id)
	}
	switch p.tools.body {
	case jsonBody:
		p.state = (*Parser).arguments
		return true
	case literalBody:
		p.python.literal.resetAs(p.tools.quote, p.listed.of(tool))
		p.state = (*Parser).literalArguments
		return true
	}
	p.beginParams(tool)
	return true
}

// openObject reads what comes before an object that holds name and arguments.
func (p *Parser) openObject(c *cursor) bool {
	s := p.tools
	list, bare := p.object.list && p.again, false
	switch {
	case p.again:
		if p.separates(c.next()) {
			c.i++
			c.space()
		}
	case c.any(s.call):
		c.space()
		if c.any(s.callEnd) {
			c.void = true
			return true
		}
	default:
		bare = s != forcedTools
	}
	if b := c.next(); b == '[' && s.separator != "" && !p.again {
		at := c.i
		c.i++
		if c.space(); c.next() != '{' && !c.short {
			c.i = max(at, 1) // what begins there may be a marker
			return false
		}
		list = true
	} else if b != '{' && s.nameEnd != nil && !p.again {
		return !c.short && p.openBefore(c) // a name before an object
	}
	if c.next() != '{' || c.short {
		return false
	}
	p.object = object{pos: c.i, list: list, bare: bare}
	p.state = (*Parser).readObject
	return true
}

// separates reports whether a byte stands between the calls at hand.
func (p *Parser) separates(b byte) bool {
	if p.object.list {
		return b == ','
	}
	return b != 0 && strings.IndexByte(p.tools.separator, b) >= 0
}

// openBefore reads a name before an object that is its arguments: name [idBegin id]
// [nameEnd] {.
func (p *Parser) openBefore(c *cursor) bool {
	s := p.tools
	name := c.name()
	if len(name) == 0 {
		return false
	}
	var id []byte
	if c.space(); c.lit(s.idBegin) {
		id = c.name()
		c.space()
	}
	if c.any(s.nameEnd) {
		c.space()
	}
	if c.next() != '{' || c.short {
		return false
	}
	tool, ok := p.listed.resolve(string(name))
	if !ok {
		return false
	}
	p.beginCall(tool, string(id))
	p.object = object{named: true}
	p.state = (*Parser).arguments
	return true
}

// after is the state after a call's arguments: its end is syntax.
func (p *Parser) after(d []byte, eof bool) (int, bool) {
	c := cursor{d: d, eof: eof}
	c.space()
	switch s := p.tools; {
	case s.body == objectBody:
		return p.afterObject(&c)
	default:
		if !c.tail(s.callEnd) {
			if c.short {
				return 0, true
			}
			p.state = (*Parser).text
			return 0, false
		}
	}
	p.state = (*Parser).between
	return c.i, false
}

// between is the state after a call's end: another may follow, or the section's
// end.
func (p *Parser) between(d []byte, eof bool) (int, bool) {
	c := cursor{d: d, eof: eof}
	c.space()
	at := c.i
	switch s := p.tools; {
	case c.any(s.call):
		p.state, p.again = (*Parser).opening, true
		return at, false
	case c.short:
		return 0, true
	case c.tail(s.sectionEnd):
		p.begin(p.span)
		return c.i, false
	case c.short:
		return 0, true
	}
	p.begin(p.span)
	return at, false
}

// afterObject reads what comes after an object's arguments.
func (p *Parser) afterObject(c *cursor) (int, bool) {
	s := p.tools
	if p.object.named {
		if c.short {
			return 0, true
		}
		p.begin(p.span)
		return c.i, false
	}
	if !p.object.closed {
		if !p.closeObject(c) {
			if c.short {
				return 0, true
			}
			p.begin(p.span)
			return 0, false
		}
		p.object.closed = true
		return c.i, false
	}
	switch {
	case p.object.list && c.next() == ']':
		c.i++
		if at := c.i; s.callEnd != nil {
			if c.space(); !c.tail(s.callEnd) {
				c.i = at
			}
		}
	case (p.object.list || s.bare != "") && (p.separates(c.next()) || s.bare != "" && !p.object.list && c.next() == '{'):
		p.state, p.again = (*Parser).opening, true
		return c.i, false
	case s.callEnd != nil:
		c.tail(s.callEnd)
	}
	if c.short {
		return 0, true
	}
	p.begin(p.span)
	return c.i, false
}

// closeObject reads the end of an object after its arguments. An id or a type
// there comes too late to be of use.
func (p *Parser) closeObject(c *cursor) bool {
	for c.next() == ',' {
		c.i++
		c.space()
		if !c.lit(`"id"`) && !c.lit(`"type"`) {
			return false
		}
		c.space()
		if !c.lit(":") {
			return false
		}
		c.space()
		if !c.lit(`"`) {
			return false
		}
		c.name()
		if !c.lit(`"`) {
			return false
		}
		c.space()
	}
	if c.next() != '}' {
		return false
	}
	c.i++
	return true
}
