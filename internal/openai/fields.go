package openai

import (
	"slices"

	"weir/internal/api"
	"weir/internal/infer"
)

// The treatments of api, which this table is made of.
const (
	Carried = api.Carried
	Refused = api.Refused
	Ignored = api.Ignored
)

// FieldInfo describes a field of a request body.
type FieldInfo struct {
	// Name is the field's path: "stop", "messages[].role".
	Name string
	// Chat and the others say which endpoints have the field.
	Chat, Completions, Tokenize, Detokenize bool
	Treatment                               api.Treatment
	// Defaults are the JSON values besides null that a refused field may have,
	// because they ask for what happens anyway.
	Defaults []string
	// Accepts says what a carried field may be.
	Accepts string
	// Needs is what an engine's wire must carry for the field to be carried;
	// otherwise it is refused like others. Parts of the value may need more.
	Needs infer.Carries
}

// Fields lists every field that weir knows by name, in a fixed order. Any other
// is refused.
func Fields() []FieldInfo {
	var out []FieldInfo
	for _, f := range fields {
		info := f.FieldInfo
		info.Defaults = slices.Clone(info.Defaults)
		out = append(out, info)
	}
	for _, f := range slices.Concat(messageFields, partFields) {
		f.Defaults = slices.Clone(f.Defaults)
		out = append(out, f)
	}
	return out
}

// field is a top-level field; take decodes it when it is carried and not null.
type field struct {
	FieldInfo
	take func(d *decoding, raw []byte) error
}

// on says whether an endpoint has the field.
func (f *FieldInfo) on(e Endpoint) bool {
	return e == Chat && f.Chat || e == Completions && f.Completions || e == Tokenize && f.Tokenize || e == Detokenize && f.Detokenize
}

// asksForNothing says whether a value of a refused field may pass.
func (f *FieldInfo) asksForNothing(raw []byte) bool { return api.AsksForNothing(raw, f.Defaults) }

func carry(on ends, name, accepts string, take func(*decoding, []byte) error) field {
	info := on.info(name)
	info.Accepts = accepts
	return field{info, take}
}

// carryBy is carry on wires that can, and refuse on others.
func carryBy(needs infer.Carries, on ends, name, accepts string, take func(*decoding, []byte) error, defaults ...string) field {
	f := carry(on, name, accepts, take)
	f.Needs, f.Defaults = needs, defaults
	return f
}

func refuse(on ends, name string, defaults ...string) field {
	info := on.info(name)
	info.Treatment, info.Defaults = Refused, defaults
	return field{FieldInfo: info}
}

func ignore(name string) field {
	info := ends{true, true, true, true}.info(name)
	info.Treatment = Ignored
	return field{FieldInfo: info}
}

type ends struct{ chat, completions, tokenize, detokenize bool }

func (on ends) info(name string) FieldInfo {
	return FieldInfo{Name: name, Chat: on.chat, Completions: on.completions, Tokenize: on.tokenize, Detokenize: on.detokenize}
}

var (
	onAll         = ends{true, true, true, true}
	onBoth        = ends{chat: true, completions: true}
	onChat        = ends{chat: true}
	onCompletions = ends{completions: true}
	onMessages    = ends{chat: true, tokenize: true}
	onTokenize    = ends{tokenize: true}
	onDetokenize  = ends{detokenize: true}
)

