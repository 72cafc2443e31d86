package openai

import (
	"bytes"
	"errors"
	"io"
	"math"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// maxFields bounds the top-level fields of a body, so that a body of nothing
// but tiny fields does not grow many times its size in spans.
const maxFields = 1024

// Span is a top-level field: Name, and where its value stands in the body.
type Span struct {
	Name       string
	Start, End int
}

// Head is what the gateway knows of a body before it knows the engine. It
// refers to the body, which must stay unchanged.
type Head struct {
	Endpoint Endpoint
	Body     []byte
	// Fields are the top-level fields in the order they came.
	Fields []Span
	// Model is the name the caller gave. Never empty.
	Model string
	// Stream says that the caller wants chunks.
	Stream bool
	// N is the number of choices asked for, 1 when the caller did not say. It
	// is 1 for endpoints other than chat and completions.
	N int
	// IncludeUsage says that the caller wants usage at the end of a stream.
	IncludeUsage bool

	model     int    // index of "model" in Fields
	duplicate string // a known field that came twice, for Request to refuse
}

// ParseHead passes over a body once. Its error is an *infer.Error that names
// the field, or the line and column where the body stops being JSON.
func ParseHead(body []byte, endpoint Endpoint) (*Head, error) {
	if at := invalidUTF8(body); at >= 0 {
		return nil, syntaxAt(body, at, "byte 0x%02X is not UTF-8", body[at])
	}
	h := &Head{Endpoint: endpoint, Body: body, N: 1, model: -1, Fields: make([]Span, 0, 16)}
	dec := lenient(body)
	switch kind := dec.PeekKind(); kind {
	case '{':
	case jsontext.KindInvalid:
		_, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			return nil, infer.Errorf(infer.CodeInvalid, "the body is empty; send a JSON object")
		}
		return nil, syntaxError(body, err)
	default:
		return nil, infer.Errorf(infer.CodeInvalid, "the body must be a JSON object, found %s", found([]byte{byte(kind)}))
	}
	if err := h.scan(dec); err != nil {
		return nil, err
	}
	if h.model < 0 {
		return nil, infer.Invalid("model", "model is required: name the model to use")
	}
	return h, nil
}

// scan walks the object that dec stands before, to the end of the body.
func (h *Head) scan(dec *jsontext.Decoder) error {
	if _, err := dec.ReadToken(); err != nil {
		return syntaxError(h.Body, err)
	}
	known := tables[h.Endpoint]
	var seen [maxKnown]bool
	for {
		if kind := dec.PeekKind(); kind == '}' {
			break
		}
		raw, err := dec.ReadValue()
		if err != nil {
			return nameError(h.Body, len(h.Fields) == 0, err)
		}
		var name string
		word := spelled(raw)
		i, isKnown := known[string(word)]
		if isKnown {
			name = fields[i].Name
		} else {
			name = string(word)
		}
		value, err := dec.ReadValue()
		if err != nil {
			return syntaxError(h.Body, err)
		}
		if len(h.Fields) == maxFields {
			return infer.Errorf(infer.CodeInvalid, "the body has more than %d fields", maxFields)
		}
		end := int(dec.InputOffset())
		h.Fields = append(h.Fields, Span{Name: name, Start: end - len(value), End: end})
		if isKnown {
			if seen[i] {
				if steers(name) {
					return infer.Invalid(name, "%s is given twice; give it once", name)
				}
				h.duplicate = name
			}
			seen[i] = true
		}
		if err := h.take(name, value); err != nil {
			return err
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return syntaxError(h.Body, err)
	}
	end := int(dec.InputOffset())
	rest := bytes.TrimLeft(h.Body[end:], " \t\r\n")
	if len(rest) > 0 {
		r, _ := utf8.DecodeRune(rest)
		return syntaxAt(h.Body, len(h.Body)-len(rest), "invalid character %q after the object (expecting the end of the body)", r)
	}
	return nil
}

// steers says whether weir itself acts on a field, for relays too: such a
// field must not be open to two readings.
func steers(name string) bool {
	switch name {
	case "model", "stream", "n", "stream_options":
		return true
	}
	return false
}

// take reads the fields that steer the gateway. Endpoints that weir does not
// know may mean something else by all but the model.
func (h *Head) take(name string, value []byte) (err error) {
	if name == "model" {
		h.model = len(h.Fields) - 1
		h.Model, err = stringOf(name, value)
		if err == nil && h.Model == "" {
			return infer.Invalid(name, "model is empty: name the model to use")
		}
		return err
	}
	if h.Endpoint.Tokenizes() {
		return nil
	}
	if h.Endpoint == Other {
		if name == "stream" {
			h.Stream = kindOf(value) == 't'
		}
		return nil
	}
	if kindOf(value) == 'n' {
		return nil
	}
	switch name {
	case "stream":
		h.Stream, err = boolOf(name, value)
	case "n":
		var n int64
		n, err = intOf(name, value, 1, math.MaxInt32)
		h.N = int(n)
	case "stream_options":
		if kindOf(value) != '{' {
			return wrongType(name, "an object", value)
		}
		return eachMember(value, func(option string, value []byte) (err error) {
			if option == "include_usage" && kindOf(value) != 'n' {
				h.IncludeUsage, err = boolOf("stream_options.include_usage", value)
			}
			return err
		})
	}
	return err
}

// Splice gives the body with model in place of the caller's name and every
// other byte as it came. The body itself is not changed.
func (h *Head) Splice(model string) []byte {
	if model == h.Model {
		return h.Body
	}
	at := h.Fields[h.model]
	out := make([]byte, 0, len(h.Body)+len(model)+2)
	out = append(out, h.Body[:at.Start]...)
	out = appendString(out, model)
	return append(out, h.Body[at.End:]...)
}
