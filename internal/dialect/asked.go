package dialect

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"weir/internal/infer"
)

// Asked is the caller's body with fields set and deleted. A relay sends it to an engine
// that must do something else than the caller asked for.
type Asked struct {
	h     *Head
	edits []fieldEdit
}

// fieldEdit gives a field a value, or takes it out where the value is empty.
type fieldEdit struct{ name, value string }

// Ask returns the caller's body, in which nothing has been set or deleted yet.
func (h *Head) Ask() *Asked { return &Asked{h: h} }

// Set gives a field a value, which is JSON. The value stands where the caller's first
// value of the field stood, and the others are removed. A field that the caller has
// not sent is added at the end.
func (a *Asked) Set(name, value string) {
	if i := a.edit(name); i >= 0 {
		a.edits[i].value = value
		return
	}
	if a.edits == nil {
		a.edits = make([]fieldEdit, 0, 8) // for what halves have, and a model's name
	}
	a.edits = append(a.edits, fieldEdit{name, value})
}

// Delete removes a field, every occurrence of it.
func (a *Asked) Delete(name string) { a.Set(name, "") }

func (a *Asked) edit(name string) int {
	return slices.IndexFunc(a.edits, func(e fieldEdit) bool { return e.name == name })
}

// Has reports whether the caller has sent a field.
func (a *Asked) Has(name string) bool {
	return slices.ContainsFunc(a.h.Fields, func(f Span) bool { return f.Name == name })
}

// answerBounds are the fields that bound an answer's length, by the end of a path. Where
// the caller sent none of them, the last is put in.
var answerBounds = []struct {
	path   string
	fields []string
}{
	{"/chat/completions", []string{"max_completion_tokens", "max_tokens"}},
	{"/completions", []string{"max_tokens"}},
	{"/messages", []string{"max_tokens"}},
	{"/responses", []string{"max_output_tokens"}},
}

// FirstID makes the body ask for one answer of one token, not streamed, as a prefill
// engine of vLLM's expects. It returns false and changes nothing at a path whose bodies
// have no known way to ask for that.
func (a *Asked) FirstID(path string) bool {
	for _, b := range answerBounds {
		if !strings.HasSuffix(path, b.path) {
			continue
		}
		for _, name := range []string{"stream", "stream_options", "n", "best_of", "min_tokens"} {
			a.Delete(name)
		}
		last := len(b.fields) - 1
		sent := false
		for i, name := range b.fields {
			if has := a.Has(name); has || i == last && !sent {
				a.Set(name, "1")
				sent = true
			}
		}
		return true
	}
	return false
}

// Meet makes the body that of one half of a pair of SGLang's engines, which find each other
// by the bootstrap fields. The prefill half is not streamed, so that its failure is a
// status. Its engine generates one token whatever the body asks for.
func (a *Asked) Meet(role infer.Role, b infer.Bootstrap) {
	a.Set("bootstrap_host", string(AppendString(nil, b.Host)))
	a.Set("bootstrap_port", strconv.Itoa(b.Port))
	a.Set("bootstrap_room", strconv.FormatInt(b.Room, 10))
	if role == infer.RolePrefill {
		a.Delete("stream")
		a.Delete("stream_options")
	}
}

// Splice returns the body with the model's name replaced, as Head.Splice does. Fields
// that were not touched keep every byte.
func (a *Asked) Splice(model string) []byte {
	body := a.h.Body
	edited := *a
	edited.edits = slices.Clip(a.edits)
	if model != a.h.Model {
		edited.Set("model", string(AppendString(nil, model)))
	}
	grow := 0
	for _, e := range edited.edits {
		grow += len(e.name) + len(e.value) + 4
	}
	out := make([]byte, 0, len(body)+grow)
	begin := bytes.IndexByte(body, '{') + 1
	out = append(out, body[:begin]...)
	tail := begin // of what stands behind the last field
	there := make([]bool, len(edited.edits))
	some := false
	for i, f := range a.h.Fields {
		// A field is what stands between two commas.
		end, comma := f.End, SkipSpace(body, f.End)
		if i < len(a.h.Fields)-1 {
			end = comma
		}
		from, k := begin, edited.edit(f.Name)
		begin, tail = comma+1, f.End
		if k >= 0 && (there[k] || edited.edits[k].value == "") {
			continue
		}
		if some {
			out = append(out, ',')
		}
		some = true
		if k < 0 {
			out = append(out, body[from:end]...)
			continue
		}
		there[k] = true
		out = append(append(out, body[from:f.Start]...), edited.edits[k].value...)
		out = append(out, body[f.End:end]...)
	}
	for k, e := range edited.edits {
		if there[k] || e.value == "" {
			continue
		}
		if some {
			out = append(out, ',')
		}
		some = true
		out = append(append(AppendString(out, e.name), ':'), e.value...)
	}
	return append(out, body[tail:]...)
}
