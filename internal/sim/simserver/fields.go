package simserver

import (
	"bytes"
	"maps"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// unread holds the members of a request that its struct has no field for.
type unread struct {
	Rest jsontext.Value `json:",embed"`
}

// unsimulated are fields on which a real server acts and the simulated engine cannot, each with
// the value that asks for nothing. The engine refuses other values. A field that is neither here
// nor in a request's struct has no effect on the real server's answer either; testdata/fields.txt
// has the reason for each.
type unsimulated map[string]string

var (
	openAIChat = unsimulated{
		"audio": "null", "function_call": "null", "functions": "null", "logit_bias": "{}", "modalities": `["text"]`, "moderation": "null", "web_search_options": "null",
	}
	openAIText = unsimulated{"best_of": "1", "logit_bias": "{}"}

	vllmDecoding = unsimulated{
		"allowed_token_ids": "null", "bad_words": "[]", "logit_bias": "{}", "logprob_token_ids": "null", "repetition_detection": "null",
		"skip_special_tokens": "true", "thinking_token_budget": "null", "truncate_prompt_tokens": "null", "watermarking": "false",
		"ec_transfer_params": "null",
	}
	vllmChat = vllmDecoding.and(unsimulated{
		"add_generation_prompt": "true", "add_special_tokens": "false", "chat_template": "null", "continue_final_message": "false",
		"documents": "null", "media_io_kwargs": "null", "mm_processor_kwargs": "null", "return_prompt_text": "false",
	})
	vllmText     = vllmDecoding.and(unsimulated{"add_special_tokens": "true", "prompt_embeds": "null"})
	vllmMessages = unsimulated{"ec_transfer_params": "null", "watermarking": "false"}
	vllmAnswers  = unsimulated{
		"enable_response_messages": "false", "include_stop_str_in_output": "false", "logit_bias": "{}",
		"media_io_kwargs": "null", "mm_processor_kwargs": "null", "previous_input_messages": "null", "skip_special_tokens": "true",
		"ec_transfer_params": "null", "watermarking": "false",
	}
	vllmSampling = unsimulated{
		"allowed_token_ids": "null", "bad_words": "[]", "flat_logprobs": "false", "logit_bias": "{}", "logprob_token_ids": "null",
		"prompt_logprob_start": "null", "prompt_logprob_token_ids": "null", "repetition_detection": "null",
		"thinking_token_budget": "null", "trace_decode_token_ids": "null", "watermarking": "false",
	}
	vllmGenerate = unsimulated{
		"ec_transfer_params": "null", "reasoning_ended": "null", "reasoning_parser_kwargs": "null", "token_offsets": "null",
	}
	vllmPooling = unsimulated{
		"add_special_tokens": "true", "chat_template_kwargs": "null", "instruction": "null", "max_tokens_per_doc": "0",
		"max_tokens_per_query": "0", "messages": "null", "mm_processor_kwargs": "null", "padding": "null", "truncate_prompt_tokens": "null",
		"use_activation": "null",
	}
	vllmEmbeddings = vllmPooling.and(unsimulated{"embed_dtype": `"float32"`, "endianness": `"native"`})
	vllmTokens     = unsimulated{
		"add_generation_prompt": "true", "chat_template": "null", "continue_final_message": "false",
		"media_io_kwargs": "null", "mm_processor_kwargs": "null",
	}

	sglangDecoding = unsimulated{
		"custom_logit_processor": "null", "images_config": "null", "logit_bias": "{}", "mm_processor_kwargs": "null",
		"return_cached_tokens_details": "false", "return_routed_experts": "false", "return_spec_tokens_details": "false",
		"session_params": "null", "skip_special_tokens": "true", "stop_regex": "null", "watermark": "null",
	}
	sglangChat = sglangDecoding.and(unsimulated{
		"continue_final_message": "false", "max_dynamic_patch": "null", "min_dynamic_patch": "null", "return_input_ids_in_sglext": "false",
		"return_flat_raw_output_top_logprobs": "false", "return_meta_info": "false", "return_output_ids_in_sglext": "false", "return_prompt_token_ids": "false",
		"return_sampling_mask": "false", "stream_reasoning": "true", "task": "null", "thinking": "null", "use_audio_in_video": "false",
		"video_config": "null",
	})
	sglangText     = sglangDecoding
	sglangGenerate = unsimulated{
		"images_config": "null", "lora_id": "null", "max_dynamic_patch": "null", "max_thinking_tokens": "null", "min_dynamic_patch": "null",
		"image_max_dynamic_patch": "null", "video_max_dynamic_patch": "null", "mm_processor_kwargs": "null",
		"kv_hints": "null", "multi_item_delimiter_indices": "null", "positional_embed_overrides": "null", "require_reasoning": "false", "return_bytes": "false",
		"return_entropy": "false", "return_flat_raw_output_top_logprobs": "false", "return_flat_raw_top_logprobs": "false",
		"return_indexer_topk": "false", "return_sampling_mask": "false", "sampling_logprobs_mode": "null", "token_indices_to_pool": "null",
		"use_audio_in_video": "false", "video_config": "null", "watermark": "null",
	}
	sglangEmbeddings = unsimulated{"embed_override_token_id": "null", "embed_overrides": "null", "lora_path": "null"}
	sglangRerank     = unsimulated{"instruct": "null"}
	sglangTokens     = unsimulated{"add_generation_prompt": "true", "add_special_tokens": "true", "continue_final_message": "false"}
	sglangDecoded    = unsimulated{"skip_special_tokens": "true"}
)

func (u unsimulated) and(more unsimulated) unsimulated {
	all := maps.Clone(u)
	maps.Copy(all, more)
	return all
}

// refuse returns an error for the first member that the engine does not simulate.
func (u unsimulated) refuse(members jsontext.Value) error {
	if len(members) == 0 {
		return nil
	}
	dec := jsontext.NewDecoder(bytes.NewReader(members), jsontext.AllowDuplicateNames(true))
	if _, err := dec.ReadToken(); err != nil {
		return asInvalid("", err)
	}
	for dec.PeekKind() == '"' {
		token, err := dec.ReadToken()
		if err != nil {
			return asInvalid("", err)
		}
		name := token.String()
		value, err := dec.ReadValue()
		if err != nil {
			return asInvalid("", err)
		}
		neutral, known := u[name]
		if !known || value.Kind() == 'n' {
			continue
		}
		if value := strings.Join(strings.Fields(string(value)), ""); value != neutral {
			return notSimulated(name)
		}
	}
	return nil
}

// distribution are the fields that shape the distribution of a token. The simulated engine draws
// from none: they are checked, and an answer under them is one that the real server may give.
type distribution struct {
	Temperature       *float64 `json:"temperature"`
	TopP              *float64 `json:"top_p"`
	TopK              *int     `json:"top_k"`
	MinP              *float64 `json:"min_p"`
	FrequencyPenalty  *float64 `json:"frequency_penalty"`
	PresencePenalty   *float64 `json:"presence_penalty"`
	RepetitionPenalty *float64 `json:"repetition_penalty"`
}

// A bound is the range of a field, and what a server says of a value out of it.
type bound struct {
	low, high float64
	open      bool // low is out of the range
	words     string
}

// bounds are those of the fields of a distribution, in the order in which a server checks them.
type bounds struct {
	temperature, topP, minP, frequency, presence, repetition bound
	topK                                                     string
}

var (
	vllmBounds = bounds{
		temperature: bound{0, 2, false, "must be in [0, 2]"}, topP: bound{0, 1, true, "must be in (0, 1]"}, minP: bound{0, 1, false, "must be in [0, 1]"},
		frequency: bound{-2, 2, false, "must be in [-2, 2]"}, presence: bound{-2, 2, false, "must be in [-2, 2]"},
		repetition: bound{0, math.MaxFloat64, true, "must be greater than zero"}, topK: "must be 0 (disable), or at least 1",
	}
	sglangBounds = bounds{
		temperature: bound{0, math.MaxFloat64, false, "must be a non-negative finite number"}, topP: bound{0, 1, true, "must be in (0, 1]"},
		minP: bound{0, 1, false, "must be in [0, 1]"}, frequency: bound{-2, 2, false, "must be in [-2, 2]"}, presence: bound{-2, 2, false, "must be in [-2, 2]"},
		repetition: bound{0, 2, true, "must be in (0, 2] (1.0 = no penalty)"}, topK: "must be -1 (disable) or at least 1",
	}
)

// check refuses values out of a server's bounds, in its words.
func (d *distribution) check(b *bounds) error {
	for _, f := range []struct {
		name  string
		value *float64
		bound *bound
	}{
		{"temperature", d.Temperature, &b.temperature}, {"top_p", d.TopP, &b.topP}, {"min_p", d.MinP, &b.minP},
		{"frequency_penalty", d.FrequencyPenalty, &b.frequency}, {"presence_penalty", d.PresencePenalty, &b.presence},
		{"repetition_penalty", d.RepetitionPenalty, &b.repetition},
	} {
		v, words := f.value, f.bound.words
		if v == nil || *v >= f.bound.low && *v <= f.bound.high && !(f.bound.open && *v == f.bound.low) {
			continue
		}
		if f.bound == &vllmBounds.temperature && *v < 0 {
			words = "must be non-negative"
		}
		return infer.Invalid(f.name, "%s %s, got %s.", f.name, words, pythonFloat(*v))
	}
	if k := valueOr(d.TopK, -1); k < -1 || k == 0 && b == &sglangBounds {
		return infer.Invalid("top_k", "top_k %s, got %d.", b.topK, k)
	}
	return nil
}

// pythonFloat spells a number as Python does.
func pythonFloat(v float64) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(text, ".e") {
		text += ".0"
	}
	return text
}
