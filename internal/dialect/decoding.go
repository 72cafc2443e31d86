package dialect

import (
	"fmt"
	"slices"
	"strings"

	"weir/internal/infer"
)

// Decoding is a request under way, of which a dialect reads one field after the
// other; what a dialect needs besides lies around it.
type Decoding struct {
	Request
	// Path is the endpoint's, and Kind that of the engines for which the request is
	// decoded; empty where the gateway itself answers.
	Path, Kind string
	// Carries is what those engines can be asked for.
	Carries infer.Carries
	// Declared are the tools of the request. NoTools says that none may be called.
	Declared []Tool
	NoTools  bool

	lax      bool   // Head.Lax
	guidedBy string // the field that said what the output must match
	format   string // its row of the table, where it is the text of the answer that must
}

// NewDecoding begins with what the head of the body says.
func NewDecoding(e Endpoint, h *Head, kind string, carries infer.Carries, names *FieldNames) Decoding {
	return Decoding{
		Request: Request{Model: h.Model, Stream: h.Stream, Fields: names},
		Path:    e.String(), Kind: kind, Carries: carries, lax: h.Lax,
	}
}

// Carrier names who it is that fields are for, in refusals.
func (d *Decoding) Carrier() string {
	if d.Kind == "" {
		return d.Path
	}
	return fmt.Sprintf("engine kind %q", d.Kind)
}

// Unsupported refuses a field, or a part of one, that cannot be carried. Defaults
// are values that may be sent.
func (d *Decoding) Unsupported(path string, defaults ...string) error {
	return Unsupported(path, d.Carrier(), defaults)
}

// Lacking is Unsupported where engines would have to carry needs.
func (d *Decoding) Lacking(needs infer.Carries, path string, defaults ...string) error {
	err := Unsupported(path, d.Carrier(), defaults)
	err.Lacks = needs &^ d.Carries
	return err
}

// SetGuide takes what the output must match, which may be said at one place only.
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

// Guided takes what the output must match, which may be said at one place only, and
// to an engine that understands it.
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

// SchemaValue is Schema with what a field holds: a JSON schema, as itself or as its
// text.
func (d *Decoding) SchemaValue(path string, raw []byte) error {
	text, err := SchemaOf(path, raw)
	if err != nil {
		return err
	}
	return d.Schema(path, text)
}

// Format is Schema with what a field of the table says of the answer's text. A call that
// is forced wins over it (FinishTools), as it does at vLLM.
func (d *Decoding) Format(field, path, schema string) error {
	if d.Guide == nil {
		d.format = field
	}
	return d.Schema(path, schema)
}

// LeaveOutTool notes a tool that no engine runs by itself: field is its row of the table,
// name what a tool_choice would call it.
func (d *Decoding) LeaveOutTool(field, name string) {
	d.Ignore(field)
	if l := d.LeftOut; len(l.Tools) < maxPassed {
		l.Tools = append(l.Tools, Clip(name, 64))
	}
}

// ForcesLeftOut refuses a tool_choice, of which the member at path names a tool that was
// left out; nil where it names another.
func (d *Decoding) ForcesLeftOut(path, name string) error {
	if d.LeftOut == nil || !slices.Contains(d.LeftOut.Tools, Clip(name, 64)) {
		return nil
	}
	return &infer.Error{Code: infer.CodeUnsupported, Param: path,
		Message: fmt.Sprintf("%s is %q, a tool that %s cannot run; name another, or send auto", path, Clip(name, 64), d.Carrier())}
}

// TextGuide is Guided with what a field holds: a text in the language of the kind.
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

// FinishTools checks tool_choice against the tools, and makes the engine call them
// where it is to. That a tool is called can only be forced by an engine that is told
// what it may generate; asking another for it is refused rather than hoped for.
//
// named is where the caller names the tool that must be called, continued why the last
// message is continued, if it is, and strict the row of the table by which a tool says that
// calls keep to its schema, which only those do that are forced.
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
