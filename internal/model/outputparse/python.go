package outputparse

// python is a call as in Python: name(key=value, ...).
type python struct {
	tool    *tool // that is called
	literal literal
	begun   bool // an argument has been given out
}

// openPython reads a call's opening up to its first key: [name( or, after
// another call, a comma and name(.
func (p *Parser) openPython(c *cursor) bool {
	marked := false
	switch {
	case p.again:
		if !c.lit(",") {
			return false
		}
	default:
		marked = c.any(p.tools.call)
		if c.space(); !c.lit("[") {
			return false
		}
	}
	c.space()
	name := c.name()
	if len(name) == 0 || !c.lit("(") {
		return false
	}
	tool, ok := p.listed.resolve(string(name))
	if !c.short && (!ok || !marked && !p.again && !p.listed.has(tool)) {
		return false
	}
	c.space()
	at := c.i
	if c.next() != ')' {
		if len(c.name()) == 0 {
			return false
		}
		if c.space(); !c.lit("=") {
			return false
		}
	}
	if c.short {
		return false
	}
	c.i = at
	p.beginCall(tool, "")
	p.python.tool, p.python.begun = p.listed.of(tool), false
	p.emit(Arguments, []byte("{"))
	p.state = (*Parser).pythonKey
	return true
}

// literalArguments is the state within arguments in a notation of their own.
func (p *Parser) literalArguments(d []byte, eof bool) (int, bool) {
	n, wait, done := p.readLiteral(d, eof)
	if done {
		p.end(true)
		p.state = (*Parser).after
	}
	return n, wait
}

// readLiteral gives out what has come of a literal. What is none breaks the call. done reports
// that the literal has ended.
func (p *Parser) readLiteral(d []byte, eof bool) (n int, wait, done bool) {
	l := &p.python.literal
	at := len(p.out)
	out, n, ok := l.read(p.out, d, eof)
	p.out = out
	p.emit(Arguments, p.out[at:])
	done = l.place == literalDone
	if !ok || eof && !done {
		more, wait := p.broken(d[n:], eof)
		return n + more, wait, false
	}
	return n, !done, done
}

// pythonKey is the state where a key or the call's end comes.
func (p *Parser) pythonKey(d []byte, eof bool) (int, bool) {
	c := cursor{d: d, eof: eof}
	c.space()
	if c.next() == ')' {
		c.i++
		p.emit(Arguments, []byte("}"))
		p.end(true)
		p.state = (*Parser).pythonNext
		return c.i, false
	}
	key := c.name()
	c.space()
	ok := len(key) > 0 && c.lit("=")
	switch {
	case c.short:
		return 0, true
	case !ok:
		return p.broken(d, eof)
	}
	at := len(p.out)
	if p.python.begun {
		p.out = append(p.out, ',')
	}
	p.out = append(p.out, '"')
	p.out = append(appendEscaped(p.out, key), `":`...)
	p.emit(Arguments, p.out[at:])
	p.python.begun = true
	p.python.literal.reset()
	p.python.literal.class = p.python.tool.classes[string(key)]
	p.state = (*Parser).pythonValue
	return c.i, false
}

// pythonValue is the state within an argument.
func (p *Parser) pythonValue(d []byte, eof bool) (int, bool) {
	n, wait, done := p.readLiteral(d, eof)
	if done {
		p.state = (*Parser).pythonComma
	}
	return n, wait
}

// pythonComma is the state after an argument.
func (p *Parser) pythonComma(d []byte, eof bool) (int, bool) {
	c := cursor{d: d, eof: eof}
	c.space()
	switch b := c.next(); {
	case c.short:
		return 0, true
	case b == ',':
		c.i++
	case b != ')':
		return p.broken(d, eof)
	}
	p.state = (*Parser).pythonKey
	return c.i, false
}

// pythonNext is the state after a call.
func (p *Parser) pythonNext(d []byte, eof bool) (int, bool) {
	c := cursor{d: d, eof: eof}
	c.space()
	switch b := c.next(); {
	case c.short:
		return 0, true
	case b == ',':
		p.state, p.again = (*Parser).opening, true
		return c.i, false
	case b == ']':
		c.i++
		p.state = (*Parser).pythonClose
		return c.i, false
	}
	p.begin(p.span)
	return c.i, false
}

// pythonClose is the state after the list of calls.
func (p *Parser) pythonClose(d []byte, eof bool) (int, bool) {
	c := cursor{d: d, eof: eof}
	c.space()
	if !c.tail(p.tools.sectionEnd) && c.short {
		return 0, true
	}
	p.begin(p.span)
	return c.i, false
}
