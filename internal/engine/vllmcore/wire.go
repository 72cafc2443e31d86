package vllmcore

import (
	"math"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/wire/zmtp"
)

// The types of request, each the first frame of a message to an engine.
var (
	typeAdd     = []byte{0}
	typeAbort   = []byte{1}
	typeWave    = []byte{2}
	typeUtility = []byte{3}
)

// coreDead is what an engine sends, as a frame of its own, before it ends.
const coreDead = "ENGINE_CORE_DEAD"

// addFields is how many fields of a request are written: those that have no
// default on the engine's side. The fields behind them differ between versions (0.20
// has client_index where 0.24 has prompt_is_token_ids), and a field of the wrong
// type ends the engine's input thread without a word.
const addFields = 9

// addPriority is the position of a request's priority, from withPriority to the newest
// release known, and addTraceHeaders that of the trace that it is part of. addReasoningEnded is that of a word by which the engine holds the answer
// to a guide from its first id on, whatever its --reasoning-parser finds in the prompt, in
// the releases that guides are carried to (0.29 to 0.33: read in their wheels).
const (
	addPriority       = 13
	addTraceHeaders   = 14
	addReasoningEnded = 17
)

// appendAdd appends the payload of an ADD: req as the positional array that the
// engine decodes, with the end ids, which the engine itself does not know, and the
// adapter and the trace that it is part of, nil for none.
func appendAdd(b []byte, req *infer.Request, with *lora, of *trace.Caller, o *Options, arrival float64) []byte {
	ended := req.Guide != nil && req.Guide.Whole
	fields, priority := uint32(addFields), int64(0)
	if req.Priority != nil {
		fields, priority = addPriority+1, *req.Priority
	}
	if of != nil {
		fields = addTraceHeaders + 1
	}
	if ended {
		fields = addReasoningEnded + 1
	}
	b = msgp.AppendArrayHeader(b, fields)
	b = msgp.AppendString(b, req.ID)
	b = appendIDs(b, req.Prompt)
	b = msgp.AppendNil(b) // mm_features
	b = appendSampling(b, req, o.EndIDs, &o.Defaults)
	b = msgp.AppendNil(b) // pooling_params
	b = msgp.AppendFloat64(b, arrival)
	if with != nil {
		b = with.append(b)
	} else {
		b = msgp.AppendNil(b) // lora_request
	}
	b = appendSalt(b, req.CacheSalt)
	b = msgp.AppendNil(b) // data_parallel_rank
	if fields > addPriority {
		b = msgp.AppendNil(b)    // prompt_embeds
		b = msgp.AppendNil(b)    // prompt_is_token_ids
		b = msgp.AppendInt(b, 0) // client_index
		b = msgp.AppendInt(b, 0) // current_wave
		b = msgp.AppendInt64(b, priority)
	}
	if fields > addTraceHeaders {
		b = appendTrace(b, of)
	}
	if ended {
		b = msgp.AppendBool(b, false) // resumable
		b = msgp.AppendNil(b)         // external_req_id
		b = msgp.AppendBool(b, true)  // reasoning_ended
	}
	return b
}

// appendSalt appends cache_salt: the engine takes one that is empty for a value.
func appendSalt(b []byte, salt string) []byte {
	if salt == "" {
		return msgp.AppendNil(b)
	}
	return msgp.AppendString(b, salt)
}

// appendTrace appends trace_headers. The engine gives them back with each output, which is
// read past.
func appendTrace(b []byte, of *trace.Caller) []byte {
	switch {
	case of == nil:
		return msgp.AppendNil(b)
	case of.State == "":
		b = msgp.AppendMapHeader(b, 1)
	default:
		b = msgp.AppendMapHeader(b, 2)
		b = msgp.AppendString(msgp.AppendString(b, "tracestate"), of.State)
	}
	return msgp.AppendString(msgp.AppendString(b, "traceparent"), of.Parent)
}

