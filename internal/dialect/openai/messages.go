package openai

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// roles are those that a message may have.
var roles = []string{"system", "user", "assistant", "tool", "developer", "function"}

// innerFields are the fields inside the top-level ones. The chat template gets the
// messages as they are; what is refused is what no template would render, but clients send
// back in the assistant messages they were given. A name with a word behind it is a part,
// or a value, of that type.
var innerFields = []dialect.Field{
	{Name: "messages[].role", On: onMessages, Note: "system, user, assistant, tool, developer or function"},
	{Name: "messages[].content", On: onMessages, Note: "a string, or an array of parts, which may be empty; null or absent in an assistant message"},
	{Name: "messages[].name", On: onMessages, Note: "a string"},
	{Name: "messages[].tool_calls", On: onMessages, Whole: true, Note: "an array, in an assistant message"},
	{Name: "messages[].tool_call_id", On: onMessages, Note: "a string"},
	{Name: "messages[].function_call", On: onMessages, Whole: true, Note: "an object, in an assistant message"},
	{Name: "messages[].reasoning_content", On: onMessages, Note: "a string, in an assistant message"},
	{Name: "messages[].reasoning", On: onMessages, Note: "a string, in an assistant message"},
	{Name: "messages[].refusal", On: onMessages, Note: "a string, in an assistant message: its text, behind content"},
	{Name: "messages[].audio", On: onMessages, Treatment: Refused, Elsewhere: dialect.BothPass},
	{Name: "messages[].annotations", On: onMessages, Treatment: Ignored, Defaults: []string{"[]"}, Note: "the citations of an earlier answer", Elsewhere: dialect.BothPass},
	{Name: "messages[].provider_specific_fields", On: onMessages, Treatment: Ignored, Note: "litellm's, of a message that is sent back as it came", Elsewhere: dialect.BothPass},
	{Name: "messages[].content[] text", On: onMessages, Note: "text"},
	{Name: "messages[].content[] image_url", On: onChat, Needs: infer.CarriesImage, Note: "an object with url, or that string: a URL of http or https, or a data URL in base64"},
	{Name: "messages[].content[] input_audio", On: onChat, Needs: infer.CarriesAudio, Note: "an object with data, in base64, and format: wav, mp3, flac or ogg"},
	{Name: "messages[].content[] audio_url", On: onChat, Needs: infer.CarriesAudio, Note: "as image_url"},
	{Name: "messages[].content[] video_url", On: onChat, Needs: infer.CarriesVideo, Note: "as image_url"},
	{Name: "messages[].content[] file", On: onChat, Treatment: Refused, Note: "send its text, or its pages as image_url", Elsewhere: dialect.BothRefuse},
	{Name: "messages[].content[] refusal", On: onMessages, Note: "text"},
	{Name: "messages[].content[].text", On: onMessages, Note: "a string"},
	{Name: "messages[].content[].refusal", On: onMessages, Note: "a string"},
	{Name: "messages[].content[].image_url", On: onChat, Note: "an object, or a string"},
	{Name: "messages[].content[].image_url.url", On: onChat, Note: "a string"},
	{Name: imageDetail, On: onChat, Treatment: Ignored, Defaults: []string{`"auto"`}, Note: "how closely to look: engines have no place for it", Elsewhere: dialect.SGLangReads},
	{Name: "messages[].content[].input_audio", On: onChat, Whole: true, Note: "an object"},
	{Name: cacheBreakpoint, On: onMessages, Treatment: Ignored, Note: whyCache, Elsewhere: dialect.BothPass},

	{Name: "tools[] function", On: onChat, Note: "a function that the caller runs"},
	{Name: customTool, On: onChat, Treatment: Ignored, Note: "a tool that takes free text, which no chat template supports", Elsewhere: dialect.BothRefuse},
	{Name: "tools[].function", On: onChat, Note: "an object"},
	{Name: "tools[].function.name", On: onChat, Note: "1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes"},
	{Name: "tools[].function.description", On: onChat, Note: "a string"},
	{Name: "tools[].function.parameters", On: onChat, Whole: true, Note: "a JSON Schema, which is an object"},
	{Name: strictTool, On: onChat, Note: "a boolean; true is enforced if a call is forced, and otherwise named as ignored", Elsewhere: "both hold to it, with the tool parsers that can"},
	{Name: "tool_choice function", On: onChat, Note: "the tool that is called, if an engine of the model enforces JSON schemas"},
	{Name: "tool_choice allowed_tools", On: onChat, Note: "the tools that the prompt contains; the mode required if an engine of the model enforces JSON schemas"},
	{Name: "tool_choice custom", On: onChat, Treatment: Refused, Elsewhere: dialect.BothRefuse},
	{Name: "tool_choice.function", On: onChat, Note: "an object"},
	{Name: "tool_choice.function.name", On: onChat, Note: "a string"},
	{Name: "tool_choice.allowed_tools", On: onChat, Note: "an object"},
	{Name: "tool_choice.allowed_tools.mode", On: onChat, Note: "auto or required"},
	{Name: "tool_choice.allowed_tools.tools", On: onChat, Whole: true, Note: "an array of tools, each a type and a function with its name"},
	{Name: "response_format text", On: onBoth, Note: "anything may come"},
	{Name: "response_format json_object", On: onBoth, Needs: infer.CarriesJSONSchema, Note: "any JSON object"},
	{Name: "response_format json_schema", On: onBoth, Needs: infer.CarriesJSONSchema, Note: "JSON of the schema. A tool_choice that forces a call takes precedence, as in vLLM, and the field is named as ignored"},
	{Name: "response_format structural_tag", On: onBoth, Needs: infer.CarriesStructuralTag, Note: "as the engine's grammar backend has it"},
	{Name: "response_format.json_schema", On: onBoth, Note: "an object with schema; name, description and strict have no effect: the output always matches"},
	{Name: "response_format.json_schema.name", On: onBoth, Note: "any"},
	{Name: "response_format.json_schema.description", On: onBoth, Note: "any"},
	{Name: "response_format.json_schema.strict", On: onBoth, Note: "any"},
	{Name: "response_format.json_schema.schema", On: onBoth, Whole: true, Note: "a JSON schema, as an object or a string"},
	{Name: "stream_options.include_usage", On: onBoth, Note: "a boolean: a last chunk has the usage"},
	{Name: continuousUsage, On: onBoth, Note: "a boolean, with include_usage: each chunk has the usage so far, an extension of vLLM's; without include_usage it is named as ignored"},
	{Name: obfuscation, On: onBoth, Treatment: Ignored, Defaults: []string{"false"}, Note: "padding, so that the sizes of chunks tell less", Elsewhere: dialect.BothPass},
}

