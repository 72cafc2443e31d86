package jinja

import (
	"bytes"
	"sync"

	"weir/internal/jsonlex"
)

// plainJSON reads JSON in one pass over its bytes. A prompt is nearly all string, and
// jsontext looks at each of its bytes several times. It decides nothing by itself: for
// anything that it does not read, such as what is not JSON, it gives up, and jsontext has
// the last word.
type plainJSON struct {
	names
	src  []byte // what is left
	text []byte // memory for a string
}

// texts are spare memory for plainJSON, of at most maxText bytes.
var texts = sync.Pool{New: func() any { return new([]byte) }}

const maxText = 1 << 20

// read reads one value with nothing behind it.
func (p *plainJSON) read() (Value, bool) {
	spare := texts.Get().(*[]byte)
	p.text = *spare
	v, ok := p.value(0)
	if cap(p.text) <= maxText {
		*spare = p.text[:0]
		texts.Put(spare)
	}
	p.text = nil
	return v, ok && p.space() == 0 && len(p.src) == 0
}

// space passes over white space, and returns the byte behind it; 0 at the end.
func (p *plainJSON) space() byte {
	for i, c := range p.src {
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			p.src = p.src[i:]
			return c
		}
	}
	p.src = nil
	return 0
}

// takes passes over a byte behind white space, if it is next.
func (p *plainJSON) takes(c byte) bool {
	if p.space() != c {
		return false
	}
	p.src = p.src[1:]
	return true
}

func (p *plainJSON) value(depth int) (Value, bool) {
	if depth > maxValueDepth {
		return nil, false
	}
	switch c := p.space(); c {
	case '"':
		s, ok := p.str()
		return Str(s), ok
	case '{':
		p.src = p.src[1:]
		return p.object(depth)
	case '[':
		p.src = p.src[1:]
		return p.array(depth)
	case 'n':
		return None, p.word("null")
	case 't':
		return Bool(true), p.word("true")
	case 'f':
		return Bool(false), p.word("false")
	}
	return p.number()
}

func (p *plainJSON) word(w string) bool {
	rest, ok := bytes.CutPrefix(p.src, []byte(w))
	p.src = rest
	return ok
}

func (p *plainJSON) array(depth int) (Value, bool) {
	l := &List{}
	if p.takes(']') {
		return l, true
	}
	for {
		v, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		if l.Items = append(l.Items, v); p.takes(']') {
			return l, true
		}
		if !p.takes(',') {
			return nil, false
		}
	}
}

func (p *plainJSON) object(depth int) (Value, bool) {
	obj := NewDict(4)
	if p.takes('}') {
		return obj, true
	}
	for {
		if p.space() != '"' {
			return nil, false
		}
		key, ok := p.bytes()
		if !ok {
			return nil, false
		}
		name := p.name(key)
		if !p.takes(':') {
			return nil, false
		}
		v, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		if obj.putName(string(name.(Str)), name, v); p.takes('}') {
			return obj, true
		}
		if !p.takes(',') {
			return nil, false
		}
	}
}

func (p *plainJSON) number() (Value, bool) {
	n := jsonlex.Number(p.src)
	if n == 0 {
		return nil, false
	}
	v, err := jsonNumber(string(p.src[:n]))
	p.src = p.src[n:]
	return v, err == nil
}

// str reads a string, which is next.
func (p *plainJSON) str() (string, bool) {
	text, ok := p.bytes()
	return string(text), ok
}

// bytes reads a string, which is next. It is valid until the next string.
func (p *plainJSON) bytes() ([]byte, bool) {
	text, end, ok := jsonlex.AppendString(p.text[:0], p.src, 1)
	p.text = text
	p.src = p.src[end:]
	return text, ok
}
