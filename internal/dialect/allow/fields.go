package allow

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/infer/spell"
)

// Place is the position of a field in a request.
type Place uint8

// The places.
const (
	Body   Place = iota // at the top of a body, or in its sampling_params
	Part                // in a part of a conversation's content
	Header              // of the HTTP request
)

// Field is a field that steers an engine.
type Field struct {
	Place Place
	Name  string
	// Why states what it does to the engine, Source where its engine reads it.
	Why, Source string
}

// The effects of the fields.
const (
	whyReach   = "it names addresses that the engine connects to"
	whyPlace   = "it chooses the engine's worker for the request"
	whyOrder   = "it puts the request before those of others"
	whyCache   = "it chooses what cached state the request shares with others"
	whyHash    = "it sets the name under which the engine caches the media, for all callers"
	whyCode    = "it makes the engine run code, or load files, of the caller's choice"
	whyInside  = "it makes the engine keep and return its inner state"
	whyID      = "the engine uses it as the request's id, which must be unique"
	whySession = "it ties the request to state that the engine keeps"
	whyServer  = "it is about the server's own logs, metrics and bookkeeping"
	whyLoad    = "it changes what reading the request's media costs the engine"
	whyAny     = "it is for extensions of the engine, which weir does not know"
)

// Where the fields are read, of the releases that the list was made from.
const (
	vllm       = "vLLM 0.33: vllm/entrypoints/openai/{chat_completion,completion,responses}/protocol.py"
	vllmPool   = "vLLM 0.33: vllm/entrypoints/pooling/base/protocol.py"
	vllmHead   = "vLLM 0.33: vllm/entrypoints/generate/base/serving.py"
	vllmPart   = "vLLM 0.33: vllm/renderers/chat_utils/chat_message.py"
	vllmOld    = "vLLM before 0.12: vllm/entrypoints/openai/protocol.py"
	sglang     = "SGLang 0.5.23: sglang/srt/entrypoints/openai/protocol.py, managers/io_struct.py"
	sglangReq  = "SGLang 0.5.23: sglang/srt/managers/io_struct.py, GenerateReqInput"
	sglangPool = "SGLang 0.5.23: sglang/srt/managers/io_struct.py, EmbeddingReqInput"
	sglangHead = "SGLang 0.5.23: sglang/srt/entrypoints/request_headers.py"
	sglangBase = "SGLang 0.5.23: sglang/srt/entrypoints/openai/serving_base.py"
	both       = vllm + "; " + sglang
	dynamo     = "Dynamo: crate dynamo-llm 1.0.2, src/protocols/openai/nvext.rs"
	llmd       = "llm-d routing sidecar: README.md"
)