// fields are the top-level fields. Defaults are in canonical JSON (RFC 8785).
// A field that some engines have as an extension is listed when clients are
// known to send it with a value that asks for nothing, and for a clear word
// when it asks for something.
var fields = []field{
	carry(onAll, "model", "a string", nothing),
	carry(onBoth, "stream", "a boolean", nothing),
	carry(onBoth, "stream_options", "an object, with stream: true", takeStreamOptions),
	carry(onMessages, "messages", "a non-empty array of messages", takeMessages),
	carry(onCompletions, "prompt", "a string, an array of token ids, or an array of such", takePrompt),
	carry(onBoth, "max_tokens", "an integer from 1", takeMaxTokens),
	carry(onChat, "max_completion_tokens", "an integer from 1, equal to max_tokens if both are given", takeMaxCompletionTokens),
	carry(onBoth, "temperature", "a number from 0 to 2", sampling("temperature", api.Temperature)),
	carry(onBoth, "top_p", "a number above 0, at most 1", sampling("top_p", api.TopP)),
	carry(onBoth, "top_k", "an integer from 1, or -1 or 0 for no limit", sampling("top_k", api.TopK)),
	carry(onBoth, "seed", "a 64-bit integer", sampling("seed", api.Seed)),
	carry(onBoth, "stop", "a string, or an array of up to 16 strings, each of 1 to 1024 bytes", takeStop),
	carry(onBoth, "stop_token_ids", "an array of up to 1024 token ids", takeStopIDs),
	carry(onBoth, "min_tokens", "an integer from 0, at most max_tokens", takeMinTokens),
	carry(onBoth, "ignore_eos", "a boolean", takeIgnoreEOS),
	carry(onBoth, "return_token_ids", "a boolean; adds the prompt's and the output's token ids to the answer", takeReturnTokenIDs),
	carry(onMessages, "chat_template_kwargs", "an object, handed to the chat template", takeTemplateKwargs),
	carry(onMessages, "add_generation_prompt", "a boolean", takeAddGenerationPrompt),
	carry(onMessages, "continue_final_message", "a boolean, not together with add_generation_prompt: true", takeContinueFinal),

	carry(onChat, "tools", "an array of tools of type function, each with a unique name; strict is kept to where a call is forced", takeChatTools),
	carry(onChat, "tool_choice", `"auto" or "none"; "required" or a tool by its name where the engine can be told a JSON schema`, takeToolChoice),
	carry(onChat, "parallel_tool_calls", "a boolean; false ends the answer with its first call", takeParallel),

	carry(onTokenize, "prompt", "a string, or an array of strings; not together with messages", takeTexts),
	carry(onTokenize, "tools", "an array of objects, handed to the chat template", takeTools),
	carry(onTokenize, "add_special_tokens", "a boolean; true unless given for a prompt, false for messages", takeAddSpecial),
	carry(onTokenize, "return_token_strs", "a boolean", takeTokenStrs),
	carry(onDetokenize, "tokens", "an array of token ids, or an array of such arrays", takeTokens),
	carry(onDetokenize, "skip_special_tokens", "a boolean, true unless given: whether text leaves special tokens out", takeSkipSpecial),

	carry(onBoth, "n", "an integer from 1 to 128; that many choices for each prompt, up to 128 in all", takeN),
	carryBy(infer.CarriesLogitBias, onBoth, "logit_bias", "an object of token ids to numbers from -100 to 100", sampling("logit_bias", api.Biases), "{}"),
	carryBy(infer.CarriesPenalties, onBoth, "presence_penalty", "a number from -2 to 2", sampling("presence_penalty", api.PresencePenalty), "0"),
	carryBy(infer.CarriesPenalties, onBoth, "frequency_penalty", "a number from -2 to 2", sampling("frequency_penalty", api.FrequencyPenalty), "0"),
	carryBy(infer.CarriesRepetitionPenalty, onBoth, "repetition_penalty", "a number above 0, at most 2", sampling("repetition_penalty", api.RepetitionPenalty), "1"),
	refuse(onBoth, "length_penalty", "1"),
	carryBy(infer.CarriesMinP, onBoth, "min_p", "a number from 0 to 1", sampling("min_p", api.MinP), "0"),
	carryBy(infer.CarriesJSONSchema, onBoth, "response_format", "an object whose type is text, json_object, json_schema or structural_tag", takeResponseFormat, `{"type":"text"}`),
	refuse(onBoth, "echo", "false"),
	refuse(onBoth, "use_beam_search", "false"),
	refuse(onBoth, "include_stop_str_in_output", "false"),
	refuse(onBoth, "skip_special_tokens", "true"),
	refuse(onBoth, "spaces_between_special_tokens", "true"),
	refuse(onBoth, "bad_words", "[]"),
	refuse(onBoth, "allowed_token_ids"),
	refuse(onBoth, "prompt_logprobs"),
	refuse(onBoth, "truncate_prompt_tokens"),
	carryBy(infer.CarriesJSONSchema, onBoth, "guided_json", "a JSON schema, as an object or a string", takeGuidedJSON),
	carryBy(infer.CarriesRegex, onBoth, "guided_regex", "a regular expression", takeGuidedRegex),
	carryBy(infer.CarriesChoice, onBoth, "guided_choice", "a non-empty array of strings", takeGuidedChoice),
	carryBy(infer.CarriesGrammar, onBoth, "guided_grammar", "a grammar", takeGuidedGrammar),
	carry(onBoth, "structured_outputs", "an object with one of json, json_object, regex, choice, grammar, structural_tag", takeStructuredOutputs),
	carryBy(infer.CarriesRegex, onBoth, "regex", "a regular expression", takeRegex),
	carryBy(infer.CarriesGrammar, onBoth, "ebnf", "a grammar", takeEBNF),
	carryBy(infer.CarriesJSONSchema, onBoth, "json_schema", "a JSON schema, as an object or a string", takeJSONSchema),
	refuse(onBoth, "lora_path"),
	carryBy(infer.CarriesPriority, onBoth, "priority", "a 64-bit integer, which the engine understands in its own way", takePriority, "0"),
	refuse(onBoth, "kv_transfer_params"),

	carryBy(infer.CarriesLogprobs, onChat, "logprobs", "a boolean", takeLogprobs, "false"),
	carryBy(infer.CarriesLogprobs, onChat, "top_logprobs", "an integer from 0 to 20, with logprobs: true", takeTopLogprobs, "0"),
	refuse(onChat, "functions", "[]"),
	refuse(onChat, "function_call", `"auto"`, `"none"`),
	refuse(onChat, "modalities", `["text"]`),
	refuse(onChat, "audio"),
	refuse(onChat, "prediction"),
	carry(onChat, "reasoning_effort", "none, minimal, low, medium, high, xhigh or max, as far as the model's chat template knows an effort", takeEffort),
	refuse(onChat, "verbosity", `"medium"`),
	refuse(onChat, "web_search_options"),
	refuse(onMessages, "chat_template"),
	refuse(onTokenize, "media_io_kwargs", "{}"),
	refuse(onTokenize, "mm_processor_kwargs", "{}"),
	refuse(onChat, "documents", "[]"),

	carryBy(infer.CarriesLogprobs, onCompletions, "logprobs", "an integer from 0 to 20", takeTextLogprobs),
	carry(onCompletions, "best_of", "an integer, equal to n", takeBestOf),
	refuse(onCompletions, "suffix", `""`),

	ignore("user"),
	ignore("metadata"),
	ignore("store"),
	ignore("service_tier"),
	ignore("safety_identifier"),
	ignore("prompt_cache_key"),
	ignore("prompt_cache_retention"),
}

// tables find an endpoint's field by its name. For Other they hold the fields
// that steer the gateway.
var tables = [numEndpoints]api.Names{
	Other:       tableOf(func(f *FieldInfo) bool { return api.Steers(f.Name) }),
	Chat:        tableOf(func(f *FieldInfo) bool { return f.Chat }),
	Completions: tableOf(func(f *FieldInfo) bool { return f.Completions }),
	Tokenize:    tableOf(func(f *FieldInfo) bool { return f.Tokenize }),
	Detokenize:  tableOf(func(f *FieldInfo) bool { return f.Detokenize }),
}

func tableOf(has func(*FieldInfo) bool) api.Names {
	table := make(api.Names)
	for i := range fields {
		if has(&fields[i].FieldInfo) {
			table[fields[i].Name] = api.Name{Word: fields[i].Name, Index: i}
		}
	}
	return table
}
