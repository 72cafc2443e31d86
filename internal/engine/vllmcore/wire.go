package vllmcore

import (
	"cmp"
	"math"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/infer"
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
// default on the engine's side. What follows them differs between versions (0.20
// has client_index where 0.24 has prompt_is_token_ids), and a field of the wrong
// type ends the engine's input thread without a word.
const addFields = 9

// appendAdd appends the payload of an ADD: req as the positional array that the
// engine decodes, with the end ids, which the engine itself does not know.
func appendAdd(b []byte, req *infer.Request, o *Options, arrival float64) []byte {
	b = msgp.AppendArrayHeader(b, addFields)
	b = msgp.AppendString(b, req.ID)
	b = appendIDs(b, req.Prompt)
	b = msgp.AppendNil(b) // mm_features
	b = appendSampling(b, req, o.EndIDs, &o.Defaults)
	b = msgp.AppendNil(b) // pooling_params
	b = msgp.AppendFloat64(b, arrival)
	b = msgp.AppendNil(b) // lora_request
	b = msgp.AppendNil(b) // cache_salt
	return msgp.AppendNil(b)
}

// appendSampling appends the sampling parameters: a map in which what is left out
// has the engine's own default.
func appendSampling(b []byte, req *infer.Request, end []uint32, or *Defaults) []byte {
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
	s := &req.Sampling
	if v := cmp.Or(s.Temperature, or.Temperature); v != nil {
		key("temperature")
		b = msgp.AppendFloat64(b, *v)
	}
	if v := cmp.Or(s.TopP, or.TopP); v != nil {
		key("top_p")
		b = msgp.AppendFloat64(b, *v)
	}
	if v := cmp.Or(s.TopK, or.TopK); v != nil {
		key("top_k")
		b = msgp.AppendInt(b, *v)
	}
	if v := cmp.Or(s.MinP, or.MinP); v != nil {
		key("min_p")
		b = msgp.AppendFloat64(b, *v)
	}
	if v := cmp.Or(s.RepetitionPenalty, or.RepetitionPenalty); v != nil {
		key("repetition_penalty")
		b = msgp.AppendFloat64(b, *v)
	}
	if s.PresencePenalty != nil {
		key("presence_penalty")
		b = msgp.AppendFloat64(b, *s.PresencePenalty)
	}
	if s.FrequencyPenalty != nil {
		key("frequency_penalty")
		b = msgp.AppendFloat64(b, *s.FrequencyPenalty)
	}
	if len(s.LogitBias) > 0 {
		key("logit_bias")
		b = msgp.AppendMapHeader(b, uint32(len(s.LogitBias)))
		for _, bias := range s.LogitBias {
			b = msgp.AppendUint32(b, bias.ID)
			b = msgp.AppendFloat64(b, bias.Value)
		}
	}
	if req.Guide != nil {
		key("structured_outputs")
		b = appendGuide(b, req.Guide)
	}
	if s.Seed != nil {
		key("seed")
		b = msgp.AppendInt64(b, *s.Seed)
	}
	b[head+1], b[head+2] = byte(n>>8), byte(n)
	return b
}

// carries is what the wire carries beyond what every wire does: all of it.
const carries = infer.CarriesAll

// appendGuide appends what the output must match. Which of the engine's grammar
// libraries sees to it is the front end's to say: its own takes xgrammar for
// structural tags and leaves the choice open elsewhere, where guidance is the one
// that takes every kind.
func appendGuide(b []byte, g *infer.Guide) []byte {
	name, backend := "", "guidance"
	switch g.Kind {
	case infer.GuideJSONSchema:
		name = "json"
	case infer.GuideRegex:
		name = "regex"
	case infer.GuideGrammar:
		name = "grammar"
	case infer.GuideChoice:
		name = "choice"
	case infer.GuideStructuralTag:
		name, backend = "structural_tag", "xgrammar"
	}
	b = msgp.AppendMapHeader(b, 2)
	b = msgp.AppendString(b, name)
	if g.Kind == infer.GuideChoice {
		b = msgp.AppendArrayHeader(b, uint32(len(g.Choices)))
		for _, c := range g.Choices {
			b = msgp.AppendString(b, c)
		}
	} else {
		b = msgp.AppendString(b, g.Text)
	}
	b = msgp.AppendString(b, "_backend")
	return msgp.AppendString(b, backend)
}

// union gives the ids of both lists, each once, in their order.
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

// probeMethod is the utility call that fences are made of: it has been there in
// every version, takes nothing and changes nothing. An engine that lacked it would
// say so, which is an answer too.
const probeMethod = "is_sleeping"

// appendUtility appends the payload of a UTILITY call without arguments.
func appendUtility(b []byte, call int64, method string) []byte {
	b = msgp.AppendArrayHeader(b, 4)
	b = msgp.AppendInt(b, 0) // client_index
	b = msgp.AppendInt64(b, call)
	b = msgp.AppendString(b, method)
	return msgp.AppendArrayHeader(b, 0)
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
	// Without a coordinator the engine neither waits for one nor tells it things.
	for _, name := range []string{"coordinator_input", "coordinator_output", "frontend_stats_publish_address"} {
		b = msgp.AppendNil(msgp.AppendString(b, name))
	}
	b = msgp.AppendString(b, "parallel_config")
	return msgp.AppendMapHeader(b, 0)
}

// check refuses what the wire cannot carry.
func check(req *infer.Request) *infer.Error {
	switch s := &req.Sampling; {
	case req.MaxTokens <= 0 || req.MaxTokens > math.MaxInt32:
		return infer.Invalid("max_tokens", "must be between 1 and %d", math.MaxInt32)
	case req.MinTokens < 0 || req.MinTokens > req.MaxTokens:
		return infer.Invalid("min_tokens", "must be between 0 and max_tokens")
	case s.TopK != nil && (*s.TopK < -1 || *s.TopK > math.MaxInt32):
		return infer.Invalid("top_k", "must be from 1, or -1 or 0 for no limit")
	case s.Temperature != nil && !(*s.Temperature >= 0 && *s.Temperature <= math.MaxFloat32):
		return infer.Invalid("temperature", "must be a number from 0")
	case s.TopP != nil && !(*s.TopP > 0 && *s.TopP <= 1):
		return infer.Invalid("top_p", "must be above 0, at most 1")
	}
	return nil
}
