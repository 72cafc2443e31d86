package responses

import (
	"fmt"
	"math"
	"strings"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// Bounds of a request's metadata, as OpenAI has them: its strings, and in bytes each
// name and each string. An answer's stream tells all of it three times.
const (
	maxMetadata      = 16
	maxMetadataName  = 64
	maxMetadataValue = 512 * 4 // 512 characters
)

// maxTop bounds the alternatives of a token.
const maxTop = 20

// decoding is a request under way.
type decoding struct {
	dialect.Decoding

	input         input
	instructions  []byte // a raw string
	streamOptions bool
	tools         []tool
	forced        named   // by tool_choice
	allowed       []named // by tool_choice; nil: all
	allowedAny    bool    // and it names tools that are left out
	echo          echo
	showSummary   bool
	top           int  // alternatives of each token, as top_logprobs has them
	wantLogprobs  bool // as include has it
}

var fieldNames = dialect.FieldNames{Prompt: "input", MaxTokens: "max_output_tokens", MinTokens: "min_tokens", Effort: "reasoning.effort", Seed: "seed"}

// Request implements dialect.Endpoint.
func (e Endpoint) Request(h *dialect.Head, kind string, carries infer.Carries) (*dialect.Request, error) {
	if err := h.Unambiguous(); err != nil {
		return nil, err
	}
	d := &decoding{Decoding: dialect.NewDecoding(e, h, kind, carries, &fieldNames)}
	d.AddGenerationPrompt, d.CountReasoning, d.CallPrefix = true, true, "call_"
	d.input.d = d
	for _, at := range h.Fields {
		if err := d.field(at.Name, h.Body[at.Start:at.End]); err != nil {
			return nil, err
		}
	}
	if err := d.finish(); err != nil {
		return nil, err
	}
	return &d.Request, nil
}

// finish checks what fields say together, and puts the conversation together.
func (d *decoding) finish() error {
	switch {
	case !d.input.given:
		return infer.Invalid("input", "input is required: send a string, or an array with at least one item")
	case d.streamOptions && !d.Stream:
		return infer.Invalid("stream_options", "stream_options needs stream to be true")
	case d.MaxTokens > 0 && d.MinTokens > d.MaxTokens:
		return infer.Invalid("min_tokens", "min_tokens is %d, above the limit of %d tokens", d.MinTokens, d.MaxTokens)
	case d.top > 0 && !d.wantLogprobs:
		return infer.Invalid("top_logprobs", "top_logprobs needs include to hold %q", outputLogprobs)
	}
	if d.wantLogprobs {
		d.Logprobs, d.ContentLogprobs = &d.top, true
	}
	if err := d.finishTools(); err != nil {
		return err
	}
	if d.Messages = d.input.messages(d.instructions); len(d.Messages) == len("[]") {
		return infer.Invalid("input", "input has nothing to answer; send at least one message")
	}
	o := encoderOptions{stream: d.Stream, summary: d.showSummary, known: knownBy(d.tools), echo: d.echo.members(&d.Request), logprobs: d.Logprobs}
	d.Encoder = func(a dialect.AnswerOptions) dialect.Encoder { return newEncoder(a, o) }
	return nil
}

func takeInput(d *decoding, raw []byte) error { return d.input.take(raw) }

func takeInstructions(d *decoding, raw []byte) error {
	const field = "instructions"
	if dialect.KindOf(raw) != '"' {
		return dialect.WrongType(field, "a string", raw)
	}
	d.instructions, d.echo.instructions = raw, raw
	return d.CheckStrict(field, raw)
}

func takeMaxOutputTokens(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("max_output_tokens", raw, 1, math.MaxInt32)
	d.MaxTokens = int(n)
	return err
}

// sampling takes a sampling parameter.
func sampling(name string, take dialect.Parameter) func(*decoding, []byte) error {
	return func(d *decoding, raw []byte) error { return take(&d.Sampling, name, raw) }
}

func takeMinTokens(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("min_tokens", raw, 0, math.MaxInt32)
	d.MinTokens = int(n)
	return err
}

func takeIgnoreEOS(d *decoding, raw []byte) (err error) {
	d.IgnoreEOS, err = dialect.BoolOf("ignore_eos", raw)
	return err
}

func takeTemplateKwargs(d *decoding, raw []byte) error {
	const field = "chat_template_kwargs"
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(field, "an object", raw)
	}
	d.ChatTemplateKwargs = raw
	return d.CheckStrict(field, raw)
}

func takeStop(d *decoding, raw []byte) (err error) {
	d.Stop, err = dialect.StopsOf("stop", raw, dialect.MaxStops)
	return err
}

func takeStreamOptions(d *decoding, raw []byte) error {
	d.streamOptions = true
	return d.object("stream_options", raw, func(name, path string, value []byte) error {
		switch name {
		case "include_obfuscation":
			return d.judge(obfuscation, path, value)
		case "include_usage": // a field of chats, whose usage streams here have in any case
			if dialect.KindOf(value) == 'n' {
				return nil
			}
			_, err := dialect.BoolOf(path, value)
			return err
		}
		return d.UnknownMember(path, "include_obfuscation", "include_usage")
	})
}

