package content

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// value is a JSON value whose objects keep the order of their names.
type value struct {
	kind    jsontext.Kind // of its first byte: 'n', 't', 'f', '"', '0', '{', '['
	raw     []byte        // without white space
	members []member      // of an object
	items   []value       // of an array
}

type member struct {
	name  string
	value value
}

// get returns an object's member.
func (v *value) get(name string) (value, bool) {
	for i := range v.members {
		if v.members[i].name == name {
			return v.members[i].value, true
		}
	}
	return value{}, false
}

// text returns a string's value.
func (v *value) text() string {
	b, err := jsontext.AppendUnquote(nil, v.raw)
	if err != nil {
		panic("content: " + err.Error()) // parse has checked it
	}
	return string(b)
}

// canonical returns a text that equal values share: 1.0 and 1, and objects
// whatever the order of their names.
func (v *value) canonical() string {
	raw := jsontext.Value(bytes.Clone(v.raw))
	if err := raw.Canonicalize(); err != nil {
		panic("content: " + err.Error()) // parse has checked it
	}
	return string(raw)
}

// maxValueDepth bounds the nesting of values.
const maxValueDepth = 200

// parseValue reads one JSON document; a name given twice is an error.
func parseValue(raw []byte) (value, error) {
	d := jsontext.NewDecoder(bytes.NewReader(raw))
	v, err := readValue(d, 0)
	if err != nil {
		return value{}, err
	}
	if rest := bytes.TrimLeft(raw[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return value{}, fmt.Errorf("more follows the JSON value at byte %d", len(raw)-len(rest))
	}
	return v, nil
}

func readValue(d *jsontext.Decoder, depth int) (value, error) {
	if depth > maxValueDepth {
		return value{}, fmt.Errorf("nested deeper than %d", maxValueDepth)
	}
	switch d.PeekKind() {
	case '{', '[':
	default:
		raw, err := d.ReadValue()
		if err != nil {
			return value{}, err
		}
		return value{kind: raw.Kind(), raw: bytes.Clone(raw)}, nil
	}
	open, err := d.ReadToken()
	if err != nil {
		return value{}, err
	}
	v := value{kind: open.Kind()}
	v.raw = append(v.raw, byte(v.kind))
	for d.PeekKind() != '}' && d.PeekKind() != ']' {
		if len(v.raw) > 1 {
			v.raw = append(v.raw, ',')
		}
		var name string
		if v.kind == '{' {
			token, err := d.ReadToken()
			if err != nil {
				return value{}, err
			}
			name = token.String()
			v.raw = append(appendQuoted(v.raw, name), ':')
		}
		item, err := readValue(d, depth+1)
		if err != nil {
			return value{}, err
		}
		v.raw = append(v.raw, item.raw...)
		if v.kind == '{' {
			v.members = append(v.members, member{name, item})
		} else {
			v.items = append(v.items, item)
		}
	}
	end, err := d.ReadToken()
	if err != nil {
		return value{}, err
	}
	v.raw = append(v.raw, byte(end.Kind()))
	return v, nil
}

// appendQuoted appends s as a JSON string; invalid UTF-8 becomes U+FFFD.
func appendQuoted(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, strings.ToValidUTF8(s, "\ufffd"))
	return b
}

func quoted(s string) string { return string(appendQuoted(nil, s)) }
