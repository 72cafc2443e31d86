package completion

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/sim/simserver/fields"
	"weir/internal/sim/simserver/vocab"
)

// Request holds the fields of a chat or text completion that the servers read.
type Request struct {
	Model               string         `json:"model"`
	Messages            jsontext.Value `json:"messages"`
	Prompt              jsontext.Value `json:"prompt"`
	MaxTokens           *int           `json:"max_tokens"`
	MaxCompletionTokens *int           `json:"max_completion_tokens"`
	MinTokens           int            `json:"min_tokens"`
	IgnoreEOS           bool           `json:"ignore_eos"`
	Stop                jsontext.Value `json:"stop"`
	StopTokenIDs        []uint32       `json:"stop_token_ids"`
	Seed                *int64         `json:"seed"`
	N                   *int           `json:"n"`
	Logprobs            jsontext.Value `json:"logprobs"`
	TopLogprobs         int            `json:"top_logprobs"`
	Stream              bool           `json:"stream"`
	StreamOptions       *struct {
		IncludeUsage         bool `json:"include_usage"`
		ContinuousUsageStats bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`

	// Fields of vLLM, SGLang, or both.
	ReturnTokenIDs   bool           `json:"return_token_ids"`
	TokensAsIDs      bool           `json:"return_tokens_as_token_ids"`
	RequestID        string         `json:"request_id"`
	IncludeStop      bool           `json:"include_stop_str_in_output"`
	NoStopTrim       bool           `json:"no_stop_trim"`
	InputIDs         []uint32       `json:"input_ids"`
	RID              jsontext.Value `json:"rid"`
	Priority         int            `json:"priority"`
	LoRAPath         *string        `json:"lora_path"`
	RoutedDPRank     *int           `json:"routed_dp_rank"`
	DataParallelRank *int           `json:"data_parallel_rank"`
	StreamInterval   int            `json:"stream_interval"`

	// Fields of both that are not simulated.
	Echo           jsontext.Value `json:"echo"`
	Suffix         jsontext.Value `json:"suffix"`
	BeamSearch     jsontext.Value `json:"use_beam_search"`
	PromptLogprobs jsontext.Value `json:"prompt_logprobs"`
	HiddenStates   jsontext.Value `json:"return_hidden_states"`

	KVTransferParams jsontext.Value `json:"kv_transfer_params"`

	fields.Pair
	fields.Mode
	fields.Salt
	fields.Distribution
	fields.Unread
}

// showStop reports whether the string or id that stops an output is shown.
func (r *Request) showStop() bool { return r.IncludeStop || r.NoStopTrim }

// dpRank returns the DP rank under either name, nil when none is asked for.
func (r *Request) dpRank() *int {
	if r.RoutedDPRank != nil {
		return r.RoutedDPRank
	}
	return r.DataParallelRank
}

// alternatives returns how many alternatives are asked for at each token, or -1 for no log
// probabilities at all. Chats have a flag and a number, texts a number.
func (r *Request) alternatives(d *Dialect) (int, error) {
	n, param := r.TopLogprobs, "top_logprobs"
	switch kind := r.Logprobs.Kind(); {
	case kind == 0 || kind == 'n' || kind == 'f':
		if d.chat && n > 0 {
			return 0, infer.Invalid("top_logprobs", "top_logprobs is %d and logprobs is not true; set it", n)
		}
		return -1, nil
	case d.chat && kind == 't':
	case !d.chat && kind == '0':
		param = "logprobs"
		if err := json.Unmarshal(r.Logprobs, &n); err != nil {
			return 0, infer.Invalid(param, "logprobs is not valid: %v", err)
		}
	case d.chat:
		return 0, infer.Invalid("logprobs", "logprobs must be true or false; how many is top_logprobs")
	default:
		return 0, infer.Invalid("logprobs", "logprobs must be a number of alternatives")
	}
	if n < 0 || n > vocab.MaxAlternatives {
		return 0, infer.Invalid(param, "%s is %d; it must be between 0 and %d", param, n, vocab.MaxAlternatives)
	}
	return n, nil
}

// limit returns max_tokens under either name; 0 when it was not given.
func (r *Request) limit() (int, error) {
	n, param := r.MaxCompletionTokens, "max_completion_tokens"
	if n == nil {
		n, param = r.MaxTokens, "max_tokens"
	}
	if n == nil {
		return 0, nil
	}
	if *n < 1 {
		return 0, infer.Invalid(param, "%s is %d; it must be at least 1", param, *n)
	}
	return *n, nil
}

// choices returns n.
func (r *Request) choices() (int, error) {
	if r.N == nil {
		return 1, nil
	}
	if *r.N < 1 || *r.N > fields.MaxChoices {
		return 0, infer.Invalid("n", "n is %d; it must be between 1 and %d", *r.N, fields.MaxChoices)
	}
	return *r.N, nil
}

// The fields of each request that are not simulated.
var (
	openAIChat = fields.Unsimulated{
		"audio": "null", "function_call": "null", "functions": "null", "logit_bias": "{}", "modalities": `["text"]`, "moderation": "null", "web_search_options": "null",
	}
	openAIText   = fields.Unsimulated{"best_of": "1", "logit_bias": "{}"}
	vllmDecoding = fields.Unsimulated{
		"allowed_token_ids": "null", "bad_words": "[]", "logit_bias": "{}", "logprob_token_ids": "null", "repetition_detection": "null",
		"skip_special_tokens": "true", "thinking_token_budget": "null", "truncate_prompt_tokens": "null", "watermarking": "false",
		"ec_transfer_params": "null",
	}
	vllmChat = vllmDecoding.And(fields.Unsimulated{
		"add_generation_prompt": "true", "add_special_tokens": "false", "chat_template": "null", "continue_final_message": "false",
		"documents": "null", "media_io_kwargs": "null", "mm_processor_kwargs": "null", "return_prompt_text": "false",
	})
	vllmText       = vllmDecoding.And(fields.Unsimulated{"add_special_tokens": "true", "prompt_embeds": "null"})
	sglangDecoding = fields.Unsimulated{
		"custom_logit_processor": "null", "images_config": "null", "logit_bias": "{}", "mm_processor_kwargs": "null",
		"return_cached_tokens_details": "false", "return_routed_experts": "false", "return_spec_tokens_details": "false",
		"session_params": "null", "skip_special_tokens": "true", "stop_regex": "null", "watermark": "null",
	}
	sglangChat = sglangDecoding.And(fields.Unsimulated{
		"continue_final_message": "false", "max_dynamic_patch": "null", "min_dynamic_patch": "null", "return_input_ids_in_sglext": "false",
		"return_flat_raw_output_top_logprobs": "false", "return_meta_info": "false", "return_output_ids_in_sglext": "false", "return_prompt_token_ids": "false",
		"return_sampling_mask": "false", "stream_reasoning": "true", "task": "null", "thinking": "null", "use_audio_in_video": "false",
		"video_config": "null",
	})
	sglangText = sglangDecoding
)