// appendSampling appends the sampling parameters: a map in which what is left out
// has the engine's own default.
func appendSampling(b []byte, req *infer.Request, end []uint32, or *engine.Defaults) []byte {
	head := len(b)
	b = append(b, 0xde, 0, 0) // a map of up to 2^16 entries, counted below
	n := 0
	key := func(name string) {
		b = msgp.AppendString(b, name)
		n++
	}
	key("max_tokens")
	b = msgp.AppendInt(b, req.MaxTokens)
	if req.MinTokens > 0 {
		key("min_tokens")
		b = msgp.AppendInt(b, req.MinTokens)
	}
	stop := req.StopIDs
	if !req.IgnoreEOS && len(end) > 0 {
		key("_eos_token_id")
		b = msgp.AppendUint32(b, end[0])
		stop = union(end[1:], stop)
	}
	if len(stop) > 0 {
		key("stop_token_ids")
		b = appendIDs(b, stop)
	}
	// The ids that min_tokens holds back, end ids among them whatever ends the
	// generation.
	if all := union(end, req.StopIDs); len(all) > 0 {
		key("_all_stop_token_ids")
		b = appendIDs(b, all)
	}
	if req.IgnoreEOS {
		key("ignore_eos")
		b = msgp.AppendBool(b, true)
	}
	s := or.Fill(req.Sampling)
	if s.TopK != nil {
		key("top_k")
		b = msgp.AppendInt(b, *s.TopK)
	}
	for _, f := range [...]struct {
		name  string
		value *float64
	}{
		{"temperature", s.Temperature},
		{"top_p", s.TopP},
		{"min_p", s.MinP},
		{"presence_penalty", s.PresencePenalty},
		{"frequency_penalty", s.FrequencyPenalty},
		{"repetition_penalty", s.RepetitionPenalty},
	} {
		if f.value != nil {
			key(f.name)
			b = msgp.AppendFloat64(b, *f.value)
		}
	}
	if s.Seed != nil {
		key("seed")
		b = msgp.AppendInt64(b, *s.Seed)
	}
	if req.Logprobs != nil {
		key("logprobs")
		b = msgp.AppendInt(b, *req.Logprobs)
	}
	if len(s.LogitBias) > 0 {
		key("logit_bias")
		b = msgp.AppendMapHeader(b, uint32(len(s.LogitBias)))
		for _, bias := range s.LogitBias {
			b = msgp.AppendFloat64(msgp.AppendUint32(b, bias.ID), bias.Value)
		}
	}
	if req.Guide != nil {
		key("structured_outputs")
		b = appendGuide(b, req.Guide)
	}
	if h := req.Half; h != nil && h.Params != nil {
		key("extra_args")
		b = msgp.AppendMapHeader(b, 1)
		b = appendJSON(msgp.AppendString(b, "kv_transfer_params"), h.Params)
	}
	b[head+1], b[head+2] = byte(n>>8), byte(n)
	return b
}

// guideBackend is the engine's backend for guides. An engine uses the first backend
// that is requested for all its life. This backend supports all four kinds of guides.
// It rejects a schema that it cannot enforce, while the others ignore the parts that
// they do not know. A rejection appears only in the engine's log, and the engine then
// allows only an end id, which a front end must turn into an error (Generation.Guided).
const guideBackend = "guidance"

// appendGuide appends structured_outputs.
func appendGuide(b []byte, g *infer.Guide) []byte {
	b = msgp.AppendMapHeader(b, 2)
	b = msgp.AppendString(msgp.AppendString(b, "_backend"), guideBackend)
	switch g.Kind {
	case infer.GuideChoice:
		b = msgp.AppendString(b, "choice")
		b = msgp.AppendArrayHeader(b, uint32(len(g.Choices)))
		for _, c := range g.Choices {
			b = msgp.AppendString(b, c)
		}
		return b
	case infer.GuideRegex:
		b = msgp.AppendString(b, "regex")
	case infer.GuideStructuralTag:
		b = msgp.AppendString(b, "structural_tag")
	default:
		b = msgp.AppendString(b, "json")
	}
	return msgp.AppendString(b, g.Text)
}

// The fields that this wire carries beyond those of every wire: numbers in every release,
// guides where a guide that does not compile is an error of its request. Earlier
// releases leave that to their front end, which compiles it once more for it.
// Grammars are in another language than the backend's.
const (
	carriesNumbers = infer.CarriesMinP | infer.CarriesPenalties | infer.CarriesRepetitionPenalty | infer.CarriesLogitBias | infer.CarriesLogprobs | infer.CarriesUsual
	carriesGuides  = infer.CarriesJSONSchema | infer.CarriesRegex | infer.CarriesChoice | infer.CarriesStructuralTag
)

// union returns the ids of both lists, each once, in their order.
func union(a, b []uint32) []uint32 {
	out := make([]uint32, 0, len(a)+len(b))
	for _, ids := range [2][]uint32{a, b} {
		for _, id := range ids {
			if !contains(out, id) {
				out = append(out, id)
			}
		}
	}
	return out
}

func contains(ids []uint32, id uint32) bool {
	for _, x := range ids {
		if x == id {
			return true
		}
	}
	return false
}

func appendIDs(b []byte, ids []uint32) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(ids)))
	for _, id := range ids {
		b = msgp.AppendUint32(b, id)
	}
	return b
}

// appendAbort appends the payload of an ABORT.
func appendAbort(b []byte, ids []string) []byte {
	b = msgp.AppendArrayHeader(b, uint32(len(ids)))
	for _, id := range ids {
		b = msgp.AppendString(b, id)
	}
	return b
}

