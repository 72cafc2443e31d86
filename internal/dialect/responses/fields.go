package responses

import (
	"fmt"
	"slices"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// Fields lists every field that weir knows by name, in a fixed order. Any other
// is refused.
func Fields() []dialect.Field {
	inner := slices.Clone(innerFields)
	for _, f := range includes {
		f.Name = includePath + f.Name
		inner = append(inner, f)
	}
	return dialect.Rows(fields, inner)
}

type field = dialect.Taken[*decoding]

func carry(name, accepts string, take func(*decoding, []byte) error) field {
	return field{Field: dialect.Field{Name: name, Note: accepts}, Take: take}
}

func carryBy(needs infer.Carries, name, accepts, nothing string, take func(*decoding, []byte) error) field {
	return field{Field: dialect.Field{Name: name, Note: accepts, Needs: needs, Defaults: []string{nothing}}, Take: take}
}

func refuse(name, instead, elsewhere string, defaults ...string) field {
	return field{Field: dialect.Field{Name: name, Treatment: dialect.Refused, Note: instead, Elsewhere: elsewhere, Defaults: defaults}}
}

func ignore(name, what, elsewhere string, defaults ...string) field {
	return field{Field: dialect.Field{Name: name, Treatment: dialect.Ignored, Note: what, Elsewhere: elsewhere, Defaults: defaults}}
}

// Advice for fields that need a server with a memory.
const (
	sendAll = "weir keeps no answers: send the conversation in input, which is its earlier items, the output items of each answer among them, and the new ones"
	wait    = "weir keeps no answers, so there would be nothing to fetch later: leave it out and read the answer, or its stream"
	inline  = "weir keeps no prompts: send the text in instructions and input"
)

// fields are the top-level fields. Defaults are in canonical JSON (RFC 8785).
var fields = []field{
	carry("model", "a string", func(*decoding, []byte) error { return nil }),
	carry("input", "a string, or a non-empty array of items: messages, function_call, custom_tool_call, their outputs, reasoning", takeInput),
	carry("instructions", "a string; becomes the system message", takeInstructions),
	carry("max_output_tokens", "an integer from 1", takeMaxOutputTokens),
	carry("temperature", "a number from 0 to 2", sampling("temperature", dialect.Temperature)),
	carry("top_p", "a number above 0, at most 1", sampling("top_p", dialect.TopP)),
	carry("tools", "an array of tools, each with a unique name; the prompt has those of type function and custom, and functions in namespaces", takeTools),
	carry("tool_choice", `"auto" or "none"; "required", a function or custom tool by its name, or allowed_tools with the mode required if an engine of the model enforces JSON schemas`, takeToolChoice),
	carry("parallel_tool_calls", "a boolean; false ends the answer with its first call", takeParallel),
	carry("text", "an object with format: text, json_object or json_schema, the latter two if an engine of the model enforces JSON schemas; and verbosity", takeText),
	carry("reasoning", "an object with effort, as far as the model's chat template knows one, and summary, which gives the reasoning itself in the summary's place", takeReasoning),
	carry("include", "an array of further parts of the answer, as below", takeInclude),
	carry("top_logprobs", "an integer from 0 to 20; above 0 include must hold message.output_text.logprobs", takeTopLogprobs),
	carry("stream", "a boolean", func(*decoding, []byte) error { return nil }),
	carry("stream_options", "an object, with stream: true", takeStreamOptions),
	carry("metadata", "an object of up to 16 strings of up to 512 characters, with names of up to 64 bytes; given back with the answer", takeMetadata),

	// Fields of weir and the engines, which OpenAI's API does not have.
	carry("top_k", "an integer from 1, or -1 or 0 for no limit", sampling("top_k", dialect.TopK)),
	carry("seed", "a 64-bit integer", sampling("seed", dialect.Seed)),
	carry("stop", "a string, or an array of up to 16 strings, each of 1 to 1024 bytes", takeStop),
	carry("min_tokens", "an integer from 0, at most max_output_tokens", takeMinTokens),
	carry("ignore_eos", "a boolean", takeIgnoreEOS),
	carry("chat_template_kwargs", "an object, handed to the chat template", takeTemplateKwargs),
	carryBy(infer.CarriesMinP, "min_p", "a number from 0 to 1", "0", sampling("min_p", dialect.MinP)),
	carryBy(infer.CarriesPenalties, "presence_penalty", "a number from -2 to 2", "0", sampling("presence_penalty", dialect.PresencePenalty)),
	carryBy(infer.CarriesPenalties, "frequency_penalty", "a number from -2 to 2", "0", sampling("frequency_penalty", dialect.FrequencyPenalty)),
	carryBy(infer.CarriesRepetitionPenalty, "repetition_penalty", "a number above 0, at most 2", "1", sampling("repetition_penalty", dialect.RepetitionPenalty)),

	refuse("previous_response_id", sendAll, "both read it, if their server stores answers"),
	refuse("conversation", sendAll, dialect.BothPass),
	refuse("background", wait, "both read it, if their server stores answers", "false"),
	refuse("background_options", wait, dialect.BothPass),
	refuse("prompt", inline, "vLLM refuses it, SGLang ignores it"),
	refuse("moderation", "leave it out: weir does not moderate texts", dialect.BothPass),

	ignore("truncation", "drops the beginning of input that is too long; weir refuses such input", dialect.VLLMReads, `"disabled"`),
	ignore("context_management", "makes long conversations shorter", dialect.BothPass, "[]"),
	ignore("access_programs", "names a program of OpenAI", dialect.BothPass, "{}", `{"cyber":"standard"}`),
	ignore("image", "makes images smaller", dialect.BothPass, "{}", `{"context_compression":"auto"}`, `{"context_compression":"disabled"}`),
	ignore("store", "keeps the answer; answers say false", "both read it, if their server stores answers", "false"),
	ignore("max_tool_calls", "bounds calls of built-in tools, which there are none of", dialect.BothRead),
	ignore("user", "names the end user", dialect.BothPass),
	ignore("safety_identifier", "names the end user", dialect.VLLMEchoes),
	ignore("prompt_cache_key", whyCache, dialect.VLLMEchoes),
	ignore("prompt_cache_retention", whyCache, dialect.VLLMEchoes),
	ignore("prompt_cache_options", whyCache, dialect.VLLMEchoes, "{}", `{"mode":"implicit"}`),
	ignore("service_tier", "names a service tier of OpenAI", "both only say it back", `"auto"`, `"default"`),
	ignore("session_id", "names a conversation", dialect.BothRead),
	ignore("client_metadata", "names the client, of Codex", dialect.BothPass, "{}"),
}

// Why fields are ignored.
const (
	whyCache   = "a hint for a cache: engines cache the KV of prompts by themselves, and usage reports the cached tokens"
	serverTool = "a tool that a server runs, or that no template describes to a model"
	bothTool   = "vLLM leaves it out, or runs it with --tool-server; SGLang leaves it out, or runs it"
	bothLeave  = "both take it and leave it out"
)

// innerFields are the fields inside the top-level ones. A name with a word behind it is an
// item, a part, a tool or a value of that type; a star is any end of that word.
var innerFields = slices.Concat([]dialect.Field{
	{Name: "input[] message", Note: "role and content; a user's, an assistant's, system or developer"},
	{Name: "input[] function_call", Note: "call_id, name and arguments"},
	{Name: "input[] function_call_output", Note: "output, and the call_id of a function_call before it; or name, for what a tool says uncalled"},
	{Name: "input[] custom_tool_call", Note: "call_id, name and input: the call of a function of one text, as the model made it"},
	{Name: "input[] custom_tool_call_output", Note: "output, and the call_id of a custom_tool_call before it"},
	{Name: "input[] reasoning", Note: "content, or else summary"},
}, refusedItems(
	"file_search_call", "computer_call", "computer_call_output", "web_search_call", "tool_search_call", "tool_search_output", "additional_tools",
	"configuration_update", "compaction", "compaction_trigger", "image_generation_call", "code_interpreter_call", "local_shell_call", "local_shell_call_output",
	"shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_approval_request", "mcp_approval_response", "mcp_call",
	"item_reference", "program", "program_output",
), []dialect.Field{
	{Name: "input[].id", Note: "a string, of no effect"},
	{Name: "input[].status", Note: "a string, of no effect"},
	{Name: "input[].phase", Note: "a string, of no effect"},
	{Name: "input[].role", Note: "user, assistant, system or developer"},
	{Name: "input[].content", Note: "a string, or an array of parts"},
	{Name: "input[].call_id", Note: "a string"},
	{Name: "input[].name", Note: "a string"},
	{Name: "input[].arguments", Note: "a string"},
	{Name: "input[].input", Note: "a string"},
	{Name: "input[].output", Whole: true, Note: "a string, or an array of parts as those of a user's content"},
	{Name: "input[].summary", Whole: true, Note: "an array of texts"},
	{Name: "input[].encrypted_content", Note: "a string; an item that has nothing else is refused"},
	{Name: "input[].async", Treatment: dialect.Refused, Defaults: []string{"false"}, Elsewhere: dialect.BothPass},
	{Name: "input[].caller", Treatment: dialect.Refused, Defaults: []string{`{"type":"direct"}`}, Elsewhere: dialect.BothPass},
	{Name: "input[].namespace", Note: "a string; that of the function by its name"},
	{Name: "input[].content[] input_text", Note: "text"},
	{Name: "input[].content[] output_text", Note: "text of the assistant's"},
	{Name: "input[].content[] reasoning_text", Note: "text of the assistant's reasoning"},
	{Name: "input[].content[] input_image", Note: "image_url, where the engines take images"},
	{Name: "input[].content[] input_audio", Note: "input_audio, where the engines take audio"},
	{Name: "input[].content[] input_file", Treatment: dialect.Refused, Note: "send its text as input_text, or its pages as input_image", Elsewhere: dialect.BothRefuse},
	{Name: "input[].content[] refusal", Note: "text"},
	{Name: "input[].content[].text", Note: "a string"},
	{Name: "input[].content[].refusal", Note: "a string"},
	{Name: "input[].content[].logprobs", Whole: true, Note: "of no effect"},
	{Name: annotations, Treatment: dialect.Ignored, Defaults: []string{"[]"}, Note: "the citations of an earlier answer", Elsewhere: dialect.BothPass},
	{Name: "input[].content[].image_url", Note: "a URL of http or https, or a data URL"},
	{Name: "input[].content[].file_id", Treatment: dialect.Refused, Note: "send the image itself, or its URL, in image_url", Elsewhere: dialect.BothRefuse},
	{Name: imageDetail, Treatment: dialect.Ignored, Defaults: []string{`"auto"`}, Note: "how closely to look: engines have no place for it", Elsewhere: dialect.SGLangReads},
	{Name: cacheBreakpoint, Treatment: dialect.Ignored, Note: whyCache, Elsewhere: dialect.BothPass},

	{Name: "tools[] function", Note: "a function that the caller runs"},
	{Name: "tools[] namespace", Note: "functions under one name: the model gets each as NAMESPACE__FUNCTION, as in vLLM, and calls have the two names separately"},
	{Name: "tools[] custom", Note: "a tool that takes free text; the prompt has it as a function with one string, input, as vLLM and SGLang do; its calls are items custom_tool_call"},
	{Name: "tools[] tool_search", Treatment: dialect.Ignored, Note: "finds tools; the model gets all of them", Elsewhere: bothLeave},
	{Name: "tools[] web_search*", Treatment: dialect.Ignored, Note: serverTool, Elsewhere: bothTool},
	{Name: "tools[] code_interpreter", Treatment: dialect.Ignored, Note: serverTool, Elsewhere: bothTool},
	{Name: "tools[] mcp", Treatment: dialect.Ignored, Note: serverTool, Elsewhere: bothTool},
	{Name: "tools[] file_search", Treatment: dialect.Ignored, Note: serverTool, Elsewhere: bothLeave},
	{Name: "tools[] computer*", Treatment: dialect.Ignored, Note: serverTool, Elsewhere: "vLLM leaves it out, SGLang leaves out computer_use_preview and refuses others"},
	{Name: "tools[] image_generation", Treatment: dialect.Ignored, Note: serverTool, Elsewhere: bothLeave},
	{Name: "tools[] local_shell", Treatment: dialect.Ignored, Note: serverTool, Elsewhere: bothLeave},
	{Name: "tools[] shell", Treatment: dialect.Ignored, Note: serverTool, Elsewhere: bothLeave},
	{Name: "tools[] apply_patch", Treatment: dialect.Ignored, Note: serverTool, Elsewhere: "vLLM leaves it out, SGLang refuses it"},
	{Name: "tools[] programmatic_tool_calling", Treatment: dialect.Ignored, Note: serverTool, Elsewhere: "vLLM leaves it out, SGLang refuses it"},
	{Name: "tools[].name", Note: "1 to 128 letters, digits, underscores, hyphens, dots, colons and slashes"},
	{Name: "tools[].description", Note: "a string; that of a namespace comes before that of its first function"},
	{Name: "tools[].parameters", Whole: true, Note: "a JSON Schema, which is an object"},
	{Name: strictTool, Note: "a boolean; true is enforced if a call is forced, and otherwise named as ignored", Elsewhere: "both hold to it, with the tool parsers that can"},
	{Name: deferLoading, Treatment: dialect.Ignored, Defaults: []string{"false"}, Note: "the model gets the tool at once", Elsewhere: "both hand it to the chat template"},
	{Name: outputSchema, Treatment: dialect.Ignored, Note: "for calls by programs, which weir does not have", Elsewhere: dialect.BothPass},
	{Name: toolAsync, Treatment: dialect.Refused, Defaults: []string{"false"}, Elsewhere: dialect.BothPass},
	{Name: allowedCallers, Treatment: dialect.Refused, Defaults: []string{`["direct"]`}, Elsewhere: dialect.BothPass},
	{Name: "tools[].format", Note: "of a tool of type custom: an object"},
	{Name: "tools[].format text", Whole: true, Note: "any text, as without a format"},
	{Name: grammarTool, Treatment: dialect.Ignored, Note: "the tool is left out: nothing would hold its calls to the grammar", Elsewhere: "vLLM refuses it, SGLang describes it to the model"},
	{Name: "tools[].tools", Note: "of a namespace: an array of tools"},
	{Name: "tools[].tools[] function", Note: "as outside, each with a name that is unique in the namespace"},
	{Name: "tools[].tools[] custom", Treatment: dialect.Ignored, Note: "in a namespace such a tool is left out", Elsewhere: "vLLM leaves it out, SGLang makes it a function that takes a text"},
	{Name: "tools[].tools[].name", Note: "as outside"},
	{Name: "tools[].tools[].description", Note: "a string"},
	{Name: "tools[].tools[].parameters", Whole: true, Note: "a JSON Schema, which is an object"},
	{Name: "tools[].tools[].strict", Note: "as outside", Elsewhere: "both hold to it, with the tool parsers that can"},
	{Name: "tools[].tools[].defer_loading", Treatment: dialect.Ignored, Defaults: []string{"false"}, Note: "the model gets the tool at once", Elsewhere: "both hand it to the chat template"},
	{Name: "tools[].tools[].output_schema", Treatment: dialect.Ignored, Note: "for calls by programs, which weir does not have", Elsewhere: dialect.BothPass},
	{Name: "tools[].tools[].async", Treatment: dialect.Refused, Defaults: []string{"false"}, Elsewhere: dialect.BothPass},
	{Name: "tools[].tools[].allowed_callers", Treatment: dialect.Refused, Defaults: []string{`["direct"]`}, Elsewhere: dialect.BothPass},

	{Name: "tool_choice function", Note: "name"},
	{Name: "tool_choice custom", Note: "name"},
	{Name: "tool_choice allowed_tools", Note: "mode and tools"},
	{Name: "tool_choice *", Treatment: dialect.Refused, Note: "it forces a tool that is left out", Elsewhere: "vLLM refuses it, SGLang takes it for auto"},
	{Name: "tool_choice.name", Note: "a string; of a function in a namespace its own name, or both names joined"},
	{Name: "tool_choice.namespace", Note: "a string, beside the name of a function in that namespace"},
	{Name: "tool_choice.mode", Note: "auto or required"},
	{Name: "tool_choice.tools", Whole: true, Note: "an array of tools, each a type, a name and maybe a namespace; a namespace stands for all of its functions"},

	{Name: "text.format", Note: "an object. A tool_choice that forces a call takes precedence, as in vLLM, and the field is named as ignored"},
	{Name: "text.format text", Note: "anything may come"},
	{Name: "text.format json_object", Note: "any JSON object"},
	{Name: "text.format json_schema", Note: "JSON of the schema"},
	{Name: "text.format.schema", Whole: true, Note: "a JSON schema"},
	{Name: "text.format.name", Note: "any"},
	{Name: "text.format.description", Note: "any"},
	{Name: "text.format.strict", Note: "any: the output always matches"},
	{Name: verbosity, Treatment: dialect.Ignored, Defaults: []string{`"medium"`}, Note: "a shorter or longer answer, from models that were trained with this option", Elsewhere: dialect.VLLMEchoes},
	{Name: "reasoning.effort", Note: "none, minimal, low, medium, high, xhigh or max"},
	{Name: "reasoning.summary", Note: "auto, concise or detailed"},
	{Name: "reasoning.generate_summary", Note: "as summary, whose older name it is"},
	{Name: "reasoning.context", Treatment: dialect.Refused, Defaults: []string{`"auto"`}, Note: "the chat template decides which earlier reasoning is shown", Elsewhere: dialect.BothPass},
	{Name: "reasoning.mode", Treatment: dialect.Refused, Defaults: []string{`"standard"`}, Elsewhere: dialect.BothPass},
	{Name: "stream_options.include_usage", Note: "a boolean, of no effect: the last event has the usage. AIPerf sends it, as to chats"},
	{Name: obfuscation, Treatment: dialect.Ignored, Defaults: []string{"false"}, Note: "padding, so that the sizes of events reveal less", Elsewhere: dialect.BothPass},
	{Name: "header openai-beta", Treatment: dialect.Ignored, Note: "weir judges the fields that a beta adds to a body", Elsewhere: dialect.BothPass},
})

func refusedItems(kinds ...string) (rows []dialect.Field) {
	for _, kind := range kinds {
		note := "what a built-in tool did: there are none here"
		switch kind {
		case "item_reference":
			note = "weir keeps no items: send the item itself"
		case "additional_tools", "configuration_update", "compaction", "compaction_trigger", "program", "program_output":
			note = "leave it out"
		}
		rows = append(rows, dialect.Field{Name: "input[] " + kind, Treatment: dialect.Refused, Note: note, Elsewhere: "both refuse it, or render what they know of it"})
	}
	return rows
}

// Rows of innerFields that are noted when they are left out, or judged.
const (
	annotations     = "input[].content[].annotations"
	imageDetail     = "input[].content[].detail"
	cacheBreakpoint = "input[].content[].prompt_cache_breakpoint"
	strictTool      = "tools[].strict"
	deferLoading    = "tools[].defer_loading"
	outputSchema    = "tools[].output_schema"
	toolAsync       = "tools[].async"
	allowedCallers  = "tools[].allowed_callers"
	grammarTool     = "tools[].format grammar"
	verbosity       = "text.verbosity"
	obfuscation     = "stream_options.include_obfuscation"
	includePath     = "include[] "
)

// inner finds a field inside others.
func inner(name string) *dialect.Field { return dialect.Row(innerFields, name) }

// judge judges a field of innerFields that is not carried.
func (d *decoding) judge(name, path string, raw []byte) error {
	_, err := d.Judge(inner(name), path, raw)
	return err
}

// outputLogprobs is the word of include that asks for log probabilities.
const outputLogprobs = "message.output_text.logprobs"

// noTools is why what a built-in tool did cannot be included.
const noTools = "there are no built-in tools here"

// includes are the values of include that weir knows by name, in a fixed order. Any
// other is an error.
var includes = []dialect.Field{
	{Name: outputLogprobs, Note: "log probabilities of the tokens of the text, with top_logprobs alternatives to each"},
	{Name: "reasoning.encrypted_content", Note: "reasoning is returned and accepted unencrypted"},
	{Name: "file_search_call.results", Treatment: dialect.Ignored, Note: noTools, Elsewhere: dialect.BothPass},
	{Name: "web_search_call.results", Treatment: dialect.Ignored, Note: noTools, Elsewhere: dialect.BothRefuse},
	{Name: "web_search_call.action.sources", Treatment: dialect.Ignored, Note: noTools, Elsewhere: dialect.BothRefuse},
	{Name: "code_interpreter_call.outputs", Treatment: dialect.Ignored, Note: noTools, Elsewhere: dialect.BothPass},
	{Name: "computer_call_output.output.image_url", Treatment: dialect.Ignored, Note: noTools, Elsewhere: dialect.BothPass},
	{Name: "message.input_image.image_url", Treatment: dialect.Ignored, Note: "answers do not repeat their input", Elsewhere: dialect.BothPass},
}

// knownIncludes are their names.
var knownIncludes = func() (words []string) {
	for i := range includes {
		words = append(words, includes[i].Name)
	}
	return words
}()

// names find a field's position in fields.
var names = func() dialect.Names {
	var words []string
	for _, f := range fields {
		words = append(words, f.Name)
	}
	return dialect.NewNames(words...)
}()

// field decodes one top-level field.
func (d *decoding) field(name string, raw []byte) error {
	at, ok := names[name]
	if !ok {
		return d.unknown(name)
	}
	f := &fields[at.Index]
	d.echo.ignored(name, raw)
	if read, err := d.Judge(&f.Field, name, raw); !read || dialect.KindOf(raw) == 'n' && name != "input" {
		return err
	}
	return f.Take(d, raw)
}

// unsupported refuses a field, or a part of one, that the engine kind cannot
// carry.
func (d *decoding) unsupported(path string, defaults ...string) error {
	return d.Unsupported(path, defaults...)
}

// elsewhere are fields of the chat API, each with what has its place here.
var elsewhere = map[string]string{
	"messages":              "input",
	"max_tokens":            "max_output_tokens",
	"max_completion_tokens": "max_output_tokens",
	"response_format":       "text.format",
	"reasoning_effort":      "reasoning.effort",
	"verbosity":             "text.verbosity",
}

// unknown refuses a field by a name that is not in the table.
func (d *decoding) unknown(name string) error {
	if here := elsewhere[name]; here != "" && !d.Passes(name) {
		return &infer.Error{Code: infer.CodeUnsupported, Param: name,
			Message: fmt.Sprintf("%s is a field of /v1/chat/completions; in %s it is %s", name, Path, here)}
	}
	return d.UnknownField(name, names)
}
