package api

import "weir/internal/infer"

// Verifiable is an Endpoint whose streams can be verified on some relayed engines: weir
// asks the engine for the ids of the output and for its count of them, holds one against
// the other, and takes out of the stream what the caller did not ask for.
type Verifiable interface {
	Endpoint
	// Verify gives the verifier of the request's stream, and the body that makes the
	// engine say what it needs, made of body, whose fields stand where h says. With why,
	// a word, the stream cannot be verified, and the body goes as it is.
	Verify(h *Head, engine infer.Verify) (body *Asked, v Verifier, why string)
}

// Asked is a body with fields put in.
type Asked struct {
	h     *Head
	edits []fieldEdit
}

// fieldEdit puts a value in place of that of a field, or adds the field.
type fieldEdit struct {
	at    int // index in Head.Fields, -1: it is not there
	name  string
	value string
}

// Ask begins a body that is the caller's until something is set.
func (h *Head) Ask() *Asked { return &Asked{h: h} }

// Set gives a field a value, which is JSON. It is called once for a field, which does
// not stand twice in the body.
func (a *Asked) Set(name, value string) {
	at := -1
	for i := range a.h.Fields {
		if a.h.Fields[i].Name == name {
			at = i
		}
	}
	a.edits = append(a.edits, fieldEdit{at, name, value})
}

// Splice is Head.Splice of the body that was asked for.
func (a *Asked) Splice(model string) []byte {
	edits := a.edits
	if model != a.h.Model {
		edits = append(edits[:len(edits):len(edits)], fieldEdit{at: a.h.model, value: string(AppendString(nil, model))})
	}
	body := a.h.Body
	grow := 0
	for i := range edits {
		grow += len(edits[i].name) + len(edits[i].value) + 4
	}
	out := make([]byte, 0, len(body)+grow)
	from := 0
	for i, f := range a.h.Fields {
		for _, e := range edits {
			if e.at == i {
				out = append(append(out, body[from:f.Start]...), e.value...)
				from = f.End
			}
		}
	}
	// Fields that are not there come behind the last one: there is one, the model.
	last := a.h.Fields[len(a.h.Fields)-1].End
	out = append(out, body[from:last]...)
	for _, e := range edits {
		if e.at < 0 {
			out = append(out, ',')
			out = AppendString(out, e.name)
			out = append(append(out, ':'), e.value...)
		}
	}
	return append(out, body[last:]...)
}

// Verifier verifies a stream. It is shown what an Inspector found in order, and is used
// by one goroutine, not again after an error.
type Verifier interface {
	// Events appends to dst what the caller gets of a region. good and err are as an
	// Inspector's. It may hold back an event until the next.
	Events(dst, region []byte) (out []byte, good int, err error)
	// Rest appends what was held back, at the stream's end.
	Rest(dst []byte) []byte
	// Verified says of a stream that has ended whether its ids were as many as the engine
	// counted; why it is not known otherwise, in a word.
	Verified() (ok bool, why string)
	// Usage gives the counts that the engine stated, of all choices.
	Usage() (infer.Usage, bool)
}
