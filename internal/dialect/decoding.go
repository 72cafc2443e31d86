package dialect

import (
	"fmt"
	"slices"
	"strings"

	"weir/internal/infer"
)

// Decoding is a request while a dialect reads its fields, one after the other. Each
// dialect wraps it in a type that holds what the dialect needs besides.
type Decoding struct {
	Request
	// Path is the endpoint's path. Kind is the kind of the engines for which the
	// request is decoded, empty if the gateway itself answers.
	Path, Kind string
	// Carries is the set of what those engines support.
	Carries infer.Carries
	// Declared are the tools of the request. NoTools forbids calls of any of them.
	Declared []Tool
	NoTools  bool

	lax      bool   // Head.Lax
	strict   bool   // Head.strict
	guidedBy string // the field that said what the output must match
	format   string // its row of the table, where it is the text of the answer that must
}

// NewDecoding returns a Decoding that has what the head of the body states.
func NewDecoding(e Endpoint, h *Head, kind string, carries infer.Carries, names *FieldNames) Decoding {
	return Decoding{
		Request: Request{Model: h.Model, Stream: h.Stream, Fields: names},
		Path:    e.String(), Kind: kind, Carries: carries, lax: h.Lax, strict: h.strict,
	}
}

// CheckStrict applies the strict rules to a value that is a part of the body.
func (d *Decoding) CheckStrict(field string, raw []byte) error {
	if d.strict {
		return nil
	}
	return CheckStrict(field, raw)
}

// Carrier names the receiver of the fields, an engine's kind or the endpoint, as
// refusals name it.
func (d *Decoding) Carrier() string {
	if d.Kind == "" {
		return d.Path
	}
	return fmt.Sprintf("engine kind %q", d.Kind)
}

// Unsupported returns the error of a field, or of a part of one, that cannot be
// carried. It names the defaults, which may be sent.
func (d *Decoding) Unsupported(path string, defaults ...string) error {
	return Unsupported(path, d.Carrier(), defaults)
}

// Lacking is Unsupported for a field that engines which support needs could carry.
func (d *Decoding) Lacking(needs infer.Carries, path string, defaults ...string) error {
	err := Unsupported(path, d.Carrier(), defaults)
	err.Lacks = needs &^ d.Carries
	return err
}

// SetGuide sets what the output must match. It fails if another field has set it
// already.
func (d *Decoding) SetGuide(path string, g infer.Guide) error {
	if d.Guide != nil {
		return infer.Invalid(path, "%s and %s both constrain the output; give one of them", d.guidedBy, path)
	}
	if n := g.Size(); n > MaxGuide {
		return infer.Invalid(path, "%s asks for output that matches %d bytes of schema, expression or grammar; it may have %d: make it smaller", path, n, MaxGuide)
	}
	d.Guide, d.guidedBy = &g, path
	return nil
}

// Guided sets what the output must match, as SetGuide does, and fails if the engines
// do not support that kind of guide.
func (d *Decoding) Guided(path string, g infer.Guide) error {
	if d.Carries&g.Kind.Needs() == 0 {
		return d.Lacking(g.Kind.Needs(), path)
	}
	return d.SetGuide(path, g)
}

// Schema is Guided with a JSON schema.
func (d *Decoding) Schema(path, schema string) error {
	return d.Guided(path, infer.Guide{Kind: infer.GuideJSONSchema, Text: schema})
}

// SchemaValue is Schema for the value of a field: a JSON schema, as an object or as a
// string that holds one.
func (d *Decoding) SchemaValue(path string, raw []byte) error {
	text, err := SchemaOf(path, raw)
	if err != nil {
		return err
	}
	return d.Schema(path, text)
}

// Format is Schema for a field that describes the format of the answer's text. A forced
// call takes precedence over it (FinishTools), as in vLLM.
func (d *Decoding) Format(field, path, schema string) error {
	if d.Guide == nil {
		d.format = field
	}
	return d.Schema(path, schema)
}

// LeaveOutTool records a tool that no engine runs by itself and that is left out. field
// is the tool's row of the table, name the one by which a tool_choice would force it.
func (d *Decoding) LeaveOutTool(field, name string) {
	d.Ignore(field)
	if l := d.LeftOut; len(l.Tools) < maxPassed {
		l.Tools = append(l.Tools, Clip(name, 64))
	}
}

// ForcesLeftOut returns the error of a tool_choice whose member at path names a tool
// that was left out, and nil if it names another.
func (d *Decoding) ForcesLeftOut(path, name string) error {
	if d.LeftOut == nil || !slices.Contains(d.LeftOut.Tools, Clip(name, 64)) {
		return nil
	}
	return &infer.Error{Code: infer.CodeUnsupported, Param: path,
		Message: fmt.Sprintf("%s is %q, a tool that %s cannot run; name another, or send auto", path, Clip(name, 64), d.Carrier())}
}

// TextGuide is Guided for a field that holds a text in the language of the kind.
func (d *Decoding) TextGuide(path string, kind infer.GuideKind, raw []byte) error {
	text, err := StringOf(path, raw)
	if err == nil && text == "" {
		err = infer.Invalid(path, "%s is empty; leave it out", path)
	}
	if err != nil {
		return err
	}
	return d.Guided(path, infer.Guide{Kind: kind, Text: text})
}

// FinishTools checks tool_choice against the tools. A tool_choice that demands a call
// becomes a guide of the output, because nothing else makes a model call a tool. An
// engine without guides gets no such request: the request is refused.
//
// named is the path at which the caller names the tool that must be called. continued is
// why the last message is continued, empty if it is not. strict is the table's row by which
// a tool demands that calls keep to its schema, which only forced calls do.
func (d *Decoding) FinishTools(named, continued, strict string) error {
	const field = "tool_choice"
	switch {
	case d.NoTools:
		d.Tools = nil
		return nil
	case !d.ForcedAny && d.ForcedTool == "":
		if slices.ContainsFunc(d.Declared, func(t Tool) bool { return t.Strict }) {
			d.Ignore(strict)
		}
		return nil
	case d.Carries&infer.CarriesJSONSchema == 0:
		return &infer.Error{Code: infer.CodeUnsupported, Param: field, Lacks: infer.CarriesJSONSchema,
			Message: fmt.Sprintf("tool_choice: that a tool is called cannot be forced on %s; send \"auto\", or \"none\"", d.Carrier())}
	case d.Tools == nil && d.LeftOut != nil && len(d.LeftOut.Tools) > 0:
		return &infer.Error{Code: infer.CodeUnsupported, Param: field,
			Message: fmt.Sprintf("tool_choice wants a tool to be called, and %s runs none of those in tools (%s); send auto, or tools of your own", d.Carrier(), strings.Join(d.LeftOut.Tools[:min(len(d.LeftOut.Tools), 8)], ", "))}
	case d.Tools == nil:
		return infer.Invalid(field, "tool_choice requires a tool call, but tools is empty")
	case d.ContinueFinalMessage:
		return infer.Invalid(field, "tool_choice cannot force a call in a message that is continued: %s", continued)
	}
	if err := d.ForcesLeftOut(named, d.ForcedTool); err != nil {
		return err
	}
	schema, err := d.forcedSchema(d.Declared, named)
	if err != nil {
		return err
	}
	if d.format != "" {
		d.Guide = nil
		d.Ignore(d.format)
	}
	return d.Schema(field, schema)
}
