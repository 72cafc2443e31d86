package dialect

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// MaxFields bounds the number of top-level fields of a body. Without it the spans of
// a body of tiny fields would take many times its size.
const MaxFields = 1024

// Span is a top-level field: its name and the position of its value in the body.
type Span struct {
	Name       string
	Start, End int
}

// Head is what the gateway reads of a body before it has chosen an engine. It refers
// to the body, which must not change.
type Head struct {
	Body []byte
	// Fields are the top-level fields in the order of the body.
	Fields []Span
	// Model is the model's name as the caller wrote it, empty if there is none.
	Model string
	// Stream is set if the caller wants a stream of events.
	Stream bool
	// RequestID is the request's id in the caller's body, empty if there is none.
	RequestID string
	// N is the number of choices that the caller wants, 1 by default.
	N int
	// Lax is set if fields that are in no table are passed over instead of refused.
	Lax bool

	strict    bool   // every value is known to keep the strict rules
	model     int    // index of "model" in Fields
	duplicate string // a known field that came twice
}

// Names holds the top-level fields that an endpoint knows, by name.
type Names map[string]Name

// Name is a known field: its spelling, and an index below MaxNames that no other has.
type Name struct {
	Word  string
	Index int
}

// fewFields is how many top-level fields most bodies have at most.
const fewFields = 8

// MaxNames is the largest number of names that an endpoint may have.
const MaxNames = 128

// NewNames returns a set of names, numbered from 0.
func NewNames(words ...string) Names {
	names := make(Names, len(words))
	for i, word := range words {
		names[word] = Name{word, i}
	}
	return names
}

// ParseHead reads a body in one pass. The body must be one JSON object in UTF-8. take
// is called with every field and reads those that steer the gateway besides the
// model's name. A known field that occurs twice is refused here if weir acts on it
// for relays too, and by Unambiguous otherwise.
func ParseHead(body []byte, known Names, take func(h *Head, name string, value []byte) error) (*Head, error) {
	if at := InvalidUTF8(body); at >= 0 {
		return nil, SyntaxAt(body, at, "byte 0x%02X is not UTF-8", body[at])
	}
	h := &Head{Body: body, N: 1, model: -1, Fields: make([]Span, 0, fewFields)}
	if read, err := h.scanPlain(known, take); err != nil {
		return nil, err
	} else if read {
		return h, nil
	}
	*h = Head{Body: body, N: 1, model: -1, Fields: h.Fields[:0]}
	if err := h.slowly(known, take); err != nil {
		return nil, err
	}
	return h, nil
}

// slowly reads the body by jsontext.
func (h *Head) slowly(known Names, take func(h *Head, name string, value []byte) error) error {
	dec := Lenient(h.Body)
	defer dec.Release()
	switch kind := dec.PeekKind(); kind {
	case '{':
		return h.scan(dec, known, take)
	case jsontext.KindInvalid:
		_, err := dec.ReadToken()
		if errors.Is(err, io.EOF) {
			return infer.Errorf(infer.CodeInvalid, "the body is empty; send a JSON object")
		}
		return SyntaxError(h.Body, err)
	default:
		return infer.Errorf(infer.CodeInvalid, "the body must be a JSON object, found %s", Found([]byte{byte(kind)}))
	}
}

// scan walks the object that dec stands before, to the end of the body.
func (h *Head) scan(dec *Decoder, known Names, take func(h *Head, name string, value []byte) error) error {
	if _, err := dec.ReadToken(); err != nil {
		return SyntaxError(h.Body, err)
	}
	var seen [MaxNames]bool
	for dec.PeekKind() != '}' {
		raw, err := dec.ReadValue()
		if err != nil {
			return NameError(h.Body, len(h.Fields) == 0, err)
		}
		value, err := dec.ReadValue()
		if err != nil {
			return SyntaxError(h.Body, err)
		}
		end := int(dec.InputOffset())
		if err := h.field(raw, end-len(value), end, known, &seen, take); err != nil {
			return err
		}
	}
	if _, err := dec.ReadToken(); err != nil {
		return SyntaxError(h.Body, err)
	}
	end := int(dec.InputOffset())
	rest := bytes.TrimLeft(h.Body[end:], " \t\r\n")
	if len(rest) > 0 {
		r, _ := utf8.DecodeRune(rest)
		return SyntaxAt(h.Body, len(h.Body)-len(rest), "invalid character %q after the object (expecting the end of the body)", r)
	}
	return nil
}

