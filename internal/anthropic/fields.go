package anthropic

import (
	"fmt"
	"slices"

	"weir/internal/api"
	"weir/internal/infer"
)

// Fields lists every field that weir knows by name, in a fixed order. Any other
// is refused.
func Fields() []api.Field {
	var out []api.Field
	for _, f := range fields {
		out = append(out, f.Field)
	}
	out = append(out, innerFields...)
	for i := range out {
		out[i].Defaults = slices.Clone(out[i].Defaults)
	}
	return out
}

// field is a top-level field; take decodes it when it is carried and not null.
type field struct {
	api.Field
	take func(d *decoding, raw []byte) error
}

func carry(name, accepts string, take func(*decoding, []byte) error) field {
	return field{api.Field{Name: name, Note: accepts}, take}
}

// answer is carry of a field that only a request for an answer has.
func answer(name, accepts string, take func(*decoding, []byte) error) field {
	return field{api.Field{Name: name, Note: accepts, On: 1 << Messages}, take}
}

func refuse(name string, defaults ...string) field {
	return field{Field: api.Field{Name: name, Treatment: api.Refused, Defaults: defaults}}
}

func ignore(name, why string) field {
	return field{Field: api.Field{Name: name, Treatment: api.Ignored, Note: why}}
}

// Why fields of which an engine knows nothing are ignored.
const (
	whyCache = "engines keep the KV cache of every prompt by themselves, and usage says what was found in it"
	whoAsks  = "says who asks, which changes no answer"
)

// fields are the top-level fields.
var fields = []field{
	carry("model", "a string", nothing),
	carry("messages", "a non-empty array of messages; a last one of the assistant's is continued", takeMessages),
	carry("system", "a string, or an array of text blocks; becomes a first message, of which an empty array makes none", takeSystem),
	carry("tools", "an array of tools of type custom, each with a unique name", takeTools),
	carry("tool_choice", "an object whose type is auto, none, any or tool; the last two where the engine can be told a JSON schema", takeToolChoice),
	carry("thinking", "an object whose type is enabled, adaptive, between_tools or disabled; becomes enable_thinking and thinking, true or false, for the chat template", takeThinking),
	carry("output_config", "an object with effort (becomes reasoning_effort for the chat template) and format", takeOutputConfig),
	carry("output_format", "as output_config.format, whose older name it is", takeOutputFormat),
	carry("chat_template_kwargs", "an object, handed to the chat template; an extension of vLLM's", takeTemplateKwargs),

	answer("max_tokens", "an integer from 1, required", takeMaxTokens),
	answer("stream", "a boolean", nothing),
	answer("stop_sequences", "an array of up to 64 strings, each of 1 to 1024 bytes", takeStops),
	answer("temperature", "a number from 0 to 2", sampling("temperature", api.Temperature)),
	answer("top_p", "a number above 0, at most 1", sampling("top_p", api.TopP)),
	answer("top_k", "an integer from 0, which is no limit", takeTopK),

	refuse("container"),
	refuse("mcp_servers", "[]"),
	refuse("context_management"),
	refuse("thread"),
	refuse("inference_geo"),
	refuse("diagnostics"),
	refuse("speed", `"standard"`),

	ignore("metadata", whoAsks),
	ignore("user_profile_id", whoAsks),
	ignore("service_tier", "there is one tier; the answer says standard"),
	ignore("cache_control", whyCache),
}

