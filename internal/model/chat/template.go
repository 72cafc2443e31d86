package chat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"weir/internal/infer"
	"weir/internal/model/callid"
	"weir/internal/model/chat/jinja"
)

// Options bounds every rendering of a template. The zero value is usable.
type Options struct {
	// MaxOutput bounds the prompt, in bytes; 0 means 64 MiB.
	MaxOutput int
	// MaxSteps bounds the statements, loop turns and items of one rendering;
	// 0 means ten million.
	MaxSteps int
	// MaxAlloc bounds the sum of the strings and lists that one rendering
	// creates, in bytes; 0 means 64 MiB and 16 times what it is made of. Published templates
	// create at most 4 times that.
	MaxAlloc int
}

// The default of Options.MaxAlloc.
const (
	allocLeast = 64 << 20
	allocTimes = 16
)

// maxAlloc returns the bound of the values of a rendering.
func (o *Options) maxAlloc(in *Input) int {
	if o.MaxAlloc != 0 {
		return o.MaxAlloc
	}
	return allocLeast + allocTimes*(len(in.Messages)+len(in.Tools)+len(in.Documents)+len(in.Kwargs))
}

// Template is one compiled chat template. It is immutable.
type Template struct {
	source string
	tmpl   *jinja.Template
	form   form
	opt    Options
}

// Parse compiles a chat template. The error names the line, and what the
// template uses that is not supported.
func Parse(source string, o Options) (*Template, error) {
	t, err := jinja.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("parse chat template: %w", err)
	}
	out := &Template{source: source, tmpl: t, opt: o}
	out.form = look(out)
	return out, nil
}

// Input is one conversation to render. Messages is required; the other JSON
// fields may be empty or null, which the template sees as None.
type Input struct {
	// Messages is the JSON array of messages.
	Messages []byte
	// Tools is the JSON array of tools.
	Tools []byte
	// Documents is the JSON array of documents.
	Documents []byte
	// Kwargs is chat_template_kwargs: a JSON object whose entries become
	// variables of the template.
	Kwargs []byte
	// AddGenerationPrompt asks the template to open the assistant's turn.
	AddGenerationPrompt bool
	// ContinueFinalMessage ends the prompt within the last message, so that
	// the model goes on with it.
	ContinueFinalMessage bool
	// FromAPI is set if the messages are as the OpenAI API has them. The template is
	// then given null content and the arguments of tool calls, which are JSON in a
	// string, in the form that it was written for; nearly always "" and the object.
	// Texts that it does not put together itself become one, each a line. Without, what
	// is null is left out and all else as it is, which is what transformers does.
	FromAPI bool
	// Media is set if among the parts of messages are such as stand for an image, audio
	// or video: {"type": KIND} and nothing else. Then rendering fails where the
	// template does not look at them.
	Media bool
	// SpecialTokens are the tokenizer's special tokens by variable name
	// (bos_token, eos_token, pad_token, ...); an empty one is not set.
	SpecialTokens map[string]string
	// Now is the wall time in the zone that strftime_now is to show.
	Now time.Time
	// CallIDs is the form of calls' ids for a template of which canaries show none.
	CallIDs callid.Form
	// Calls is set by rendering messages of the API's: the number of calls in them.
	Calls int
	// PassedOver is set by rendering messages of the API's: the paths of what the template
	// has no place for, and was left out.
	PassedOver []string
	// Yield, if not nil, is called every 1024 steps of the template, to let
	// others run.
	Yield func()
}

// Render appends the prompt to dst. Errors are *infer.Error: CodeInvalid for
// what the request or the template's own checks got wrong, and for a template
// that cannot render the conversation; cancellation as infer.AsError has it.
func (t *Template) Render(ctx context.Context, dst []byte, in *Input) ([]byte, error) {
	var f *form
	if in.FromAPI {
		f = &t.form
	}
	vars, s, err := in.variables(f, t.tmpl.Names)
	if err != nil {
		return dst, err
	}
	out, err := t.render(ctx, dst, in, vars)
	if err != nil {
		return dst, s.blame(err)
	}
	if s != nil {
		in.PassedOver, in.Calls = s.passed, s.ids.Calls
		if t.form.unsure {
			if err := t.checkTexts(ctx, in); err != nil {
				return dst, err
			}
		}
	}
	if in.Media {
		if err := t.checkMedia(ctx, in, f, out[len(dst):]); err != nil {
			return dst, err
		}
	}
	return out, nil
}

// render renders with variables that are its own.
// roomAround is what a template may add to the messages and tools before the text is moved, in
// bytes: markers, and a system prompt of its own.
const roomAround = 256

