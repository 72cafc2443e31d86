package openai

import (
	"weir/internal/dialect"
	"weir/internal/infer"
)

// The treatments of package dialect, under short names for the table.
const (
	Carried = dialect.Carried
	Refused = dialect.Refused
	Ignored = dialect.Ignored
)

// Fields lists every field that weir knows by name, in a fixed order, each with the
// endpoints that have it (Endpoint.On). Any other is refused.
func Fields() []dialect.Field { return dialect.Rows(fields, innerFields) }

type field = dialect.Taken[*decoding]

func carry(on uint8, name, accepts string, take func(*decoding, []byte) error) field {
	return field{Field: dialect.Field{Name: name, On: on, Note: accepts}, Take: take}
}

// carryBy is carry on wires that can, and refuse on others.
func carryBy(needs infer.Carries, on uint8, name, accepts string, take func(*decoding, []byte) error, defaults ...string) field {
	f := carry(on, name, accepts, take)
	f.Needs, f.Defaults = needs, defaults
	return f
}

func refuse(on uint8, name, elsewhere string, defaults ...string) field {
	return field{Field: dialect.Field{Name: name, On: on, Treatment: Refused, Elsewhere: elsewhere, Defaults: defaults}}
}

func ignore(on uint8, name, what, elsewhere string, defaults ...string) field {
	return field{Field: dialect.Field{Name: name, On: on, Treatment: Ignored, Note: what, Elsewhere: elsewhere, Defaults: defaults}}
}

const (
	onChat        = 1 << Chat
	onCompletions = 1 << Completions
	onTokenize    = 1 << Tokenize
	onDetokenize  = 1 << Detokenize
	onBoth        = onChat | onCompletions
	onMessages    = onChat | onTokenize
	onAll         = onBoth | onTokenize | onDetokenize
)