// fields is the list.
var fields = []Field{
	{Body, "kv_transfer_params", whyReach, vllm},
	{Body, "ec_transfer_params", whyReach, vllm},
	{Body, "bootstrap_host", whyReach, sglang},
	{Body, "bootstrap_port", whyReach, sglang},
	{Body, "bootstrap_room", whyReach, sglang},
	{Body, "bootstrap_pair_key", whyReach, sglangReq},
	{Body, "encoder_urls", whyReach, sglangReq},
	{Body, "http_worker_ipc", whyReach, sglangReq},
	{Header, "X-Override-Bootstrap-Host", whyReach, sglangHead},
	{Header, "X-Override-Bootstrap-Port", whyReach, sglangHead},
	{Header, "X-Override-Bootstrap-Room", whyReach, sglangHead},
	{Header, "X-Prefiller-Host-Port", whyReach, llmd},
	{Header, "X-Prefiller-Url", whyReach, llmd},

	{Body, "data_parallel_rank", whyPlace, sglang},
	{Body, "routed_dp_rank", whyPlace, sglang},
	{Body, "disagg_prefill_dp_rank", whyPlace, sglang},
	{Body, "decode_tp_size", whyPlace, sglangReq},
	{Body, "routing_key", whyPlace, sglangReq},
	{Header, "X-Data-Parallel-Rank", whyPlace, vllmHead + "; " + sglangBase},
	{Header, "X-Override-Routed-Dp-Rank", whyPlace, sglangHead},
	{Header, "X-Override-Disagg-Prefill-Dp-Rank", whyPlace, sglangHead},
	{Header, "X-Smg-Routing-Key", whyPlace, sglangBase},
	{Header, "X-Worker-Instance-Id", whyPlace, dynamo},
	{Header, "X-Prefill-Instance-Id", whyPlace, dynamo},

	{Body, "priority", whyOrder, both},
	{Header, "X-Vllm-Priority", whyOrder, vllmHead},
	{Header, "X-Override-Priority", whyOrder, sglangHead},
	{Body, "background", "the engine continues it after the caller has left", sglangReq},

	{Body, "cache_salt", whyCache, both},
	{Body, "extra_key", whyCache, sglang},
	{Body, "kv_hints", whyCache, sglangReq},
	{Body, "mm_hashes", whyHash, sglangReq},
	{Body, "mm_content_hashes", whyHash, sglangReq},
	{Part, "content_hash", whyHash, sglang},
	{Part, "uuid", whyHash, vllmPart},

	{Body, "lora_path", whyCode, sglang},
	{Body, "lora_id", whyCode, sglangReq},
	{Body, "lora_request", whyCode, vllmOld},
	{Body, "custom_logit_processor", whyCode, sglang},
	{Body, "logits_processors", whyCode, vllmOld},
	{Body, "custom_params", whyAny, sglang},
	{Body, "chat_template", "it makes the engine run the caller's template, which vLLM also refuses without --trust-request-chat-template", vllm},
	{Body, "prompt_embeds", "the engine unpacks tensors from it", vllm},
	{Body, "guided_decoding_backend", "it chooses a part of the engine, for all of its life", vllmOld},

	{Body, "mm_processor_kwargs", whyLoad, vllmPool + "; " + sglang},
	{Body, "media_io_kwargs", whyLoad, vllm},

	{Body, "return_hidden_states", whyInside, sglang},
	{Body, "return_pooled_hidden_states", whyInside, sglangPool},
	{Body, "return_routed_experts", whyInside, sglang},
	{Body, "routed_experts_start_len", whyInside, sglang},
	{Body, "routed_experts_prompt_start", whyInside, vllm},
	{Body, "return_indexer_topk", whyInside, sglangReq},
	{Body, "positional_embed_overrides", whyInside, sglangReq},
	{Body, "token_indices_to_pool", whyInside, sglangReq},
	{Body, "multi_item_delimiter_indices", whyInside, sglangReq},
	{Body, "num_items_assigned", whyInside, sglangReq},
	{Body, "need_wait_for_mm_inputs", whyInside, sglangReq},

	{Body, "request_id", whyID, both},
	{Body, "rid", whyID, sglang},
	{Header, "X-Override-Rid", whyID, sglangHead},

	{Body, "session_id", whySession, both},
	{Body, "session_params", whySession, sglang},
	{Body, "conversation_id", whySession, sglangReq},
	{Header, "X-Session-Id", whySession, vllmHead},
	{Header, "X-Override-Conversation-Id", whySession, sglangHead},

	{Body, "custom_labels", whyServer, sglang},
	{Body, "log_metrics", whyServer, sglangReq},
	{Body, "no_logs", whyServer, sglangReq},
	{Body, "received_time", whyServer, sglangReq},
	{Body, "external_trace_header", whyServer, sglangReq},

	{Body, "vllm_xargs", whyAny, vllm},
	{Body, "extra_args", whyAny, "vLLM 0.33: vllm/sampling_params.py"},
	{Body, "nvext", whyAny, dynamo},
}

// List returns the fields, in a fixed order.
func List() []Field { return slices.Clone(fields) }

// lists finds a field of a place by its name in lower case.
var lists = func() (all [Header + 1]map[string]*Field) {
	for i := range fields {
		f := &fields[i]
		if all[f.Place] == nil {
			all[f.Place] = map[string]*Field{}
		}
		all[f.Place][strings.ToLower(f.Name)] = f
	}
	return all
}()

// Fields are the fields that steer engines and may pass. The zero value lets none
// pass.
type Fields struct{ allowed map[*Field]bool }

