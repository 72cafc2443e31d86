package outputparse

import (
	"bytes"
	"strings"
)

// params is a call whose arguments have a tag each.
type params struct {
	tool  *tool      // that is called
	class paramClass // of the value at hand
	begun bool       // an argument has been given out
	whole bool       // the arguments are a JSON object, and no tags
	wrong bool       // a value was begun as JSON and is none, or there was text between values
	stray bool       // the value at hand holds its closing tag
}

// maxScalar bounds the value that is held because it may be a number, a word of JSON or a
// string in quotes. Python's names for them are no longer.
const maxScalar = 64

// beginParams opens a call whose arguments follow.
func (p *Parser) beginParams(name string) {
	p.params = params{tool: p.listed.of(name)}
	p.python.literal.exact = true
	p.state = (*Parser).param
}

// param is the state between arguments: a key's tag or the call's end comes. In place of
// all tags there may be a JSON object.
func (p *Parser) param(d []byte, eof bool) (int, bool) {
	s, v := p.tools, &p.params
	c := cursor{d: d, eof: eof}
	c.space()
	at := c.i
	switch {
	case !v.begun && !v.whole && c.next() == '{':
		v.whole = true
		p.beginFlow()
		return at, false
	case c.short:
	case !v.whole && c.any(s.key):
		if !p.readKey(&c) {
			break
		}
		return c.i, false
	case c.short:
	case c.any(s.callEnd):
		p.endParams()
		return c.i, false
	case c.short:
	case c.any(s.sectionEnd):
		// The call's own end was left out.
		p.endParams()
		return at, false
	}
	if c.short {
		return 0, true
	}
	if eof && begunIn(d[at:], s.callEnd, s.key, s.sectionEnd) {
		d = d[len(d):] // the answer was cut in a tag
	}
	if !v.begun && !v.whole {
		p.emit(Arguments, []byte("{"))
	}
	n, wait := p.broken(d, eof)
	return n, wait
}

// begunIn reports whether a text is a marker of the lists, or the beginning of one.
func begunIn(d []byte, lists ...[]string) bool {
	for _, list := range lists {
		for _, s := range list {
			if len(d) > 0 && strings.HasPrefix(s, string(d)) {
				return true
			}
		}
	}
	return false
}

// endParams ends the call with its tags.
func (p *Parser) endParams() {
	switch {
	case p.params.whole:
	case p.params.begun:
		p.emit(Arguments, []byte("}"))
	default:
		p.emit(Arguments, []byte("{}"))
	}
	p.end(!p.params.wrong)
	p.state = (*Parser).between
}

