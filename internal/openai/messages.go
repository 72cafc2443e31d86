package openai

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/api"
	"weir/internal/infer"
)

// roles are those that a message may have.
var roles = []string{"system", "user", "assistant", "tool", "developer", "function"}

// messageFields are the fields of a message. The chat template gets the
// messages as they are; what is refused is what no template would render, but
// clients send back in the assistant messages they were given.
var messageFields = []FieldInfo{
	{Name: "messages[].role", Chat: true, Tokenize: true, Accepts: "system, user, assistant, tool, developer or function"},
	{Name: "messages[].content", Chat: true, Tokenize: true, Accepts: "a string, or a non-empty array of text parts; null or absent in an assistant message"},
	{Name: "messages[].name", Chat: true, Tokenize: true, Accepts: "a string"},
	{Name: "messages[].tool_calls", Chat: true, Tokenize: true, Accepts: "an array, in an assistant message"},
	{Name: "messages[].tool_call_id", Chat: true, Tokenize: true, Accepts: "a string"},
	{Name: "messages[].function_call", Chat: true, Tokenize: true, Accepts: "an object, in an assistant message"},
	{Name: "messages[].reasoning_content", Chat: true, Tokenize: true, Accepts: "a string, in an assistant message"},
	{Name: "messages[].reasoning", Chat: true, Tokenize: true, Accepts: "a string, in an assistant message"},
	{Name: "messages[].refusal", Chat: true, Tokenize: true, Treatment: Refused},
	{Name: "messages[].audio", Chat: true, Tokenize: true, Treatment: Refused},
	{Name: "messages[].annotations", Chat: true, Tokenize: true, Treatment: Refused, Defaults: []string{"[]"}},
}

// partFields are the fields of a part of a message's content.
var partFields = []FieldInfo{
	{Name: "messages[].content[].type", Chat: true, Tokenize: true, Accepts: `"text"`},
	{Name: "messages[].content[].text", Chat: true, Tokenize: true, Accepts: "a string"},
}

// messageField finds the treatment of a field of a message.
func messageField(name string) *FieldInfo {
	for i := range messageFields {
		if messageFields[i].Name[len("messages[]."):] == name {
			return &messageFields[i]
		}
	}
	return nil
}

// takeMessages checks the messages in one pass and keeps them as they are.
func takeMessages(d *decoding, raw []byte) error {
	if api.KindOf(raw) != '[' {
		return api.WrongType("messages", "an array of messages", raw)
	}
	w := messageWalk{d: d, dec: api.Strict(raw)}
	if err := w.walk(); err != nil {
		var syn *jsontext.SyntacticError
		if errors.As(err, &syn) {
			return api.StrictError("messages", err)
		}
		return err
	}
	if w.message == 0 {
		return infer.Invalid("messages", "messages is empty; send at least one message")
	}
	d.Messages = raw
	return nil
}

// messageWalk is the place in the messages that is being read. Paths are put
// in words only for a refusal.
type messageWalk struct {
	d       *decoding
	dec     *jsontext.Decoder
	message int
}

func (w *messageWalk) path(name string) string {
	return fmt.Sprintf("messages[%d].%s", w.message, name)
}

func (w *messageWalk) walk() error {
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	for ; w.dec.PeekKind() != ']'; w.message++ {
		if w.dec.PeekKind() != '{' {
			raw, err := w.dec.ReadValue()
			if err != nil {
				return err
			}
			return api.WrongType(fmt.Sprintf("messages[%d]", w.message), "an object", raw)
		}
		if err := w.one(); err != nil {
			return err
		}
	}
	return nil
}

// one reads a message.
func (w *messageWalk) one() error {
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	var role, assistantOnly string
	content := jsontext.KindInvalid
	for w.dec.PeekKind() != '}' {
		raw, err := w.dec.ReadValue()
		if err != nil {
			return err
		}
		switch name := api.NameOf(raw); name {
		case "role":
			role, err = w.role()
		case "content":
			content, err = w.content()
		default:
			var given bool
			given, err = w.other(name)
			if given && (name == "tool_calls" || name == "function_call" || name == "reasoning_content" || name == "reasoning") {
				assistantOnly = name
			}
		}
		if err != nil {
			return err
		}
	}
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	switch {
	case role == "":
		return infer.Invalid(w.path("role"), "%s is required", w.path("role"))
	case role == "assistant":
	case content == jsontext.KindInvalid:
		return infer.Invalid(w.path("content"), "%s is required", w.path("content"))
	case content == 'n':
		return infer.Invalid(w.path("content"), "%s must be a string or an array of parts, found null; only an assistant message may have none", w.path("content"))
	case assistantOnly != "":
		return infer.Invalid(w.path(assistantOnly), "%s belongs in an assistant message, found in a %s message", w.path(assistantOnly), role)
	}
	return nil
}