// takeInclude reads what else the answer is to hold.
func takeInclude(d *decoding, raw []byte) error {
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType("include", "an array of strings", raw)
	}
	return dialect.EachItem(raw, func(i int, item []byte) error {
		path := fmt.Sprintf("include[%d]", i)
		word, err := dialect.StringOf(path, item)
		if err != nil {
			return err
		}
		switch f := dialect.Row(includes, word); {
		case f == nil && d.Passes(path):
		case f == nil:
			return d.UnknownType(path, word, "it must be one of "+strings.Join(knownIncludes, ", "), knownIncludes...)
		case f.Treatment == dialect.Ignored:
			d.Ignore(includePath + f.Name)
		}
		d.wantLogprobs = d.wantLogprobs || word == outputLogprobs
		return nil
	})
}

func takeTopLogprobs(d *decoding, raw []byte) error {
	n, err := dialect.IntOf("top_logprobs", raw, 0, maxTop)
	d.top = int(n)
	return err
}

func takeMetadata(d *decoding, raw []byte) error {
	n := 0
	err := d.object("metadata", raw, func(name, path string, value []byte) error {
		if n++; n > maxMetadata {
			return infer.Invalid("metadata", "metadata may hold at most %d strings", maxMetadata)
		}
		switch {
		case dialect.KindOf(value) != '"':
			return dialect.WrongType(path, "a string", value)
		case len(name) > maxMetadataName:
			return infer.Invalid(path, "%s is a name of %d bytes; it may have %d", path, len(name), maxMetadataName)
		case len(value) > maxMetadataValue:
			return infer.Invalid(path, "%s has %d bytes; it may have %d", path, len(value), maxMetadataValue)
		}
		return nil
	})
	d.echo.metadata = raw
	return err
}

func takeReasoning(d *decoding, raw []byte) error {
	d.echo.reasoning = raw
	return d.object("reasoning", raw, func(name, path string, value []byte) error {
		switch name {
		case "effort":
			return d.effort(path, value)
		case "summary", "generate_summary":
			word, err := wordOf(path, value)
			if err == nil && word != "" && word != "auto" && word != "concise" && word != "detailed" {
				err = infer.Invalid(path, "%s is %q; it must be auto, concise or detailed", path, dialect.Clip(word, 32))
			}
			d.showSummary = d.showSummary || word != ""
			return err
		case "context", "mode":
			if _, err := wordOf(path, value); err != nil {
				return err
			}
			return d.judge(path, path, value)
		}
		return d.UnknownMember(path, "effort", "summary", "context", "mode")
	})
}

func (d *decoding) effort(path string, raw []byte) error {
	word, err := wordOf(path, raw)
	if err == nil && word != "" {
		d.Effort, err = dialect.EffortOf(path, raw)
	}
	return err
}

// wordOf reads a string; null is an empty one.
func wordOf(path string, raw []byte) (string, error) {
	if dialect.KindOf(raw) == 'n' {
		return "", nil
	}
	return dialect.StringOf(path, raw)
}

func takeText(d *decoding, raw []byte) error {
	return d.object("text", raw, func(name, path string, value []byte) error {
		switch {
		case dialect.KindOf(value) == 'n':
			return nil
		case name == "format":
			d.echo.format = value
			return d.format(path, value)
		case name == "verbosity":
			d.echo.verbosity = value
			return d.judge(verbosity, path, value)
		}
		return d.UnknownMember(path, "format", "verbosity")
	})
}

// format reads what the output must match.
func (d *decoding) format(path string, raw []byte) error {
	var kind string
	var schema []byte
	err := d.object(path, raw, func(name, path string, value []byte) (err error) {
		switch name {
		case "type":
			kind, err = dialect.StringOf(path, value)
		case "schema":
			schema = value
		case "name", "description", "strict": // that the output matches is never optional here
		default:
			return d.UnknownMember(path, "type", "schema", "name", "description", "strict")
		}
		return err
	})
	if err != nil {
		return err
	}
	if schema != nil && dialect.KindOf(schema) != 'n' && (kind == "text" || kind == "json_object") {
		return infer.Invalid(path+".schema", "%s.schema belongs to the type json_schema, and the type is %s", path, kind)
	}
	switch kind {
	case "text":
		return nil
	case "json_object":
		return d.Format(path, path, dialect.AnyObject)
	case "json_schema":
		switch {
		case schema == nil:
			return infer.Invalid(path+".schema", "%s.schema is required: send the JSON schema", path)
		case dialect.KindOf(schema) != '{':
			return dialect.WrongType(path+".schema", "a JSON schema, which is an object", schema)
		}
		return d.Format(path, path, string(schema))
	case "":
		return infer.Invalid(path+".type", "%s.type is required: send text, json_object or json_schema", path)
	}
	return infer.Invalid(path+".type", "%s.type is %q; it must be text, json_object or json_schema", path, dialect.Clip(kind, 32))
}

// object walks an object whose names are unique.
func (d *decoding) object(field string, raw []byte, visit func(name, path string, value []byte) error) error {
	if dialect.KindOf(raw) != '{' {
		return dialect.WrongType(field, "an object", raw)
	}
	if err := d.CheckStrict(field, raw); err != nil {
		return err
	}
	return dialect.EachMember(raw, func(name string, value []byte) error {
		return visit(name, field+"."+dialect.Clip(name, 64), value)
	})
}