// ParseFields returns Fields that let the fields and headers of these names pass.
func ParseFields(names []string) (Fields, error) {
	f := Fields{allowed: map[*Field]bool{}}
	for _, name := range names {
		known := false
		for _, list := range lists {
			if field := list[strings.ToLower(name)]; field != nil {
				f.allowed[field], known = true, true
			}
		}
		if !known {
			var words []string
			for i := range fields {
				words = append(words, fields[i].Name)
			}
			hint := ""
			if near := spell.Nearest(name, words, len(name)/2); near != "" {
				hint = fmt.Sprintf("; did you mean %s?", near)
			}
			return Fields{}, fmt.Errorf("%q is not a field that steers engines, and is passed anyway%s", name, hint)
		}
	}
	return f, nil
}

// of finds a field that may not pass. Some servers read names in any case, so the case
// does not count.
func (f *Fields) of(place Place, name string) *Field {
	field := lists[place][name]
	if field == nil && strings.ContainsFunc(name, upper) {
		field = lists[place][strings.ToLower(name)]
		for _, other := range lists[place] {
			if field == nil && strings.EqualFold(name, other.Name) { // as the long s is to s
				field = other
			}
		}
	}
	if field == nil || f.allowed[field] {
		return nil
	}
	return field
}

// upper reports whether a rune is no letter, digit or underscore as the names are spelled in.
func upper(r rune) bool { return (r < 'a' || r > 'z') && r != '_' && (r < '0' || r > '9') }

// refusal is the error about a field at path.
func (field *Field) refusal(path string) error {
	return &infer.Error{Code: infer.CodeUnsupported, Param: path,
		Message: fmt.Sprintf("%s is not taken from clients: %s. Leave it out; an operator who trusts all clients allows it with --allow-field %s", path, field.Why, field.Name)}
}

// Order reports whether clients may set the priority of their requests.
func (f *Fields) Order() bool {
	for field := range f.allowed {
		if field.Why == whyOrder {
			return true
		}
	}
	return false
}

// CheckPriority refuses a priority unless it may pass. Of the listed fields it is the
// only one that weir itself carries to engines that take ids.
func (f *Fields) CheckPriority(given bool) error {
	if field := lists[Body]["priority"]; given && !f.allowed[field] {
		return field.refusal(field.Name)
	}
	return nil
}

// CheckBody refuses a field at the top of a body, or in its sampling_params, that may
// not pass. Null asks for nothing, however often it occurs.
func (f *Fields) CheckBody(h *dialect.Head) error {
	for _, at := range h.Fields {
		raw := h.Body[at.Start:at.End]
		if dialect.KindOf(raw) == 'n' {
			continue
		}
		if field := f.of(Body, at.Name); field != nil {
			return field.refusal(dialect.Clip(at.Name, 64))
		}
		if strings.EqualFold(at.Name, "sampling_params") {
			if err := f.sampling("sampling_params", raw); err != nil {
				return err
			}
		}
	}
	return nil
}

// sampling looks into sampling_params, which may be an object for each prompt.
func (f *Fields) sampling(path string, raw []byte) error {
	switch dialect.KindOf(raw) {
	case '[':
		return dialect.EachItem(raw, func(i int, item []byte) error {
			return f.sampling(fmt.Sprintf("%s[%d]", path, i), item)
		})
	case '{':
		return dialect.EachMember(raw, func(name string, value []byte) error {
			if field := f.of(Body, name); field != nil && dialect.KindOf(value) != 'n' {
				return field.refusal(path + "." + dialect.Clip(name, 64))
			}
			return nil
		})
	}
	return nil
}

// CheckHeader refuses a header that may not pass. An underscore counts as a hyphen,
// as it does for servers behind CGI-like interfaces.
func (f *Fields) CheckHeader(h http.Header) error {
	for name := range h {
		if len(name) < 3 || name[0]|0x20 != 'x' {
			continue
		}
		if field := lists[Header][strings.ReplaceAll(strings.ToLower(name), "_", "-")]; field != nil && !f.allowed[field] {
			return field.refusal("header " + field.Name)
		}
	}
	return nil
}
