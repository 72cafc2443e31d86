package outputparse

import "bytes"

// params is a call whose arguments have a tag each.
type params struct {
	classes map[string]paramClass // of the tool that is called; the tools'
	class   paramClass            // of the value at hand
	begun   bool                  // an argument has been given out
	// text: the value is being given out as a string.
	text bool
	// pos is how far a value that is held was searched for its end.
	pos int
}

// beginParams opens the object of arguments.
func (p *Parser) beginParams(tool string) {
	p.params = params{classes: p.listed.of(tool)}
	p.emit(Arguments, []byte("{"))
	p.state = (*Parser).param
}

// param is the state between arguments: a key's tag or the call's end comes.
func (p *Parser) param(d []byte, eof bool) (int, bool) {
	s := p.tools
	c := cursor{d: d, eof: eof}
	c.space()
	at := c.i
	switch {
	case c.any(s.key):
		if !p.readKey(&c) {
			break
		}
		return c.i, false
	case c.short:
	case c.any(s.callEnd):
		p.emit(Arguments, []byte("}"))
		p.end(true)
		p.state = (*Parser).between
		return c.i, false
	case c.short:
	case c.any(s.sectionEnd):
		// The call's own end was left out.
		p.emit(Arguments, []byte("}"))
		p.end(true)
		p.state = (*Parser).between
		return at, false
	}
	if c.short {
		return 0, true
	}
	return p.broken(d, eof)
}

// readKey reads a key's tag from its name on, and opens the value.
func (p *Parser) readKey(c *cursor) bool {
	s := p.tools
	key := c.name()
	if len(key) == 0 || c.short {
		return false
	}
	class := p.params.classes[string(key)]
	if class == untyped && !s.untypedJSON {
		class = stringClass
	}
	switch {
	case c.lit(s.keyEnd):
		if s.keyEndJSON != "" {
			class = stringClass
		}
	case s.keyEndJSON != "" && c.lit(s.keyEndJSON):
		class = jsonClass
	default:
		return false
	}
	if s.tagBegin != "" {
		if c.space(); !c.lit(s.tagBegin) {
			return false
		}
	}
	if s.newline {
		if b := c.next(); b == '\n' {
			c.i++
		}
	}
	if c.short {
		return false
	}
	at := len(p.out)
	if p.params.begun {
		p.out = append(p.out, ',')
	}
	p.out = append(p.out, '"')
	p.out = append(appendEscaped(p.out, key), `":`...)
	p.emit(Arguments, p.out[at:])
	p.params = params{classes: p.params.classes, class: class, begun: true}
	p.state = (*Parser).value
	if class == stringClass {
		p.openText()
	}
	return true
}

// openText begins to give the value out as a string.
func (p *Parser) openText() {
	p.params.text = true
	p.emit(Arguments, []byte(`"`))
}

// value is the state within an argument's value.
func (p *Parser) value(d []byte, eof bool) (int, bool) {
	v := &p.params
	if v.text {
		return p.valueText(d, eof)
	}
	at, length := p.ends.find(d[v.pos:])
	if at >= 0 {
		at += v.pos
	}
	end := at
	if at < 0 {
		end = len(d)
	}
	// The same decision as if each byte had come alone.
	if v.class == nullableClass && (end > maxNull || !couldBeNull(d[:end])) || end > maxHeld {
		p.openText()
		return 0, false
	}
	switch {
	case at >= 0 && length > 0:
		p.closeValue(d[:at])
		return at + length, false
	case eof:
		p.openText()
		return 0, false
	}
	v.pos = end
	return 0, true
}

// maxNull bounds null with white space around it.
const maxNull = 64

// couldBeNull reports whether text that begins so may come to be null.
func couldBeNull(d []byte) bool {
	d = bytes.TrimLeft(d, " \t\r\n")
	const null = "null"
	if len(d) <= len(null) {
		return null[:len(d)] == string(d)
	}
	return string(d[:len(null)]) == null && len(bytes.TrimSpace(d[len(null):])) == 0
}

// valueText returns a string out as it comes.
func (p *Parser) valueText(d []byte, eof bool) (int, bool) {
	at, length := p.ends.find(d)
	end := at
	if at < 0 || eof && length == 0 {
		end = len(d)
	}
	from := len(p.out)
	p.out = appendEscaped(p.out, d[:end])
	switch {
	case length > 0:
		p.out = append(p.out, '"')
		p.emit(Arguments, p.out[from:])
		p.state = (*Parser).param
		return at + length, false
	case eof:
		p.emit(Arguments, p.out[from:])
		p.end(false)
		return end, true
	}
	p.emit(Arguments, p.out[from:])
	return end, true
}

// closeValue gives out a value that was held: as JSON if it is that or can be
// read as Python's, else as a string.
func (p *Parser) closeValue(d []byte) {
	p.state = (*Parser).param
	at := len(p.out)
	value := bytes.TrimSpace(d)
	var ok bool
	if p.out, ok = appendJSON(p.out[:at], value, &p.scan); ok {
		p.emit(Arguments, p.out[at:])
		return
	}
	if p.out, ok = appendLiteral(p.out[:at], value); ok {
		p.emit(Arguments, p.out[at:])
		return
	}
	p.out = append(appendEscaped(append(p.out[:at], '"'), d), '"')
	p.emit(Arguments, p.out[at:])
}
