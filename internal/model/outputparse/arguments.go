package outputparse

import (
	"unicode/utf16"

	"weir/internal/jsonlex"
)

// arguments is the state at or within arguments that are a JSON value.
func (p *Parser) arguments(d []byte, eof bool) (int, bool) {
	n := 0
	if !p.scan.begun() {
		n = spaces(d)
		if n == len(d) && !eof {
			return n, true
		}
		c := cursor{d: d, i: n, eof: eof}
		none := p.tools.body == jsonBody && c.any(p.tools.callEnd)
		switch {
		case c.short:
			return n, true
		case none:
			p.emit(Arguments, []byte("{}"))
			p.end(true)
			p.state = (*Parser).after
			return n, false
		case n < len(d) && d[n] == '"':
			p.quoted = true
			p.scan.reset()
			p.state = (*Parser).quotedArguments
			return n + 1, false
		}
	}
	taken, ended := p.feed(d[n:])
	n += taken
	switch {
	case ended || eof && !p.wrong && n == len(d) && p.scan.end():
		p.end(true)
		p.state = (*Parser).after
		return n, false
	case p.wrong:
		p.state = (*Parser).raw
		return n, false
	case eof:
		return p.broken(d[n:], eof)
	}
	return n, true
}

// feed gives out arguments that are valid JSON so far. ended: the value is whole;
// with p.wrong the byte after what was taken cannot be.
func (p *Parser) feed(d []byte) (taken int, ended bool) {
	for {
		n, status := p.scan.scan(d[taken:])
		p.emit(Arguments, d[taken:taken+n])
		taken += n
		switch status {
		case jsonControl:
			at := len(p.out)
			p.out = appendEscape(p.out, d[taken])
			p.emit(Arguments, p.out[at:])
			taken++
			continue
		case jsonBad:
			p.wrong = true
		}
		return taken, status == jsonEnded
	}
}

// raw is the state of arguments that are no JSON: all is theirs up to where the
// syntax ends them.
func (p *Parser) raw(d []byte, eof bool) (int, bool) {
	at, length := p.ends.find(d)
	switch {
	case eof && length == 0:
		return p.broken(d, eof)
	case at < 0:
		p.emit(Arguments, d)
		return len(d), true
	case length == 0:
		p.emit(Arguments, d[:at])
		return at, true
	}
	p.emit(Arguments, d[:at])
	p.end(false)
	p.object.closed = true
	p.state = (*Parser).after
	if p.tools.body == jsonBody {
		p.state = (*Parser).between
		return at + length, false
	}
	return at, false
}

// quotedArguments is the state within arguments that are JSON in a JSON string,
// as the API has them and some models write them.
func (p *Parser) quotedArguments(d []byte, eof bool) (int, bool) {
	at, i := len(p.out), 0
	for i < len(d) {
		b := d[i]
		if b == '"' {
			p.unquoted(at)
			valid := !p.wrong && p.scan.end()
			p.end(valid)
			p.state = (*Parser).after
			return i + 1, false
		}
		if b != '\\' {
			p.out = append(p.out, b)
			i++
			continue
		}
		n := p.unescape(d[i:])
		if n == 0 {
			break // the escape goes on
		}
		i += n
	}
	if eof {
		p.out = append(p.out, d[i:]...)
		i = len(d)
	}
	p.unquoted(at)
	if eof {
		p.end(false)
	}
	return i, true
}

// unquoted gives out what was unquoted from at on, and follows it as JSON.
func (p *Parser) unquoted(at int) {
	text := p.out[at:]
	for rest := text; !p.wrong && len(rest) > 0; {
		n, status := p.scan.scan(rest)
		rest = rest[n:]
		p.wrong = status == jsonBad || status == jsonControl || status == jsonEnded && len(rest) > spaces(rest)
		if status != jsonMore {
			break
		}
	}
	p.emit(Arguments, text)
}

// unescape reads an escape at the beginning of d and returns its length, or 0 if it is
// incomplete. A sequence that is not an escape stands for itself.
func (p *Parser) unescape(d []byte) int {
	if len(d) < 2 {
		return 0
	}
	const from, to = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	for i := range len(from) {
		if d[1] == from[i] {
			p.out = append(p.out, to[i])
			return 2
		}
	}
	if d[1] != 'u' {
		p.out, p.wrong = append(p.out, '\\'), true
		return 1
	}
	r, ok := jsonlex.Unit(d)
	switch {
	case !ok && len(d) < 6:
		return 0
	case !ok:
		p.out, p.wrong = append(p.out, '\\'), true
		return 1
	case !utf16.IsSurrogate(r):
		p.out = append(p.out, string(r)...)
		return 6
	}
	low, ok := jsonlex.Unit(d[6:])
	if !ok && len(d) < 12 && (len(d) < 7 || d[6] == '\\') {
		return 0
	}
	if pair := utf16.DecodeRune(r, low); ok && pair != '\uFFFD' {
		p.out = append(p.out, string(pair)...)
		return 12
	}
	// Half a pair is no text; it stays the escape it is.
	p.out, p.wrong = append(p.out, d[:6]...), true
	return 6
}