func (t *Template) render(ctx context.Context, dst []byte, in *Input, vars map[string]jinja.Value) (_ []byte, err error) {
	var cont *continuation
	if in.ContinueFinalMessage {
		if in.AddGenerationPrompt {
			return dst, infer.Invalid("continue_final_message",
				"continue_final_message and add_generation_prompt cannot both be true; set one of them to false")
		}
		if cont, err = t.prepareContinue(vars["messages"].(*jinja.List)); err != nil {
			return dst, err
		}
	}
	// The text is about as long as what it is made of: what surrounds a message is as long in
	// JSON as in most templates.
	dst = slices.Grow(dst, len(in.Messages)+len(in.Tools)+roomAround)
	base := len(dst)
	check := ctx.Err
	if in.Yield != nil {
		check = func() error {
			in.Yield()
			return ctx.Err()
		}
	}
	out, err := t.tmpl.Render(dst, vars, jinja.Options{
		MaxOutput: t.opt.MaxOutput, MaxSteps: t.opt.MaxSteps, MaxAlloc: t.opt.maxAlloc(in),
		Now: in.Now, Check: check,
	})
	if err != nil {
		return dst, renderError(err, in.Media)
	}
	if cont != nil {
		n, err := cont.cut(out[base:])
		if err != nil {
			return dst, err
		}
		out = out[:base+n]
	}
	return out, nil
}

// renderError returns a failed rendering its code. What the conversation holds
// decides nearly every failure, so it is the caller's to know: a message
// without content, a role the template refuses, tools it cannot print.
func renderError(err error, media bool) error {
	var e *jinja.Error
	if !errors.As(err, &e) {
		return infer.AsError(err)
	}
	switch e.Kind {
	case jinja.KindStopped:
		return infer.AsError(e.Cause)
	case jinja.KindRaised:
		return &infer.Error{Code: infer.CodeInvalid, Param: "messages", Message: e.Message, Cause: err}
	case jinja.KindLimit:
		return &infer.Error{
			Code: infer.CodeInvalid, Param: "messages", Cause: err,
			Message: "the model's chat template exceeds its bounds on this conversation (" + e.Error() + "); send a shorter one",
		}
	}
	message := "the model's chat template cannot render this conversation: " + e.Error()
	if media {
		message += "; it may take text only as a message's content, and this one has other parts"
	}
	return &infer.Error{Code: infer.CodeInvalid, Param: "messages", Cause: err, Message: message}
}

// variables decodes the input into the template's variables, its messages in a
// form if there is one. Special tokens are set as far as the template names them.
func (in *Input) variables(f *form, names func(string) bool) (map[string]jinja.Value, *shaped, error) {
	vars := make(map[string]jinja.Value, 8)
	for name, tok := range in.SpecialTokens {
		if tok != "" && names(name) {
			vars[name] = jinja.Str(tok)
		}
	}
	kwargs, err := decode("chat_template_kwargs", in.Kwargs)
	if err != nil {
		return nil, nil, err
	}
	if kwargs != jinja.None {
		d, ok := kwargs.(*jinja.Dict)
		if !ok {
			return nil, nil, infer.Invalid("chat_template_kwargs", "chat_template_kwargs must be an object")
		}
		for name, v := range d.All() {
			switch name {
			case "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize":
				return nil, nil, infer.Invalid("chat_template_kwargs."+name,
					"chat_template_kwargs must not set %s; the request has a field for it", name)
			}
			vars[name] = v
		}
	}
	messages, err := decodeObjects("messages", in.Messages)
	if err != nil {
		return nil, nil, err
	}
	if messages == jinja.None {
		return nil, nil, infer.Invalid("messages", "messages is required: an array of messages")
	}
	if vars["tools"], err = decodeObjects("tools", in.Tools); err != nil {
		return nil, nil, err
	}
	tools, _ := vars["tools"].(*jinja.List)
	s, err := prepareMessages(messages.(*jinja.List), tools, f, in.CallIDs)
	if err != nil {
		return nil, nil, err
	}
	vars["messages"] = messages
	if vars["documents"], err = decodeObjects("documents", in.Documents); err != nil {
		return nil, nil, err
	}
	vars["add_generation_prompt"] = jinja.Bool(in.AddGenerationPrompt)
	return vars, s, nil
}

func decode(field string, raw []byte) (jinja.Value, error) {
	if len(raw) == 0 {
		return jinja.None, nil
	}
	v, err := jinja.DecodeJSON(raw)
	if err != nil {
		return nil, &infer.Error{
			Code: infer.CodeInvalid, Param: field, Cause: err,
			Message: field + " is not valid JSON: " + strings.TrimPrefix(err.Error(), "decode JSON: "),
		}
	}
	return v, nil
}

// decodeObjects decodes an array of objects, or None.
func decodeObjects(field string, raw []byte) (jinja.Value, error) {
	v, err := decode(field, raw)
	if err != nil || v == jinja.None {
		return v, err
	}
	l, ok := v.(*jinja.List)
	if !ok {
		return nil, infer.Invalid(field, "%s must be an array of objects", field)
	}
	for i, it := range l.Items {
		if _, ok := it.(*jinja.Dict); !ok {
			return nil, infer.Invalid(fmt.Sprintf("%s[%d]", field, i), "%s[%d] must be an object", field, i)
		}
	}
	return v, nil
}