// fields are the top-level fields. Defaults are in canonical JSON (RFC 8785).
// A field that some engines have as an extension is listed when clients are
// known to send it with a value that asks for nothing, and for a clear word
// when it asks for something.
var fields = []field{
	carry(onAll, "model", "a string", nothing),
	carry(onBoth, "stream", "a boolean", nothing),
	carry(onBoth, "stream_options", "an object, with stream: true: include_usage, continuous_usage_stats", takeStreamOptions),
	carry(onMessages, "messages", "a non-empty array of messages", takeMessages),
	carry(onCompletions, "prompt", "a string, an array of token ids, or an array of such", takePrompt),
	carry(onBoth, "max_tokens", "an integer from 1", takeMaxTokens),
	carry(onChat, "max_completion_tokens", "an integer from 1, equal to max_tokens if both are given", takeMaxCompletionTokens),
	carry(onBoth, "temperature", "a number from 0 to 2", sampling("temperature", dialect.Temperature)),
	carry(onBoth, "top_p", "a number above 0, at most 1", sampling("top_p", dialect.TopP)),
	carry(onBoth, "top_k", "an integer from 1, or -1 or 0 for no limit", sampling("top_k", dialect.TopK)),
	carry(onBoth, "seed", "a 64-bit integer", sampling("seed", dialect.Seed)),
	carry(onBoth, "stop", "a string, or an array of up to 16 strings, each of 1 to 1024 bytes", takeStop),
	carry(onBoth, "stop_token_ids", "an array of up to 1024 token ids", takeStopIDs),
	carry(onBoth, "min_tokens", "an integer from 0, at most max_tokens", takeMinTokens),
	carry(onBoth, "ignore_eos", "a boolean", takeIgnoreEOS),
	carry(onBoth, "return_token_ids", "a boolean; adds the prompt's and the output's token ids to the answer", takeReturnTokenIDs),
	carry(onMessages, "chat_template_kwargs", "an object, handed to the chat template", takeTemplateKwargs),
	carry(onMessages, "add_generation_prompt", "a boolean", takeAddGenerationPrompt),
	carry(onMessages, "continue_final_message", "a boolean, not together with add_generation_prompt: true", takeContinueFinal),

	carry(onChat, "tools", "an array of tools of type function, each with a unique name", takeChatTools),
	carry(onChat, "tool_choice", `"auto" or "none"; "required" or a tool by its name if an engine of the model enforces JSON schemas`, takeToolChoice),
	carry(onChat, "parallel_tool_calls", "a boolean; false ends the answer with its first call", takeParallel),

	carry(onTokenize, "prompt", "a string, or an array of strings; not together with messages", takeTexts),
	carry(onTokenize, "tools", "an array of objects, handed to the chat template", takeTools),
	carry(onTokenize, "add_special_tokens", "a boolean; true unless given for a prompt, false for messages", takeAddSpecial),
	carry(onTokenize, "return_token_strs", "a boolean", takeTokenStrs),
	carry(onDetokenize, "tokens", "an array of token ids, or an array of such arrays", takeTokens),
	carry(onDetokenize, "skip_special_tokens", "a boolean, true unless given: whether text leaves special tokens out", takeSkipSpecial),

	carry(onBoth, "n", "an integer from 1 to 128; that many choices for each prompt, up to 128 in all", takeN),
	carryBy(infer.CarriesLogitBias, onBoth, "logit_bias", "an object of token ids to numbers from -100 to 100", sampling("logit_bias", dialect.Biases), "{}"),
	carryBy(infer.CarriesPenalties, onBoth, "presence_penalty", "a number from -2 to 2", sampling("presence_penalty", dialect.PresencePenalty), "0"),
	carryBy(infer.CarriesPenalties, onBoth, "frequency_penalty", "a number from -2 to 2", sampling("frequency_penalty", dialect.FrequencyPenalty), "0"),
	carryBy(infer.CarriesRepetitionPenalty, onBoth, "repetition_penalty", "a number above 0, at most 2", sampling("repetition_penalty", dialect.RepetitionPenalty), "1"),
	refuse(onBoth, "length_penalty", dialect.VLLMReads, "1"),
	carryBy(infer.CarriesMinP, onBoth, "min_p", "a number from 0 to 1", sampling("min_p", dialect.MinP), "0"),
	carryBy(infer.CarriesJSONSchema, onBoth, "response_format", "an object whose type is text, json_object, json_schema or structural_tag", takeResponseFormat, `{"type":"text"}`),
	refuse(onBoth, "echo", dialect.VLLMReads, "false"),
	refuse(onBoth, "use_beam_search", dialect.VLLMReads, "false"),
	refuse(onBoth, "include_stop_str_in_output", dialect.VLLMReads, "false"),
	refuse(onBoth, "skip_special_tokens", dialect.BothRead, "true"),
	refuse(onBoth, "spaces_between_special_tokens", dialect.VLLMReads, "true"),
	refuse(onBoth, "bad_words", dialect.VLLMReads, "[]"),
	refuse(onBoth, "allowed_token_ids", dialect.VLLMReads),
	refuse(onBoth, "prompt_logprobs", dialect.VLLMReads),
	refuse(onBoth, "truncate_prompt_tokens", dialect.VLLMReads),
	carryBy(infer.CarriesJSONSchema, onBoth, "guided_json", "a JSON schema, as an object or a string", takeGuidedJSON),
	carryBy(infer.CarriesRegex, onBoth, "guided_regex", "a regular expression", takeGuidedRegex),
	carryBy(infer.CarriesChoice, onBoth, "guided_choice", "a non-empty array of strings", takeGuidedChoice),
	carryBy(infer.CarriesGrammar, onBoth, "guided_grammar", "a grammar", takeGuidedGrammar),
	carry(onBoth, "structured_outputs", "an object with one of json, json_object, regex, choice, grammar, structural_tag", takeStructuredOutputs),
	carryBy(infer.CarriesRegex, onBoth, "regex", "a regular expression", takeRegex),
	carryBy(infer.CarriesGrammar, onBoth, "ebnf", "a grammar", takeEBNF),
	carryBy(infer.CarriesJSONSchema, onBoth, "json_schema", "a JSON schema, as an object or a string", takeJSONSchema),
	refuse(onBoth, "lora_path", dialect.SGLangReads),
	carryBy(infer.CarriesPriority, onBoth, "priority", "a 64-bit integer, which the engine understands in its own way", takePriority, "0"),
	refuse(onBoth, "kv_transfer_params", dialect.VLLMReads),

	carryBy(infer.CarriesLogprobs, onChat, "logprobs", "a boolean", takeLogprobs, "false"),
	carryBy(infer.CarriesLogprobs, onChat, "top_logprobs", "an integer from 0 to 20, with logprobs: true", takeTopLogprobs, "0"),
	refuse(onChat, "functions", dialect.BothPass, "[]"),
	refuse(onChat, "function_call", dialect.BothPass, `"auto"`, `"none"`),
	refuse(onChat, "modalities", dialect.BothPass, `["text"]`),
	refuse(onChat, "audio", dialect.BothPass),
	refuse(onChat, "moderation", dialect.BothPass),
	carry(onChat, "reasoning_effort", "none, minimal, low, medium, high, xhigh or max, as far as the model's chat template knows an effort", takeEffort),
	refuse(onMessages, "chat_template", dialect.VLLMReads),
	refuse(onTokenize, "media_io_kwargs", dialect.VLLMReads, "{}"),
	refuse(onTokenize, "mm_processor_kwargs", dialect.BothRead, "{}"),
	refuse(onChat, "documents", dialect.VLLMReads, "[]"),

	carryBy(infer.CarriesLogprobs, onCompletions, "logprobs", "an integer from 0 to 20", takeTextLogprobs),
	carry(onCompletions, "best_of", "an integer, equal to n", takeBestOf),
	refuse(onCompletions, "suffix", dialect.BothRead, `""`),

	ignore(onChat, "prediction", "a guess at the answer, for speed", dialect.BothPass),
	ignore(onChat, "verbosity", "a shorter or longer answer, from models that were trained with this option", dialect.BothPass, `"medium"`),
	ignore(onChat, "web_search_options", "a search by the server", dialect.BothPass),
	ignore(onAll, "user", "names the end user", dialect.BothPass),
	ignore(onAll, "metadata", "kept with a stored answer", dialect.BothPass, "{}"),
	ignore(onAll, "store", "keeps the answer", dialect.BothPass, "false"),
	ignore(onAll, "service_tier", "names a service tier of OpenAI", dialect.BothPass, `"auto"`, `"default"`),
	ignore(onAll, "safety_identifier", "names the end user", dialect.BothPass),
	ignore(onAll, "prompt_cache_key", whyCache, dialect.BothPass),
	ignore(onAll, "prompt_cache_retention", whyCache, dialect.BothPass),
	ignore(onAll, "prompt_cache_options", whyCache, dialect.BothPass, "{}", `{"mode":"implicit"}`),
	ignore(onBoth, "session_id", "names a conversation", dialect.BothRead),
	ignore(onChat, "chat_id", "names a conversation of Open WebUI", dialect.BothPass),
}

// whyCache is what caching hints ask for.
const whyCache = "a hint for a cache: engines cache the KV of prompts by themselves, and usage reports the cached tokens"

// tables find an endpoint's field by its name. For Other they hold the fields
// that steer the gateway.
var tables = [numEndpoints]dialect.Names{
	Other:       tableOf(func(f *dialect.Field) bool { return dialect.Steers(f.Name) }),
	Chat:        tableOf(func(f *dialect.Field) bool { return f.On&onChat != 0 }),
	Completions: tableOf(func(f *dialect.Field) bool { return f.On&onCompletions != 0 }),
	Tokenize:    tableOf(func(f *dialect.Field) bool { return f.On&onTokenize != 0 }),
	Detokenize:  tableOf(func(f *dialect.Field) bool { return f.On&onDetokenize != 0 }),
}

func tableOf(has func(*dialect.Field) bool) dialect.Names {
	table := make(dialect.Names)
	for i := range fields {
		if has(&fields[i].Field) {
			table[fields[i].Name] = dialect.Name{Word: fields[i].Name, Index: i}
		}
	}
	return table
}