// readKey reads a key's tag from its name on, and opens the value.
func (p *Parser) readKey(c *cursor) bool {
	s, v := p.tools, &p.params
	key, ok := c.title(s.attributes)
	if !ok {
		return false
	}
	class := v.tool.classes[string(key)]
	if class == untyped && !s.untypedJSON {
		class = stringClass
	}
	closed := false
	switch {
	case s.attributes:
		switch text, ok := c.attribute("string"); {
		case !ok:
		case string(text) == "true":
			class = stringClass
		case string(text) == "false":
			class = jsonClass
		default:
			return false
		}
		if closed, ok = c.tagClosed(); !ok {
			return false
		}
	case !c.lit(s.keyEnd):
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
	if !v.begun && !closed && wraps(string(key), v.tool) {
		at := c.i
		c.space()
		if v.whole = c.next() == '{' && !c.short; v.whole {
			p.beginFlow()
			return true
		}
		c.i = at
	}
	if c.short {
		return false
	}
	at := len(p.out)
	if v.begun {
		p.out = append(p.out, ',')
	} else {
		p.out = append(p.out, '{')
	}
	p.out = append(p.out, '"')
	p.out = append(appendEscaped(p.out, key), `":`...)
	if closed {
		p.out = append(p.out, `""`...)
	}
	p.emit(Arguments, p.out[at:])
	v.class, v.begun, v.stray = class, true, false
	switch {
	case closed:
		p.state = (*Parser).param
	case class == stringClass:
		p.openText()
	default:
		p.state = (*Parser).value
	}
	return true
}

// wraps reports whether a key that the tool does not have stands for all arguments.
func wraps(key string, t *tool) bool {
	return (key == "arguments" || key == "input" || key == "parameters") && t.params != nil && !t.params[key]
}

// openText begins to give the value out as a string.
func (p *Parser) openText() {
	p.state = (*Parser).valueText
	p.emit(Arguments, []byte(`"`))
}

// beginFlow begins to give a value out as JSON, as it comes.
func (p *Parser) beginFlow() {
	p.python.literal.reset()
	p.state = (*Parser).valueFlow
}

// value is the state where a value begins that may be no string.
func (p *Parser) value(d []byte, eof bool) (int, bool) {
	v := &p.params
	if n := spaces(d); n < len(d) && v.class != nullableClass && (d[n] == '[' || d[n] == '{') {
		switch next := n + 1 + spaces(d[n+1:]); {
		case next == len(d) && next <= maxScalar && !eof:
			return 0, true
		case next < len(d) && begins(d[n], d[next]):
			p.beginFlow()
			return n, false
		}
		p.openText()
		return 0, false
	}
	end := p.endOfValue(d, eof)
	// The same decision as if each byte had come alone.
	if end.at > maxScalar || end.wrong || !v.class.mayBe(d[:end.at]) {
		p.openText()
		return 0, false
	}
	switch {
	case end.found:
		p.closeValue(d[:end.at])
		return end.next, false
	case eof:
		p.openText()
		return 0, false
	}
	return 0, true
}

// begins reports whether an array or an object may begin with a bracket and this byte.
func begins(bracket, next byte) bool {
	if next == '"' || next == '\'' || next == bracket+2 {
		return true
	}
	return bracket == '[' && strings.IndexByte("[{(-+.0123456789tfnTFN", next) >= 0
}

// mayBe reports whether a value that begins so may come to be what the class has besides
// text: null, or a number, a word or a string in quotes.
func (c paramClass) mayBe(d []byte) bool {
	d = bytes.TrimLeft(d, " \t\r\n")
	if c == nullableClass {
		const null = "null"
		if len(d) <= len(null) {
			return null[:len(d)] == string(d)
		}
		return string(d[:len(null)]) == null && len(bytes.TrimSpace(d[len(null):])) == 0
	}
	if len(d) == 0 || d[0] == '"' || d[0] == '\'' {
		return true
	}
	n := 0
	for n < len(d) && isWord(d[n]) {
		n++
	}
	return n > 0 && len(bytes.TrimSpace(d[n:])) == 0
}

// valueEnd is where a value ends.
type valueEnd struct {
	at    int  // its text is certain up to there
	found bool // and ends
	next  int  // where what follows begins
	stray bool // it holds a tag that closes values
	wrong bool // which has closed it, before text that belongs to nothing
}

// endOfValue finds the tag that closes a value: one behind which may come what follows a
// value. Another one is text of the value, a stray; if another parameter or the call's end
// comes before the value is closed, the stray tag has closed it. A marker that models write
// nowhere else closes a value whose tag was left out.
func (p *Parser) endOfValue(d []byte, eof bool) valueEnd {
	s, end := p.tools, valueEnd{stray: p.params.stray}
	for from := 0; ; {
		tags := p.ends
		if end.stray {
			tags = p.strays
		}
		at, length := tags.find(d[from:])
		if end.at = from + at; at < 0 {
			end.at = len(d)
			return end
		}
		c := cursor{d: d, i: end.at, eof: eof}
		switch {
		case length == 0:
			return end
		case !c.any(s.tagEnd):
			end.found, end.next, end.wrong = true, end.at, end.stray
			return end
		}
		end.next = c.i
		c.space()
		switch {
		case eof && c.i == len(d), c.tail(s.key), c.tail(s.callEnd), c.tail(s.sectionEnd):
			end.found = true
			return end
		case c.short:
			return end
		}
		from, end.stray = end.next, true
	}
}

// valueText is the state within a value that is a string: it goes out as it comes.
func (p *Parser) valueText(d []byte, eof bool) (int, bool) {
	return p.valueRest(d, eof, true)
}

// valueRaw is the state within a value that was begun as JSON and is none.
func (p *Parser) valueRaw(d []byte, eof bool) (int, bool) {
	return p.valueRest(d, eof, false)
}

func (p *Parser) valueRest(d []byte, eof, text bool) (int, bool) {
	end := p.endOfValue(d, eof)
	if eof && !end.found {
		end.at = len(d)
	}
	p.params.stray, p.params.wrong = end.stray, p.params.wrong || end.wrong
	from := len(p.out)
	if text {
		p.out = appendEscaped(p.out, d[:end.at])
		if end.found {
			p.out = append(p.out, '"')
		}
		p.emit(Arguments, p.out[from:])
	} else {
		p.emit(Arguments, d[:end.at])
	}
	switch {
	case end.found:
		p.state = (*Parser).param
		return end.next, false
	case eof:
		p.end(false)
	}
	return end.at, true
}

// valueFlow is the state within an array or an object. Tags in its strings are text.
func (p *Parser) valueFlow(d []byte, eof bool) (int, bool) {
	l, v := &p.python.literal, &p.params
	at := len(p.out)
	out, n, ok := l.read(p.out, d, eof)
	p.out = out
	p.emit(Arguments, p.out[at:])
	if l.place == literalDone {
		c := cursor{d: d, i: n, eof: eof}
		c.space()
		switch {
		case c.any(p.tools.tagEnd):
			p.state = (*Parser).param
			return c.i, false
		case c.any(p.tools.key) || c.any(p.tools.callEnd): // its tag was left out
			p.state = (*Parser).param
			return n, false
		case v.whole && !c.short:
			p.state = (*Parser).param // the object stood in place of the tags
			return n, false
		case c.short:
			return n, true
		}
		ok = false
	}
	switch {
	case !ok:
		v.wrong = true
		p.state = (*Parser).valueRaw
		return n, false
	case eof:
		return p.broken(d[n:], eof)
	}
	return n, true
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