// scanPlain walks the body in one pass over its bytes. read is false if it is not an object that
// a [shape] reads. Then slowly begins anew.
func (h *Head) scanPlain(known Names, take func(h *Head, name string, value []byte) error) (read bool, err error) {
	var names shapeNames
	s := shape{b: h.Body, names: &names}
	i, c := s.next(0)
	if c != '{' {
		return false, nil
	}
	var seen [MaxNames]bool
	end, err := s.object(i, 0, func(name, nameEnd, from, to int) error {
		return h.field(h.Body[name:nameEnd], from, to, known, &seen, take)
	})
	if end < 0 {
		return err != nil, err
	}
	h.strict = !s.loose
	i, _ = s.next(end)
	return i == len(s.b), nil
}

// field takes note of a field whose name is spelled as raw, and whose value is Body[start:end].
func (h *Head) field(raw []byte, start, end int, known Names, seen *[MaxNames]bool, take func(h *Head, name string, value []byte) error) error {
	word := Spelled(raw)
	entry, isKnown := known[string(word)]
	name := entry.Word
	if !isKnown {
		name = string(word)
	}
	if len(h.Fields) == MaxFields {
		return infer.Errorf(infer.CodeInvalid, "the body has more than %d fields", MaxFields)
	}
	value := h.Body[start:end]
	h.Fields = append(h.Fields, Span{Name: name, Start: start, End: end})
	if isKnown {
		if seen[entry.Index] {
			if Steers(name) {
				return infer.Invalid(name, "%s is given twice; give it once", name)
			}
			h.duplicate = name
		}
		seen[entry.Index] = true
	}
	if name == "model" && isKnown {
		if err := h.takeModel(value); err != nil {
			return err
		}
	}
	return take(h, name, value)
}

// Steers reports whether weir itself acts on a field, for relays too. Such a field
// must occur once, so that weir and the engine cannot read different values.
func Steers(name string) bool {
	switch name {
	case "model", "stream", "n", "stream_options":
		return true
	}
	return false
}

func (h *Head) takeModel(value []byte) (err error) {
	h.model = len(h.Fields) - 1
	h.Model, err = StringOf("model", value)
	if err == nil && h.Model == "" {
		return infer.Invalid("model", "model is empty: name the model to use")
	}
	return err
}

// Omit returns the head without the i-th field, for code that reads fields. The body still
// has the field, so neither Splice nor Ask may be called on the result.
func (h *Head) Omit(i int) *Head {
	without := *h
	without.Fields = slices.Delete(slices.Clone(h.Fields), i, i+1)
	return &without
}

// NeedModel returns an error if the body names no model.
func (h *Head) NeedModel() error {
	if h.model < 0 {
		return infer.Invalid("model", "model is required: name the model to use")
	}
	return nil
}

// Unambiguous returns an error if a known field occurs twice.
func (h *Head) Unambiguous() error {
	if h.duplicate != "" {
		return infer.Invalid(h.duplicate, "%s is given twice; give it once", h.duplicate)
	}
	return nil
}

// Splice returns the body with model in place of the caller's name and every other
// byte unchanged. The body itself is not modified.
func (h *Head) Splice(model string) []byte {
	if model == h.Model {
		return h.Body
	}
	at := h.Fields[h.model]
	out := make([]byte, 0, len(h.Body)+len(model)+2)
	out = append(out, h.Body[:at.Start]...)
	out = AppendString(out, model)
	return append(out, h.Body[at.End:]...)
}
