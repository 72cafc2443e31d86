package anthropic

import (
	"fmt"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// Fields lists every field that weir knows by name, in a fixed order. Any other
// is refused.
func Fields() []dialect.Field { return dialect.Rows(fields, innerFields) }

type field = dialect.Taken[*decoding]

func carry(name, accepts string, take func(*decoding, []byte) error) field {
	return field{Field: dialect.Field{Name: name, Note: accepts}, Take: take}
}

// answer is carry of a field that only a request for an answer has.
func answer(name, accepts string, take func(*decoding, []byte) error) field {
	return field{Field: dialect.Field{Name: name, Note: accepts, On: 1 << Messages}, Take: take}
}

func refuse(name, instead, elsewhere string, defaults ...string) field {
	return field{Field: dialect.Field{Name: name, Treatment: dialect.Refused, Note: instead, Elsewhere: elsewhere, Defaults: defaults}}
}

func ignore(name, what, elsewhere string, defaults ...string) field {
	return field{Field: dialect.Field{Name: name, Treatment: dialect.Ignored, Note: what, Elsewhere: elsewhere, Defaults: defaults}}
}

// The services that ignored fields ask for.
const (
	whyCache = "a hint for a cache: engines cache the KV of prompts by themselves, and usage reports the cached tokens"
	whoAsks  = "says who asks"
	whyTool  = "a tool of Anthropic, which its servers run or its models were trained on"
	notHere  = "leave it out: this server has no tools"

	leavesTool  = "vLLM refuses it, SGLang leaves it out"
	readsBlock  = "vLLM refuses it, SGLang reads it"
	refuseBlock = dialect.BothRefuse
)

// fields are the top-level fields.
var fields = []field{
	carry("model", "a string", nothing),
	carry("messages", "a non-empty array of messages; a last one of the assistant's is continued", takeMessages),
	carry("system", "a string, or an array of text blocks; becomes a first message, unless the array is empty", takeSystem),
	carry("tools", "an array of tools, each with a unique name; the prompt has those of type custom", takeTools),
	carry("tool_choice", "an object whose type is auto, none, any or tool; the last two if an engine of the model enforces JSON schemas", takeToolChoice),
	carry("thinking", "an object whose type is enabled, adaptive, between_tools or disabled; becomes enable_thinking and thinking, true or false, for the chat template", takeThinking),
	carry("output_config", "an object with effort (becomes reasoning_effort for the chat template) and format", takeOutputConfig),
	carry("output_format", "as output_config.format, whose older name it is", takeOutputFormat),
	carry("chat_template_kwargs", "an object, handed to the chat template; an extension of vLLM's", takeTemplateKwargs),

	answer("max_tokens", "an integer from 1, required", takeMaxTokens),
	answer("stream", "a boolean", nothing),
	answer("stop_sequences", "an array of up to 64 strings, each of 1 to 1024 bytes", takeStops),
	answer("temperature", "a number from 0 to 2", sampling("temperature", dialect.Temperature)),
	answer("top_p", "a number above 0, at most 1", sampling("top_p", dialect.TopP)),
	answer("top_k", "an integer from 0, which is no limit", takeTopK),

	refuse("thread", "leave it out: weir keeps no conversations, send all messages", dialect.BothPass),
	refuse("inference_geo", "leave it out: the operator decides where the engines are", dialect.BothPass),

	ignore("container", "keeps files that the server's tools wrote, and loads skills", dialect.BothPass),
	ignore("mcp_servers", "lets the server call tools of other servers", dialect.BothPass, "[]"),
	ignore("context_management", "removes old parts of long conversations", dialect.BothPass, "{}", `{"edits":[]}`),
	ignore("compaction", "makes long conversations shorter", dialect.BothPass),
	ignore("fallbacks", "names models to try if this one refuses", dialect.BothPass, "[]"),
	ignore("fallback_credit_token", "names who pays for a fallback", dialect.BothPass),
	ignore("billing_policy", "names who pays", dialect.BothPass),
	ignore("diagnostics", "asks why a cache was missed", dialect.BothPass),
	ignore("speed", "a faster answer, at a higher price", dialect.BothPass, `"standard"`),
	ignore("metadata", whoAsks, dialect.BothPass, "{}"),
	ignore("user_profile_id", whoAsks, dialect.BothPass),
	ignore("service_tier", "there is one tier; the answer states standard", dialect.BothPass, `"auto"`, `"standard_only"`),
	ignore("cache_control", whyCache, dialect.BothPass),
}

// innerFields are the fields inside the top-level ones, and those of the head. A name with
// a word behind it is a block, a tool or a value of that type; a star is any end of that
// word.
var innerFields = []dialect.Field{
	{Name: "messages[].role", Note: "user, assistant or system"},
	{Name: "messages[].content", Note: "a string, or an array of blocks; adjacent texts are joined as [those of a chat](engines.md#request-fields-by-wire) are"},
	{Name: "messages[].clear_at", Treatment: dialect.Ignored, Note: "clears the message from long conversations", Elsewhere: dialect.BothPass},
	{Name: "messages[].output_config", Treatment: dialect.Refused, Elsewhere: dialect.BothPass},
	{Name: "messages[].content[] text", Note: "text"},
	{Name: "messages[].content[] tool_use", Note: "id, name and input, in an assistant message; a tool call"},
	{Name: "messages[].content[] tool_result", Note: "tool_use_id and content (a string, or an array of text and image blocks), in a user message; a message of role tool"},
	{Name: "messages[].content[] thinking", Note: "thinking, in an assistant message; reasoning_content, for templates that read it"},
	{Name: redactedThinking, Treatment: dialect.Ignored, Note: "encrypted by another service: no engine could read it", Elsewhere: dialect.BothPass},
	{Name: "messages[].content[] image", Note: "a source of type base64 (media_type image/png, image/jpeg, image/gif or image/webp, and data) or url (http or https), in a user message or a tool's result; where the engines take images. count_tokens refuses it"},
	{Name: "messages[].content[] document", Treatment: dialect.Refused, Note: "send its text, or its pages as images", Elsewhere: refuseBlock},
	{Name: "messages[].content[] search_result", Treatment: dialect.Refused, Note: "send its text", Elsewhere: readsBlock},
	{Name: "messages[].content[] server_tool_use", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] web_search_tool_result", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] web_fetch_tool_result", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] code_execution_tool_result", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] bash_code_execution_tool_result", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] text_editor_code_execution_tool_result", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] tool_search_tool_result", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] advisor_tool_result", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] mcp_tool_use", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] mcp_tool_result", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] mcp_tool_listing", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] container_upload", Treatment: dialect.Refused, Note: notHere, Elsewhere: refuseBlock},
	{Name: "messages[].content[] compaction", Treatment: dialect.Refused, Note: "send the messages that it replaces", Elsewhere: refuseBlock},
	{Name: "messages[].content[] fallback", Treatment: dialect.Refused, Note: "leave it out", Elsewhere: refuseBlock},
	{Name: "messages[].content[] tool_addition", Treatment: dialect.Refused, Note: "send the tool in tools", Elsewhere: "vLLM reads it, SGLang refuses it"},
	{Name: "messages[].content[] tool_removal", Treatment: dialect.Refused, Note: "leave the tool out of tools", Elsewhere: "vLLM reads it, SGLang refuses it"},
	{Name: "messages[].content[].text", Note: "a string"},
	{Name: "messages[].content[].id", Note: "a string"},
	{Name: "messages[].content[].name", Note: "a string"},
	{Name: "messages[].content[].input", Note: "an object"},
	{Name: "messages[].content[].tool_use_id", Note: "a string"},
	{Name: "messages[].content[].content", Whole: true, Note: "a string, or an array of text and image blocks"},
	{Name: "messages[].content[].is_error", Note: "a boolean; true puts \"Error: \" before the result, since chat templates have no place for it"},
	{Name: "messages[].content[].thinking", Note: "a string"},
	{Name: "messages[].content[].signature", Note: "any, of no effect: weir signs nothing; its own thinking blocks say \"unsigned\""},
	{Name: "messages[].content[].source", Whole: true, Note: "an object"},
	{Name: "messages[].content[].cache_control", Treatment: dialect.Ignored, Note: whyCache, Elsewhere: dialect.BothPass},
	{Name: "messages[].content[].citations", Treatment: dialect.Ignored, Defaults: []string{"[]"}, Note: "the citations of an earlier answer", Elsewhere: dialect.BothPass},
	{Name: "messages[].content[].caller", Treatment: dialect.Refused, Defaults: []string{`{"type":"direct"}`}, Elsewhere: dialect.BothPass},
	{Name: "messages[].content[].toolset_name", Treatment: dialect.Refused, Elsewhere: dialect.BothPass},
	{Name: "messages[].content[].transformations", Treatment: dialect.Ignored, Note: "makes images smaller", Elsewhere: dialect.BothPass},
	{Name: "system[] text", Note: "text"},
	{Name: "system[].text", Note: "a string"},
	{Name: "system[].cache_control", Treatment: dialect.Ignored, Note: whyCache, Elsewhere: dialect.BothPass},
	{Name: "system[].citations", Treatment: dialect.Ignored, Defaults: []string{"[]"}, Note: "the citations of an earlier answer", Elsewhere: dialect.BothPass},

	{Name: "tools[] custom", Note: "a tool that the caller runs; the type may be left out"},
	{Name: "tools[] web_search_*", Treatment: dialect.Ignored, Note: whyTool, Elsewhere: leavesTool},
	{Name: "tools[] web_fetch_*", Treatment: dialect.Ignored, Note: whyTool, Elsewhere: dialect.BothRefuse},
	{Name: "tools[] code_execution_*", Treatment: dialect.Ignored, Note: whyTool, Elsewhere: dialect.BothRefuse},
	{Name: "tools[] bash_*", Treatment: dialect.Ignored, Note: whyTool, Elsewhere: leavesTool},
	{Name: "tools[] text_editor_*", Treatment: dialect.Ignored, Note: whyTool, Elsewhere: leavesTool},
	{Name: "tools[] computer_*", Treatment: dialect.Ignored, Note: whyTool, Elsewhere: leavesTool},
	{Name: "tools[] browser_toolset_*", Treatment: dialect.Ignored, Note: whyTool, Elsewhere: dialect.BothRefuse},
	{Name: "tools[] memory_*", Treatment: dialect.Ignored, Note: whyTool, Elsewhere: dialect.BothRefuse},
	{Name: "tools[] advisor_*", Treatment: dialect.Ignored, Note: whyTool, Elsewhere: dialect.BothRefuse},
	{Name: "tools[] tool_search_tool_*", Treatment: dialect.Ignored, Note: "finds tools; the model gets all of them", Elsewhere: dialect.BothRefuse},
	{Name: "tools[] mcp_toolset", Treatment: dialect.Ignored, Note: whyTool, Elsewhere: dialect.BothRefuse},
	{Name: "tools[].name", Note: "1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes"},
	{Name: "tools[].description", Note: "a string"},
	{Name: "tools[].input_schema", Whole: true, Note: "a JSON Schema, which is an object"},
	{Name: "tools[].type", Note: "custom, or a type of the rows above"},
	{Name: "tools[].cache_control", Treatment: dialect.Ignored, Note: whyCache, Elsewhere: dialect.BothPass},
	{Name: "tools[].eager_input_streaming", Note: "any: arguments are always streamed as they come", Elsewhere: dialect.BothPass},
	{Name: strictTool, Note: "a boolean; true is enforced if a call is forced, and otherwise named as ignored", Elsewhere: "both hold to it, with the tool parsers that can"},
	{Name: "tools[].defer_loading", Treatment: dialect.Ignored, Defaults: []string{"false"}, Note: "the model gets the tool at once", Elsewhere: "both hand it to the chat template"},
	{Name: "tools[].input_examples", Treatment: dialect.Refused, Defaults: []string{"[]"}, Note: "put them into the description", Elsewhere: dialect.BothPass},
	{Name: "tools[].allowed_callers", Treatment: dialect.Refused, Defaults: []string{`["direct"]`}, Elsewhere: dialect.BothPass},
	{Name: "tool_choice auto", Note: "the model decides"},
	{Name: "tool_choice any", Note: "one of the tools is called"},
	{Name: "tool_choice tool", Note: "the tool of that name is called"},
	{Name: "tool_choice none", Note: "none is"},
	{Name: "tool_choice.name", Note: "a string, with the type tool"},
	{Name: "tool_choice.disable_parallel_tool_use", Note: "a boolean; true ends the answer with its first call"},
	{Name: "thinking enabled", Note: "the model thinks"},
	{Name: "thinking adaptive", Note: "the same"},
	{Name: "thinking between_tools", Note: "the same"},
	{Name: "thinking disabled", Note: "it does not"},
	{Name: thinkingBudget, Note: "checked to be an integer from 1024 below max_tokens, and named as ignored: engines cannot bound thinking apart from max_tokens", Elsewhere: dialect.BothPass},
	{Name: "thinking.display", Note: "summarized or updates: thinking blocks have their text; omitted: they come without it"},
	{Name: blockBinding, Treatment: dialect.Ignored, Note: "the treatment of thinking blocks from another conversation", Elsewhere: dialect.BothPass},
	{Name: "output_config.effort", Note: "low, medium, high, xhigh or max; the last two become high; none when thinking is disabled"},
	{Name: outputFormat, Note: "null, or an object with type json_schema and schema, if an engine of the model enforces JSON schemas. A tool_choice that forces a call wins over it; then it is named as ignored"},
	{Name: "output_config.format json_schema", Note: "JSON of the schema"},
	{Name: "output_config.format.schema", Whole: true, Note: "a JSON schema"},
	{Name: taskBudget, Treatment: dialect.Ignored, Note: "the budget of a task of many requests", Elsewhere: "vLLM ignores it, SGLang passes it on as a hint"},
	{Name: "header anthropic-version", Note: "any: there has been one version since 2023-06-01"},
	{Name: "header anthropic-beta", Treatment: dialect.Ignored, Note: "any names: fields that a beta adds to a body are treated one by one", Elsewhere: dialect.BothPass},
	{Name: "header anthropic-user-profile-id", Treatment: dialect.Ignored, Note: whoAsks, Elsewhere: dialect.BothPass},
	{Name: "header anthropic-workspace-id", Treatment: dialect.Ignored, Note: whoAsks, Elsewhere: dialect.BothPass},
	{Name: "header x-api-key", Note: "any: weir asks for no key; relayed requests carry it"},
}