// Rows of innerFields that are noted when they are left out.
const (
	imageDetail     = "messages[].content[].image_url.detail"
	cacheBreakpoint = "messages[].content[].prompt_cache_breakpoint"
	customTool      = "tools[] custom"
	strictTool      = "tools[].function.strict"
	continuousUsage = "stream_options.continuous_usage_stats"
	obfuscation     = "stream_options.include_obfuscation"
)

// messagePath comes before the name of a field of a message.
const messagePath = "messages[]."

// inner finds a field inside others.
func inner(name string) *dialect.Field { return dialect.Row(innerFields, name) }

// messageMembers are the names that a member of a message may have.
var messageMembers = func() (names []string) {
	for i := range innerFields {
		if name, ok := strings.CutPrefix(innerFields[i].Name, messagePath); ok && !strings.ContainsAny(name, ".[ ") {
			names = append(names, name)
		}
	}
	return names
}()

// takeMessages checks the messages and keeps them as they are.
func takeMessages(d *decoding, raw []byte) error {
	if dialect.KindOf(raw) != '[' {
		return dialect.WrongType("messages", "an array of messages", raw)
	}
	if err := d.CheckStrict("messages", raw); err != nil {
		return err
	}
	w := messageWalk{d: d, raw: raw}
	if err := dialect.ItemsAt(raw, w.one); err != nil {
		return err
	}
	if raw[dialect.SkipSpace(raw, 1)] == ']' {
		return infer.Invalid("messages", "messages is empty; send at least one message")
	}
	d.Messages = raw
	if w.media != nil {
		d.Messages, d.Media = w.withoutMedia(), w.media
	}
	return nil
}

// messageWalk is the place in the messages that is being read, which are valid JSON. Paths are
// put in words only for a refusal.
type messageWalk struct {
	d       *decoding
	raw     []byte
	message int

	media []infer.Media
	parts []place // of the media
}

func (w *messageWalk) path(name string) string {
	return fmt.Sprintf("messages[%d].%s", w.message, name)
}

// one reads the n-th message, which begins at raw[at]. Its members are passed over once.
func (w *messageWalk) one(n, at int) (end int, err error) {
	w.message = n
	if w.raw[at] != '{' {
		return 0, dialect.WrongType(fmt.Sprintf("messages[%d]", n), "an object", w.raw[at:])
	}
	var role, assistantOnly string
	content := jsontext.KindInvalid
	end, err = dialect.MembersAt(w.raw, at, func(name, value []byte) (err error) {
		switch string(name) {
		case "role":
			role, err = w.role(value)
		case "content":
			content, err = w.content(value)
		default:
			name := dialect.Word(name)
			var given bool
			given, err = w.other(name, value)
			if given && (name == "tool_calls" || name == "function_call" || name == "reasoning_content" || name == "reasoning" || name == "refusal") {
				assistantOnly = name
			}
		}
		return err
	})
	switch {
	case err != nil:
		return 0, err
	case role == "":
		return 0, infer.Invalid(w.path("role"), "%s is required", w.path("role"))
	case role == "assistant":
	case content == jsontext.KindInvalid:
		return 0, infer.Invalid(w.path("content"), "%s is required", w.path("content"))
	case content == 'n':
		return 0, infer.Invalid(w.path("content"), "%s must be a string or an array of parts, found null; only an assistant message may have none", w.path("content"))
	case assistantOnly != "":
		return 0, infer.Invalid(w.path(assistantOnly), "%s belongs in an assistant message, found in a %s message", w.path(assistantOnly), role)
	}
	return end, nil
}