// code encodes the messages that an outbox itself adds.
type code struct{}

func (code) AppendAborts(wire []byte, ids []string) []byte {
	return zmtp.AppendMessage(wire, typeAbort, appendAbort(nil, ids))
}

func (code) AppendFence(wire []byte, call int64) []byte {
	var room [64]byte
	return zmtp.AppendMessage(wire, typeUtility, appendCall(room[:0], call, probeMethod, 0))
}

// probeMethod is the utility call that fences are made of: it has been there in
// every version, takes nothing and changes nothing. An engine that lacked it would
// say so, which is an answer too.
const probeMethod = "is_sleeping"

// appendCall appends the payload of a UTILITY call, up to its arguments.
func appendCall(b []byte, call int64, method string, arguments uint32) []byte {
	b = msgp.AppendArrayHeader(b, 4)
	b = msgp.AppendInt(b, 0) // client_index
	b = msgp.AppendInt64(b, call)
	b = msgp.AppendString(b, method)
	return msgp.AppendArrayHeader(b, arguments)
}

// appendWave appends the payload of a START_DP_WAVE that no rank is left out of.
func appendWave(b []byte, wave int64) []byte {
	b = msgp.AppendArrayHeader(b, 2)
	b = msgp.AppendInt64(b, wave)
	return msgp.AppendNil(b)
}

// appendInit appends the answer to a HELLO: where the engine is to connect to.
func appendInit(b []byte, input, output string) []byte {
	b = msgp.AppendMapHeader(b, 2)
	b = msgp.AppendString(b, "addresses")
	b = msgp.AppendMapHeader(b, 5)
	b = msgp.AppendString(b, "inputs")
	b = msgp.AppendString(msgp.AppendArrayHeader(b, 1), input)
	b = msgp.AppendString(b, "outputs")
	b = msgp.AppendString(msgp.AppendArrayHeader(b, 1), output)
	// Without a coordinator the engine neither waits for one nor reports to it.
	for _, name := range []string{"coordinator_input", "coordinator_output", "frontend_stats_publish_address"} {
		b = msgp.AppendNil(msgp.AppendString(b, name))
	}
	b = msgp.AppendString(b, "parallel_config")
	return msgp.AppendMapHeader(b, 0)
}

// check refuses what would be the end of an engine: its input thread verifies the
// parameters while it decodes them, and does not survive a value that is out of
// range; and an id beyond the vocabulary is beyond the logits.
func check(req *infer.Request, o *Options, carries infer.Carries) *infer.Error {
	switch {
	case req.MaxTokens <= 0 || req.MaxTokens > math.MaxInt32:
		return infer.Invalid("max_tokens", "must be between 1 and %d", math.MaxInt32)
	case req.MinTokens < 0 || req.MinTokens > req.MaxTokens:
		return infer.Invalid("min_tokens", "must be between 0 and max_tokens")
	}
	if err := engine.CheckHalf(req.Half); err != nil {
		return err
	}
	if err := req.Lacks(carries); err != nil {
		return err
	}
	s := &req.Sampling
	if s.TopK != nil && (*s.TopK < -1 || *s.TopK > math.MaxInt32) {
		return infer.Invalid("top_k", "must be from 1, or -1 or 0 for no limit")
	}
	for _, f := range [...]struct {
		name        string
		value       *float64
		least, most float64
	}{
		{"temperature", s.Temperature, 0, maxTemperature},
		{"top_p", s.TopP, math.SmallestNonzeroFloat64, 1},
		{"min_p", s.MinP, 0, 1},
		{"presence_penalty", s.PresencePenalty, -2, 2},
		{"frequency_penalty", s.FrequencyPenalty, -2, 2},
		{"repetition_penalty", s.RepetitionPenalty, math.SmallestNonzeroFloat64, math.MaxFloat32},
	} {
		if err := engine.Within(f.name, f.value, f.least, f.most); err != nil {
			return infer.Invalid(f.name, "%v", err)
		}
	}
	if err := engine.CheckBiases(s.LogitBias, o.Vocab); err != nil {
		return err
	}
	if n := req.Logprobs; n != nil && (*n < 0 || *n > maxLogprobs || o.Vocab > 0 && *n > o.Vocab) {
		return infer.Invalid("logprobs", "must be between 0 and %d", maxLogprobs)
	}
	for i, id := range req.StopIDs {
		if o.beyond(id) {
			return infer.Invalid("stop_token_ids", "stop_token_ids[%d] is %d; the model's ids are 0 to %d", i, id, o.Vocab-1)
		}
	}
	return nil
}

// maxTemperature is the engine's own bound.
const maxTemperature = 2

// beyond reports whether the model has no such id.
func (o *Options) beyond(id uint32) bool { return o.Vocab > 0 && int(id) >= o.Vocab }