func (w *messageWalk) role() (string, error) {
	raw, err := w.dec.ReadValue()
	if err != nil {
		return "", err
	}
	// The decoder has seen that escapes are whole, so only the type is left.
	if api.KindOf(raw) != '"' {
		return "", api.WrongType(w.path("role"), "a string", raw)
	}
	role := api.NameOf(raw)
	if !slices.Contains(roles, role) {
		return "", infer.Invalid(w.path("role"), "%s must be system, user, assistant, tool, developer or function, found %q", w.path("role"), api.Clip(role, 32))
	}
	return role, nil
}

// content reads a message's content and gives its kind.
func (w *messageWalk) content() (jsontext.Kind, error) {
	kind := w.dec.PeekKind()
	if kind == '[' {
		return kind, w.parts()
	}
	raw, err := w.dec.ReadValue()
	if err != nil {
		return kind, err
	}
	if kind != '"' && kind != 'n' {
		return kind, api.WrongType(w.path("content"), "a string or an array of parts", raw)
	}
	return kind, nil
}

// parts reads an array of text parts.
func (w *messageWalk) parts() error {
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	i := 0
	for ; w.dec.PeekKind() != ']'; i++ {
		raw, err := w.dec.ReadValue()
		if err != nil {
			return err
		}
		if api.KindOf(raw) != '{' {
			return api.WrongType(fmt.Sprintf("%s[%d]", w.path("content"), i), "an object", raw)
		}
		if err := w.part(i, raw); err != nil {
			return err
		}
	}
	if i == 0 {
		return infer.Invalid(w.path("content"), "%s is an empty array; send at least one part", w.path("content"))
	}
	_, err := w.dec.ReadToken()
	return err
}

// part checks a part, its type first: the other fields of a part that is not
// text are none of ours to name.
func (w *messageWalk) part(i int, raw []byte) error {
	var kind, text []byte
	extra := ""
	err := api.EachMember(raw, func(name string, value []byte) error {
		switch name {
		case "type":
			kind = value
		case "text":
			text = value
		default:
			extra = name
		}
		return nil
	})
	if err != nil {
		return err
	}
	at := func(name string) string { return fmt.Sprintf("%s[%d].%s", w.path("content"), i, name) }
	switch {
	case kind == nil:
		return infer.Invalid(at("type"), "%s is required", at("type"))
	case api.KindOf(kind) != '"':
		return api.WrongType(at("type"), "a string", kind)
	case api.NameOf(kind) != "text":
		hint := `only parts of type "text" are`
		if !w.d.endpoint.tokenizes() {
			hint += "; an engine of kind openai, which is relayed, gets every part as it is"
		}
		return &infer.Error{
			Code:    infer.CodeUnsupported,
			Param:   at("type"),
			Message: fmt.Sprintf("%s %q is not supported by %s; %s", at("type"), api.Clip(api.NameOf(kind), 32), w.d.carrier(), hint),
		}
	case extra != "":
		return w.d.unsupported(at(api.Clip(extra, 64)), nil)
	case text == nil:
		return infer.Invalid(at("text"), "%s is required", at("text"))
	case api.KindOf(text) != '"':
		return api.WrongType(at("text"), "a string", text)
	}
	return nil
}

// other reads any other field of a message and says whether it holds anything.
func (w *messageWalk) other(name string) (given bool, err error) {
	raw, err := w.dec.ReadValue()
	if err != nil {
		return false, err
	}
	f := messageField(name)
	switch {
	case f == nil:
		return false, w.d.unsupported(w.path(api.Clip(name, 64)), nil)
	case f.Treatment == Refused:
		if !f.asksForNothing(raw) {
			return false, w.d.unsupported(w.path(name), f.Defaults)
		}
		return false, nil
	case api.KindOf(raw) == 'n':
		return false, nil
	}
	kind, want := jsontext.Kind('"'), "a string"
	switch name {
	case "tool_calls":
		kind, want = '[', "an array"
	case "function_call":
		kind, want = '{', "an object"
	}
	if api.KindOf(raw) != kind {
		return false, api.WrongType(w.path(name), want, raw)
	}
	if name == "tool_calls" {
		err = w.calls(raw)
	}
	return true, err
}

// calls checks the tool calls of a message as far as every chat template reads
// them.
func (w *messageWalk) calls(raw []byte) error {
	return api.EachItem(raw, func(i int, item []byte) error {
		if api.KindOf(item) != '{' {
			return api.WrongType(fmt.Sprintf("%s[%d]", w.path("tool_calls"), i), "an object", item)
		}
		return nil
	})
}