func (w *messageWalk) role(raw []byte) (string, error) {
	if dialect.KindOf(raw) != '"' {
		return "", dialect.WrongType(w.path("role"), "a string", raw)
	}
	role := dialect.NameOf(raw)
	if !slices.Contains(roles, role) {
		return "", infer.Invalid(w.path("role"), "%s must be system, user, assistant, tool, developer or function, found %q", w.path("role"), dialect.Clip(role, 32))
	}
	return role, nil
}

// content reads a message's content and gives its kind.
func (w *messageWalk) content(raw []byte) (jsontext.Kind, error) {
	switch kind := dialect.KindOf(raw); kind {
	case '[':
		return kind, w.contentParts(raw)
	case '"', 'n':
		return kind, nil
	default:
		return kind, dialect.WrongType(w.path("content"), "a string or an array of parts", raw)
	}
}

// contentParts reads an array of parts. Without any it is the empty text.
func (w *messageWalk) contentParts(raw []byte) error {
	return dialect.Items(raw, func(i int, part []byte) error {
		if dialect.KindOf(part) != '{' {
			return dialect.WrongType(fmt.Sprintf("%s[%d]", w.path("content"), i), "an object", part)
		}
		return w.part(i, part)
	})
}

// part checks a part, its type first: the other fields of a part that is not
// text are none of ours to name.
func (w *messageWalk) part(i int, raw []byte) error {
	var kind, text, refusal []byte
	extra := ""
	err := dialect.Members(raw, func(name, value []byte) error {
		switch string(name) {
		case "type":
			kind = value
		case "text":
			text = value
		case "refusal":
			refusal = value
		case "prompt_cache_breakpoint":
			_, err := w.d.Judge(inner(cacheBreakpoint), string(name), value)
			return err
		default:
			extra = string(name)
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
	case dialect.KindOf(kind) != '"':
		return dialect.WrongType(at("type"), "a string", kind)
	}
	member := "text"
	switch dialect.NameOf(kind) {
	case "text":
		if refusal != nil {
			extra = "refusal"
		}
	case "refusal":
		if text != nil {
			extra = "text"
		}
		member, text = "refusal", refusal
	default:
		return w.mediaPart(i, dialect.NameOf(kind), raw)
	}
	switch {
	case text == nil:
		return infer.Invalid(at(member), "%s is required", at(member))
	case dialect.KindOf(text) != '"':
		return dialect.WrongType(at(member), "a string", text)
	case extra != "":
		return w.d.UnknownMember(at(dialect.Clip(extra, 64)), member, "type", "prompt_cache_breakpoint")
	}
	return nil
}

// field finds a field of a message.
func (w *messageWalk) field(name string) *dialect.Field {
	if !slices.Contains(messageMembers, name) {
		return nil
	}
	return inner(messagePath + name)
}

// other reads any other field of a message and says whether it holds anything.
func (w *messageWalk) other(name string, raw []byte) (given bool, err error) {
	f := w.field(name)
	switch {
	case f == nil:
		return false, w.d.UnknownMember(w.path(dialect.Clip(name, 64)), messageMembers...)
	case f.Treatment != Carried:
		_, err = w.d.Judge(f, w.path(name), raw)
		return false, err
	case dialect.KindOf(raw) == 'n':
		return false, nil
	}
	kind, want := jsontext.Kind('"'), "a string"
	switch name {
	case "tool_calls":
		kind, want = '[', "an array"
	case "function_call":
		kind, want = '{', "an object"
	}
	if dialect.KindOf(raw) != kind {
		return false, dialect.WrongType(w.path(name), want, raw)
	}
	if name == "tool_calls" {
		err = w.calls(raw)
	}
	return true, err
}

// calls checks the tool calls of a message as far as every chat template reads
// them.
func (w *messageWalk) calls(raw []byte) error {
	return dialect.Items(raw, func(i int, item []byte) error {
		if dialect.KindOf(item) != '{' {
			return dialect.WrongType(fmt.Sprintf("%s[%d]", w.path("tool_calls"), i), "an object", item)
		}
		return nil
	})
}
