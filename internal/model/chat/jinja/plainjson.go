package jinja

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"sync"
	"unicode/utf8"

	"weir/internal/jsonlex"
)

// plainJSON reads JSON in one pass over its bytes. A prompt is nearly all string, and
// jsontext looks at each of its bytes several times. It decides nothing by itself: for
// anything that it does not read, such as what is not JSON, it gives up, and jsontext has
// the last word.
type plainJSON struct {
	names
	src  []byte // what is left
	text []byte // memory for strings with escapes
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
		key, ok := p.str()
		if !ok || !p.takes(':') {
			return nil, false
		}
		name := p.name(key)
		v, ok := p.value(depth + 1)
		if !ok {
			return nil, false
		}
		if obj.put(string(name.(Str)), name, v); p.takes('}') {
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
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	src, from, wide := p.src[1:], 0, uint64(0)
	out := p.text[:0]
	for i := 0; ; {
		// The first byte that is a quote, a backslash or a control character is the lowest one
		// whose high bit is set in stop; those above it may be set wrongly.
		for i+8 <= len(src) {
			w := binary.LittleEndian.Uint64(src[i:])
			quote, slash := w^'"'*ones, w^'\\'*ones
			if stop := ((w - ' '*ones) | (quote - ones) | (slash - ones)) &^ w & highs; stop != 0 {
				n := bits.TrailingZeros64(stop) &^ 7
				wide |= w & (1<<n - 1)
				i += n >> 3
				break
			}
			wide |= w
			i += 8
		}
		for i < len(src) && src[i] != '"' && src[i] != '\\' && src[i] >= ' ' {
			wide |= uint64(src[i])
			i++
		}
		if i == len(src) || src[i] < ' ' {
			return "", false
		}
		if src[i] == '"' {
			p.src = src[i+1:]
			s := src[:i]
			if from > 0 {
				out = append(out, src[from:i]...)
				p.text, s = out, out
			}
			return string(s), wide&highs == 0 || utf8.Valid(s)
		}
		out = append(out, src[from:i]...)
		n := 0
		if out, n = jsonlex.AppendEscape(out, src[i:]); n == 0 {
			return "", false
		}
		i += n
		from = i
	}
}
