package sglang

import (
	"slices"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// field is a field; take decodes it when it is carried and not null. Null is as
// if it were not there, unless takesNull says that it means something.
type field struct {
	dialect.Field
	take      func(d *decoding, path string, raw []byte) error
	takesNull bool
}

// Fields lists every field that weir knows by name, in a fixed order. Any other
// is refused.
func Fields() []dialect.Field {
	var out []dialect.Field
	for _, f := range fields {
		out = append(out, f.Field)
	}
	for _, f := range sampling {
		f.Name = samplingPath + f.Name
		out = append(out, f.Field)
	}
	for i := range out {
		out[i].Defaults = slices.Clone(out[i].Defaults)
	}
	return out
}

// samplingPath comes before the name of a sampling parameter.
const samplingPath = "sampling_params."

func carry(name, accepts string, take func(*decoding, string, []byte) error) field {
	return field{Field: dialect.Field{Name: name, Note: accepts}, take: take}
}

func carryBy(needs infer.Carries, name, accepts string, take func(*decoding, string, []byte) error, defaults ...string) field {
	f := carry(name, accepts, take)
	f.Needs, f.Defaults = needs, defaults
	return f
}

func carryNull(name, accepts string, take func(*decoding, string, []byte) error) field {
	f := carry(name, accepts, take)
	f.takesNull = true
	return f
}

func refuse(name string, defaults ...string) field {
	return field{Field: dialect.Field{Name: name, Treatment: dialect.Refused, Defaults: defaults}}
}

func ignore(name, why string) field {
	return field{Field: dialect.Field{Name: name, Treatment: dialect.Ignored, Note: why}}
}

// fields are the top-level fields.
var fields = []field{
	carry("model", "a string; may be left out where one model is served", nothing),
	carry("stream", "a boolean", nothing),
	carry("text", "a string that is not empty, or an array of up to 128; not together with input_ids", takeText),
	carry("input_ids", "an array of token ids that is not empty, or an array of up to 128 such arrays", takeInputIDs),
	carry("sampling_params", "an object, or an array with one; it is for all prompts", nothing),
	carry("rid", "a string of up to 256 bytes, not empty, or an array with one; where the answer is a list its index is added, as in rid_0", nothing),
	carry("return_prompt_token_ids", "a boolean; prompt_token_ids comes with the answer, in a stream with its first event", takePromptIDs),
	carry("incremental_streaming_output", "a boolean: whether an event of a stream holds what is new, and not all so far. At SGLang a setting of the server", takeIncremental),
	carry("skip_tokenizer_init", "a boolean: whether the answer has no text. At SGLang a setting of the server", takeNoText),

	carryBy(infer.CarriesLogprobs, "return_logprob", "a boolean, or an array with one: output_token_logprobs comes with the answer, and with top_logprobs_num output_top_logprobs", takeLogprob, "false", "[false]"),
	carry("top_logprobs_num", "an integer from 0 to 20; of effect with return_logprob", takeTopLogprobs),
	carry("return_text_in_logprobs", "a boolean; of effect with return_logprob", takeTextInLogprobs),
	carry("logprob_start_len", "an integer; with return_logprob 0 or more, input_token_logprobs of the prompt from that token on comes with the answer, and with top_logprobs_num input_top_logprobs", takeLogprobStart),
	refuse("token_ids_logprob", "[]", "[null]"),
	refuse("return_flat_raw_top_logprobs", "false"),
	refuse("return_flat_raw_top_logprobs_b64", "false"),
	refuse("return_hidden_states", "false", "[false]"),
	refuse("return_routed_experts", "false"),
	refuse("return_indexer_topk", "false"),
	refuse("return_sampling_mask", "false"),
	refuse("return_entropy", "false"),
	refuse("input_embeds", "[]"),
	carryBy(infer.CarriesImage, "image_data", "a URL of http or https, a data URL or base64, or an array of them, with one prompt that has a placeholder for each", takeMedia(infer.MediaImage), "[]"),
	carryBy(infer.CarriesVideo, "video_data", "as image_data, but not base64 alone", takeMedia(infer.MediaVideo), "[]"),
	carryBy(infer.CarriesAudio, "audio_data", "as video_data", takeMedia(infer.MediaAudio), "[]"),
	refuse("modalities", "[]"),
	refuse("mm_hashes", "[]"),
	refuse("mm_content_hashes", "[]"),
	refuse("lora_path", `""`, "[]", "[null]"),
	refuse("lora_id", `""`, "[]", "[null]"),
	refuse("session_params", "{}"),
	refuse("session_id"),
	refuse("custom_logit_processor"),
	refuse("bootstrap_host"),
	refuse("bootstrap_port"),
	refuse("bootstrap_room"),
	refuse("bootstrap_pair_key"),
	refuse("decode_tp_size"),
	refuse("routed_dp_rank"),
	refuse("data_parallel_rank"),
	refuse("disagg_prefill_dp_rank"),
	carryBy(infer.CarriesPriority, "priority", "a 64-bit integer, which the engine understands in its own way", takePriority, "0"),
	refuse("extra_key"),
	refuse("cache_salt"),
	refuse("require_reasoning", "false"),
	refuse("max_thinking_tokens"),
	refuse("background", "false"),

	ignore("conversation_id", "names a conversation, which changes no answer"),
	ignore("routing_key", "a hint for SGLang's own router"),
	ignore("no_logs", "about the server's own log"),
	ignore("log_metrics", "about the server's own metrics"),
	ignore("custom_labels", "about the server's own metrics"),
	ignore("received_time", "weir stamps the arrival itself"),
	ignore("external_trace_header", "about tracing, which changes no answer"),
}

// sampling are the fields of sampling_params. What a caller leaves out is the
// engine's default.
var sampling = []field{
	carryNull("max_new_tokens", "an integer from 0, 128 unless given; with 0 the engine reads the prompt and nothing comes of it. `null` is what the context leaves", takeMaxTokens),
	carry("min_new_tokens", "an integer from 0, at most max_new_tokens", takeMinTokens),
	carry("temperature", "a number from 0", takeTemperature),
	carry("top_p", "a number above 0, at most 1", parameter(dialect.TopP)),
	carry("top_k", "an integer from 1, or -1 for no limit", takeTopK),
	carryBy(infer.CarriesMinP, "min_p", "a number from 0 to 1", parameter(dialect.MinP), "0"),
	carryBy(infer.CarriesPenalties, "frequency_penalty", "a number from -2 to 2", parameter(dialect.FrequencyPenalty), "0"),
	carryBy(infer.CarriesPenalties, "presence_penalty", "a number from -2 to 2", parameter(dialect.PresencePenalty), "0"),
	carryBy(infer.CarriesRepetitionPenalty, "repetition_penalty", "a number above 0, at most 2", parameter(dialect.RepetitionPenalty), "1"),
	carryBy(infer.CarriesLogitBias, "logit_bias", "an object of token ids to numbers from -100 to 100", parameter(dialect.Biases), "{}"),
	carry("sampling_seed", "a 64-bit integer", parameter(dialect.Seed)),
	carry("stop", "a string, or an array of up to 16 strings, each of 1 to 1024 bytes", takeStop),
	carry("stop_token_ids", "an array of up to 1024 token ids", takeStopIDs),
	carry("no_stop_trim", "a boolean: whether what stopped the answer is part of it", takeNoStopTrim),
	carry("ignore_eos", "a boolean", takeIgnoreEOS),
	carry("skip_special_tokens", "a boolean, true unless given: whether text leaves special tokens out", takeSkipSpecial),
	carry("stream_interval", "an integer from 1: an event of a stream comes when so many ids are new", takeStreamInterval),
	carryBy(infer.CarriesJSONSchema, "json_schema", "a JSON schema, as a string or an object", takeJSONSchema),
	carryBy(infer.CarriesRegex, "regex", "a regular expression", takeRegex),
	carryBy(infer.CarriesGrammar, "ebnf", "a grammar", takeEBNF),
	carryBy(infer.CarriesStructuralTag, "structural_tag", "a JSON object as a string", takeStructuralTag),

	carry("n", "an integer from 1 to 128: so many answers to each prompt; with the prompts at most 128", takeN),
	refuse("stop_regex", "[]", `""`),
	refuse("beam_width", "1"),
	refuse("spaces_between_special_tokens", "true"),
	refuse("custom_params", "{}"),
	refuse("max_thinking_tokens"),
	refuse("thinking_budget"),
	refuse("is_reasoning", "false"),
	refuse("return_sampling_mask", "false"),
}

// namesOf returns the names of a list's fields, each with its position there.
func namesOf(list []field) dialect.Names {
	var words []string
	for i := range list {
		words = append(words, list[i].Name)
	}
	return dialect.NewNames(words...)
}

var (
	fieldNames    = namesOf(fields)
	samplingNames = namesOf(sampling)
)