// innerFields are the fields inside the top-level ones.
var innerFields = []api.Field{
	{Name: "messages[].role", Note: "user, assistant or system"},
	{Name: "messages[].content", Note: "a string, or an array of blocks; texts side by side are put together as [those of a chat](engines.md#request-fields-by-wire) are"},
	{Name: "messages[].content[] text", Note: "text"},
	{Name: "messages[].content[] tool_use", Note: "id, name and input, in an assistant message; a tool call"},
	{Name: "messages[].content[] tool_result", Note: "tool_use_id and content (a string, or an array of text and image blocks), in a user message; a message of role tool"},
	{Name: "messages[].content[].is_error", Note: "a boolean; true puts \"Error: \" before the result, since chat templates have no place for it"},
	{Name: "messages[].content[] thinking", Note: "thinking, in an assistant message; reasoning_content, for templates that read it"},
	{Name: "messages[].content[].signature", Treatment: api.Ignored, Note: "weir signs nothing; its own thinking blocks say \"unsigned\""},
	{Name: "messages[].content[] redacted_thinking", Treatment: api.Ignored, Note: "encrypted by another service: no engine could read it"},
	{Name: "messages[].content[].cache_control", Treatment: api.Ignored, Note: whyCache},
	{Name: "messages[].content[].citations", Treatment: api.Refused, Defaults: []string{"[]"}},
	{Name: "messages[].content[].caller", Treatment: api.Refused, Defaults: []string{`{"type":"direct"}`}},
	{Name: "messages[].content[].toolset_name", Treatment: api.Refused},
	{Name: "messages[].content[] image", Note: "a source of type base64 (media_type image/png, image/jpeg, image/gif or image/webp, and data) or url (http or https), in a user message or a tool's result; where the engines take images. count_tokens refuses it"},
	{Name: "messages[].content[] document", Treatment: api.Refused},
	{Name: "messages[].content[] of any other type", Treatment: api.Refused},
	{Name: "tools[].name", Note: "1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes"},
	{Name: "tools[].description", Note: "a string"},
	{Name: "tools[].input_schema", Note: "a JSON Schema, which is an object"},
	{Name: "tools[].type", Note: "custom; the server's own tools are refused by name"},
	{Name: "tools[].cache_control", Treatment: api.Ignored, Note: whyCache},
	{Name: "tools[].eager_input_streaming", Treatment: api.Ignored, Note: "arguments are always streamed as they come"},
	{Name: "tools[].strict", Treatment: api.Refused, Defaults: []string{"false"}},
	{Name: "tools[].defer_loading", Treatment: api.Refused, Defaults: []string{"false"}},
	{Name: "tools[].input_examples", Treatment: api.Refused, Defaults: []string{"[]"}},
	{Name: "tools[].allowed_callers", Treatment: api.Refused, Defaults: []string{`["direct"]`}},
	{Name: "tool_choice.disable_parallel_tool_use", Note: "a boolean; true ends the answer with its first call"},
	{Name: "thinking.budget_tokens", Treatment: api.Ignored, Note: "checked to be an integer from 1024 below max_tokens; engines cannot bound thinking apart from max_tokens"},
	{Name: "thinking.display", Note: "summarized, or omitted: thinking blocks come without their text"},
	{Name: "output_config.effort", Note: "low, medium, high, xhigh or max; the last two become high; none when thinking is disabled"},
	{Name: "output_config.format", Note: "null, or an object with type json_schema and schema, where the engine can be told a JSON schema"},
	{Name: "header anthropic-version", Treatment: api.Ignored, Note: "there has been one version since 2023-06-01"},
	{Name: "header anthropic-beta", Treatment: api.Ignored, Note: "what a beta adds to a body is refused or carried by its field"},
	{Name: "header x-api-key", Treatment: api.Ignored, Note: "weir asks for no key; relayed requests carry it"},
}

// inner finds a field inside others.
func inner(name string) *api.Field {
	for i := range innerFields {
		if innerFields[i].Name == name {
			return &innerFields[i]
		}
	}
	return nil
}

// tables find an endpoint's field by its name.
var tables = [numEndpoints]api.Names{Messages: tableOf(Messages), CountTokens: tableOf(CountTokens)}

func tableOf(e Endpoint) api.Names {
	table := make(api.Names)
	for i := range fields {
		if on := fields[i].On; on == 0 || on&(1<<e) != 0 {
			table[fields[i].Name] = api.Name{Word: fields[i].Name, Index: i}
		}
	}
	return table
}

// foreign are fields of OpenAI's chat API, each with what has its place here.
var foreign = map[string]string{
	"stop":                  "stop_sequences",
	"max_completion_tokens": "max_tokens",
	"response_format":       "output_config.format",
	"reasoning_effort":      "output_config.effort",
	"parallel_tool_calls":   "tool_choice.disable_parallel_tool_use",
	"user":                  "metadata.user_id",
}

// field decodes one top-level field.
func (d *decoding) field(name string, raw []byte) error {
	at, ok := tables[d.endpoint][name]
	if !ok {
		if _, elsewhere := tables[Messages][name]; elsewhere {
			return api.Unsupported(name, d.endpoint.String(), nil)
		}
		if here := foreign[name]; here != "" {
			return &infer.Error{Code: infer.CodeUnsupported, Param: name,
				Message: fmt.Sprintf("%s is a field of /v1/chat/completions; in %s it is %s", name, Messages, here)}
		}
		return api.UnknownField(name, d.carrier(), tables[d.endpoint])
	}
	f := &fields[at.Index]
	read, err := d.Judge(&f.Field, name, raw)
	if !read || api.KindOf(raw) == 'n' && name != "messages" && name != "max_tokens" {
		return err
	}
	return f.take(d, raw)
}

// within judges a field of an object inside the body that is not carried there:
// name is its path in the table, path that in the body.
func (d *decoding) within(name, path string, raw []byte) error {
	f := inner(name)
	if f == nil || f.Treatment == api.Carried { // it belongs elsewhere
		return d.Unsupported(path)
	}
	_, err := d.Judge(f, path, raw)
	return err
}
