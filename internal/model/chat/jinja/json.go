package jinja

import (
	"bytes"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// DecodeJSON reads one JSON value as Python's json.loads does: dictionaries
// keep the order of their keys, and the last of two equal keys wins in the
// first one's place; integers are exact; numbers with a point or an exponent
// are floats.
func DecodeJSON(raw []byte) (Value, error) {
	p := plainJSON{src: raw}
	if v, ok := p.read(); ok {
		return v, nil
	}
	return decodeJSON(raw)
}

// decodeJSON is DecodeJSON by jsontext, whose errors say what is wrong.
func decodeJSON(raw []byte) (Value, error) {
	d := &jsonDecoder{dec: decoders.Get().(*jsontext.Decoder)}
	d.dec.Reset(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	defer func() {
		d.dec.Reset(new(bytes.Buffer)) // raw need not live
		decoders.Put(d.dec)
	}()
	v, err := d.value(0)
	if err != nil {
		return nil, fmt.Errorf("decode JSON: %w", err)
	}
	if _, err := d.dec.ReadToken(); err == nil {
		return nil, fmt.Errorf("decode JSON: more than one value")
	}
	return v, nil
}

// decoders are *jsontext.Decoder, which allocate much when they are made: each message of a
// prompt is decoded by one.
var decoders = sync.Pool{New: func() any { return jsontext.NewDecoder(new(bytes.Buffer)) }}

// jsonDecoder builds values.
type jsonDecoder struct {
	names
	dec *jsontext.Decoder
}

// names are those of dictionaries. They are few and recur, so each is kept once.
type names map[string]Value

func (d *jsonDecoder) value(depth int) (Value, error) {
	if depth > maxValueDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxValueDepth)
	}
	tok, err := d.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch tok.Kind() {
	case jsontext.KindNull:
		return None, nil
	case jsontext.KindTrue, jsontext.KindFalse:
		return Bool(tok.Bool()), nil
	case jsontext.KindString:
		return Str(tok.String()), nil
	case jsontext.KindNumber:
		return jsonNumber(tok.String())
	case jsontext.KindBeginArray:
		l := &List{}
		for d.dec.PeekKind() != jsontext.KindEndArray {
			v, err := d.value(depth + 1)
			if err != nil {
				return nil, err
			}
			l.Items = append(l.Items, v)
		}
		_, err := d.dec.ReadToken()
		return l, err
	}
	obj := NewDict(4)
	for d.dec.PeekKind() != jsontext.KindEndObject {
		tok, err := d.dec.ReadToken()
		if err != nil {
			return nil, err
		}
		name := d.name([]byte(tok.String()))
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		obj.putName(string(name.(Str)), name, v)
	}
	_, err = d.dec.ReadToken()
	return obj, err
}

// commonNames are those of nearly all conversations.
var commonNames = func() names {
	n := names{}
	for _, s := range []string{"role", "content", "type", "text", "name", "function", "arguments", "parameters", "description", "properties", "required", "tool_calls", "tool_call_id", "id"} {
		n[s] = Str(s)
	}
	return n
}()

func (n *names) name(s []byte) Value {
	if v, ok := commonNames[string(s)]; ok {
		return v
	}
	if v, ok := (*n)[string(s)]; ok {
		return v
	}
	if *n == nil {
		*n = names{}
	}
	v := Str(s)
	(*n)[string(v)] = v
	return v
}

func jsonNumber(s string) (Value, error) {
	if strings.ContainsAny(s, ".eE") {
		// A range error leaves the infinity or zero that Python reads too.
		f, _ := strconv.ParseFloat(s, 64)
		return Float(f), nil
	}
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return Int(n), nil
	}
	if len(strings.TrimPrefix(s, "-")) > maxIntDigits {
		return nil, fmt.Errorf("an integer of more than %d digits", maxIntDigits)
	}
	b, ok := new(big.Int).SetString(s, 10)
	if !ok {
		return nil, fmt.Errorf("%q is not a number", s)
	}
	return &Big{b}, nil
}
