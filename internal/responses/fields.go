package responses

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
		f.Defaults = slices.Clone(f.Defaults)
		out = append(out, f.Field)
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

func carryBy(needs infer.Carries, name, accepts, nothing string, take func(*decoding, []byte) error) field {
	return field{api.Field{Name: name, Note: accepts, Needs: needs, Defaults: []string{nothing}}, take}
}

func refuse(name, instead string, defaults ...string) field {
	return field{Field: api.Field{Name: name, Treatment: api.Refused, Note: instead, Defaults: defaults}}
}

func ignore(name, why string) field {
	return field{Field: api.Field{Name: name, Treatment: api.Ignored, Note: why}}
}

// What to do without the fields that need a server with a memory.
const (
	sendAll = "weir keeps no answers: send the conversation in input, which is its earlier items, the output items of each answer among them, and the new ones"
	wait    = "weir keeps no answers, so there would be nothing to fetch later: leave it out and read the answer, or its stream"
	inline  = "weir keeps no prompts: send the text in instructions and input"
)

// fields are the top-level fields. Defaults are in canonical JSON (RFC 8785).
var fields = []field{
	carry("model", "a string", func(*decoding, []byte) error { return nil }),
	carry("input", "a string, or a non-empty array of items: messages, function_call, function_call_output, reasoning", takeInput),
	carry("instructions", "a string; becomes the system message", takeInstructions),
	carry("max_output_tokens", "an integer from 1", takeMaxOutputTokens),
	carry("temperature", "a number from 0 to 2", sampling("temperature", api.Temperature)),
	carry("top_p", "a number above 0, at most 1", sampling("top_p", api.TopP)),
	carry("tools", "an array of tools of type function, each with a unique name", takeTools),
	carry("tool_choice", `"auto" or "none"; "required", a function by its name, or allowed_tools with the mode required where the engine can be told a JSON schema`, takeToolChoice),
	carry("parallel_tool_calls", "a boolean; false ends the answer with its first call", takeParallel),
	carry("text", "an object with format: text, json_object or json_schema, the latter two where the engine can be told a JSON schema; verbosity only medium", takeText),
	carry("reasoning", "an object with effort, as far as the model's chat template knows one, and summary, which gives the reasoning itself in the summary's place", takeReasoning),
	carry("include", "an array of what else the answer is to hold, as below", takeInclude),
	carry("top_logprobs", "an integer from 0 to 20; above 0 include must hold message.output_text.logprobs", takeTopLogprobs),
	carry("stream", "a boolean", func(*decoding, []byte) error { return nil }),
	carry("stream_options", "an object, with stream: true; include_obfuscation only false", takeStreamOptions),
	carry("metadata", "an object of up to 16 strings of up to 512 characters, with names of up to 64 bytes; given back with the answer", takeMetadata),

	// Of weir and the engines, not of OpenAI's API.
	carry("top_k", "an integer from 1, or -1 or 0 for no limit", sampling("top_k", api.TopK)),
	carry("seed", "a 64-bit integer", sampling("seed", api.Seed)),
	carry("stop", "a string, or an array of up to 16 strings, each of 1 to 1024 bytes", takeStop),
	carry("min_tokens", "an integer from 0, at most max_output_tokens", takeMinTokens),
	carry("ignore_eos", "a boolean", takeIgnoreEOS),
	carry("chat_template_kwargs", "an object, handed to the chat template", takeTemplateKwargs),
	carryBy(infer.CarriesMinP, "min_p", "a number from 0 to 1", "0", sampling("min_p", api.MinP)),
	carryBy(infer.CarriesPenalties, "presence_penalty", "a number from -2 to 2", "0", sampling("presence_penalty", api.PresencePenalty)),
	carryBy(infer.CarriesPenalties, "frequency_penalty", "a number from -2 to 2", "0", sampling("frequency_penalty", api.FrequencyPenalty)),
	carryBy(infer.CarriesRepetitionPenalty, "repetition_penalty", "a number above 0, at most 2", "1", sampling("repetition_penalty", api.RepetitionPenalty)),

	refuse("previous_response_id", sendAll),
	refuse("conversation", sendAll),
	refuse("background", wait, "false"),
	refuse("background_options", wait),
	refuse("prompt", inline),
	refuse("truncation", `leave it out, or shorten input yourself: what does not fit is refused`, `"disabled"`),
	refuse("context_management", "leave it out, or shorten input yourself"),
	refuse("moderation", "leave it out"),
	refuse("access_programs", "leave it out"),
	refuse("image", "leave it out"),
	refuse("prompt_cache_options", "leave it out: engines keep prefixes by themselves", "{}", `{"mode":"implicit"}`),

	ignore("store", "weir keeps no answers; answers say false"),
	ignore("max_tool_calls", "bounds calls of built-in tools, which there are none of"),
	ignore("user", "names the end user"),
	ignore("safety_identifier", "names the end user"),
	ignore("prompt_cache_key", "a hint for OpenAI's own cache"),
	ignore("prompt_cache_retention", "a hint for OpenAI's own cache"),
	ignore("service_tier", "names a tier of OpenAI's"),
}

// outputLogprobs is the word of include that asks for log probabilities.
const outputLogprobs = "message.output_text.logprobs"

// noTools is why what a built-in tool did cannot be included.
const noTools = "there are no built-in tools here"

// includes are the values of include that weir knows by name, in a fixed order. Any
// other is an error.
var includes = []api.Field{
	{Name: outputLogprobs, Note: "log probabilities of the tokens of the text, with top_logprobs alternatives to each"},
	{Name: "reasoning.encrypted_content", Treatment: api.Ignored, Note: "reasoning comes in the open and is taken back so"},
	{Name: "file_search_call.results", Treatment: api.Refused, Note: noTools},
	{Name: "web_search_call.results", Treatment: api.Refused, Note: noTools},
	{Name: "web_search_call.action.sources", Treatment: api.Refused, Note: noTools},
	{Name: "code_interpreter_call.outputs", Treatment: api.Refused, Note: noTools},
	{Name: "computer_call_output.output.image_url", Treatment: api.Refused, Note: noTools},
	{Name: "message.input_image.image_url", Treatment: api.Refused, Note: "answers do not repeat their input"},
}

// carriedIncludes are those that are not refused.
var carriedIncludes = func() []string {
	var words []string
	for _, f := range includes {
		if f.Treatment != api.Refused {
			words = append(words, f.Name)
		}
	}
	return words
}()

// names find a field's position in fields.
var names = func() api.Names {
	var words []string
	for _, f := range fields {
		words = append(words, f.Name)
	}
	return api.NewNames(words...)
}()

// field decodes one top-level field.
func (d *decoding) field(name string, raw []byte) error {
	at, ok := names[name]
	if !ok {
		return d.unknown(name)
	}
	f := &fields[at.Index]
	if read, err := d.Judge(&f.Field, name, raw); !read || api.KindOf(raw) == 'n' && name != "input" {
		return err
	}
	return f.take(d, raw)
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
	if here := elsewhere[name]; here != "" {
		return &infer.Error{Code: infer.CodeUnsupported, Param: name,
			Message: fmt.Sprintf("%s is a field of /v1/chat/completions; in %s it is %s", name, Path, here)}
	}
	return api.UnknownField(name, d.Carrier(), names)
}