// Rows of innerFields that are noted when they are left out.
const (
	redactedThinking = "messages[].content[] redacted_thinking"
	strictTool       = "tools[].strict"
	thinkingBudget   = "thinking.budget_tokens"
	blockBinding     = "thinking.block_binding"
	outputFormat     = "output_config.format"
	taskBudget       = "output_config.task_budget"
)

// toolTypes are the types of tools that are known.
var toolTypes = dialect.ToolTypes(innerFields)

// inner finds a field inside others.
func inner(name string) *dialect.Field { return dialect.Row(innerFields, name) }

// tables find an endpoint's field by its name.
var tables = [numEndpoints]dialect.Names{Messages: tableOf(Messages), CountTokens: tableOf(CountTokens)}

func tableOf(e Endpoint) dialect.Names {
	table := make(dialect.Names)
	for i := range fields {
		if on := fields[i].On; on == 0 || on&(1<<e) != 0 {
			table[fields[i].Name] = dialect.Name{Word: fields[i].Name, Index: i}
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
			if d.Passes(name) {
				return nil
			}
			return dialect.Unsupported(name, d.endpoint.String(), nil)
		}
		if here := foreign[name]; here != "" && !d.Passes(name) {
			return &infer.Error{Code: infer.CodeUnsupported, Param: name,
				Message: fmt.Sprintf("%s is a field of /v1/chat/completions; in %s it is %s", name, Messages, here)}
		}
		return d.UnknownField(name, tables[d.endpoint])
	}
	f := &fields[at.Index]
	read, err := d.Judge(&f.Field, name, raw)
	if !read || dialect.KindOf(raw) == 'n' && name != "messages" && name != "max_tokens" {
		return err
	}
	return f.Take(d, raw)
}

// within judges a field of an object inside the body that is not carried there:
// name is its path in the table, path that in the body, known are the others of the
// object.
func (d *decoding) within(name, path string, raw []byte, known ...string) error {
	switch f := inner(name); {
	case f == nil:
		return d.UnknownMember(path, known...)
	case f.Treatment == dialect.Carried: // it belongs elsewhere
		return d.Unsupported(path)
	default:
		_, err := d.Judge(f, path, raw)
		return err
	}
}
