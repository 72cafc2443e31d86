package sglangipc

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine"
	"weir/internal/engine/sglang"
	"weir/internal/engine/sglangserver"
	"weir/internal/infer"
	"weir/internal/wire/zmtp"
)

// The structures of the wire that are written or read.
const (
	tagRequest  = "TokenizedGenerateReqInput"
	tagSampling = "SamplingParams" // untagged
	tagAbort    = "AbortReq"
	tagFence    = "ConfigureLoggingReq"
	tagState    = "GetInternalStateReq"
	tagStateOut = "GetInternalStateReqOutput"
	tagOutputs  = "BatchTokenIDOutput"
)

// codec writes the messages of one release, and knows where its columns stand.
type codec struct {
	request, sampling form
	abort, fence      form
	state             []byte
	mode              *sglangserver.Mode // of the schedulers
	idsAsPair         bool               // ids are written as a pair, not as an extension

	ranks bool // a request names the rank that it is for
	salts int  // fields of a request by which it carries a cache salt

	columns []column // of the outputs, by position; those after the last are not read
	finish  int      // where an AbortReq has its reason
}

// form is a structure to be filled in: what the engine's own encoder wrote, cut
// where weir has something to say.
type form struct {
	head   []byte
	pieces []piece
}

// piece is a field to be filled in, with the engine's own value for when there is
// nothing to say, and what follows it.
type piece struct {
	field string
	value []byte
	after []byte
}

// append appends the structure. put appends a field's value, or nothing when the
// engine's own is to stay.
func (f *form) append(b []byte, put func(b []byte, field string) []byte) []byte {
	b = append(b, f.head...)
	for i := range f.pieces {
		p := &f.pieces[i]
		n := len(b)
		if b = put(b, p.field); len(b) == n {
			b = append(b, p.value...)
		}
		b = append(b, p.after...)
	}
	return b
}

// kinds are the msgpack types that a field's sample may have: what is written there
// has one of them.
type kinds []msgp.Type

var (
	ofText   = kinds{msgp.StrType, msgp.NilType}
	ofFloat  = kinds{msgp.Float64Type, msgp.Float32Type, msgp.IntType, msgp.UintType}
	ofInt    = kinds{msgp.IntType, msgp.UintType, msgp.NilType}
	ofBool   = kinds{msgp.BoolType}
	ofArray  = kinds{msgp.ArrayType, msgp.NilType}
	ofMap    = kinds{msgp.MapType, msgp.NilType}
	ofArrays = kinds{msgp.ArrayType, msgp.ExtensionType}
)

var requestFields = map[string]kinds{
	"rid": ofText, "input_ids": ofArrays, "sampling_params": {msgp.ArrayType, msgp.MapType}, "lora_id": ofText, "stream": ofBool,
	"return_logprob": ofBool, "top_logprobs_num": ofInt, "priority": ofInt,
	"bootstrap_host": ofText, "bootstrap_port": ofInt, "bootstrap_room": ofInt,
}

var samplingFields = map[string]kinds{
	"max_new_tokens": ofInt, "min_new_tokens": ofInt, "stop_token_ids": ofArray, "ignore_eos": ofBool,
	"temperature": ofFloat, "top_p": ofFloat, "top_k": ofInt, "min_p": ofFloat,
	"presence_penalty": ofFloat, "frequency_penalty": ofFloat, "repetition_penalty": ofFloat,
	"logit_bias": ofMap, "sampling_seed": ofInt,
	"json_schema": ofText, "regex": ofText, "ebnf": ofText, "structural_tag": ofText,
}

// fixedFields are what the samples must hold: the scheduler does not normalize, and
// throws where it finds no list.
var fixedFields = map[string]string{"is_normalized": "\xc3", "stop_strs": "\x90", "stop_regex_strs": "\x90", "n": "\x01", "stop": "\xc0", "stop_regex": "\xc0"}

// newCodec makes the codec of a release from its structures, and refuses those that
// lack a field or have another type where weir writes.
func newCodec(wire map[string]structure) (*codec, error) {
	for _, name := range []string{tagRequest, tagSampling, tagAbort, tagFence, tagState, tagOutputs} {
		if _, ok := wire[name]; !ok {
			return nil, fmt.Errorf("the launcher hands over no structure %s", name)
		}
	}
	c := &codec{state: wire[tagState].Sample}
	var err error
	fields := maps.Clone(requestFields)
	if slices.Contains(wire[tagRequest].Fields, "require_reasoning") { // from 0.5.7 on
		fields["require_reasoning"] = ofBool
	}
	if c.ranks = slices.Contains(wire[tagRequest].Fields, "routed_dp_rank"); c.ranks { // from 0.5.10 on
		fields["routed_dp_rank"], fields["disagg_prefill_dp_rank"] = ofInt, ofInt
	}
	for _, name := range sglangserver.SaltFields { // from 0.5.3 and 0.5.18 on
		if slices.Contains(wire[tagRequest].Fields, name) {
			fields[name] = ofText
			c.salts++
		}
	}
	if c.request, err = newForm(tagRequest, tagRequest, wire[tagRequest], fields); err != nil {
		return nil, err
	}
	for _, p := range c.request.pieces {
		switch p.field {
		case "input_ids":
			c.idsAsPair = msgp.NextType(p.value) == msgp.ArrayType
		case "sampling_params": // it is part of the request's sample, and has none of its own
			s := wire[tagSampling]
			s.Sample = p.value
			if c.sampling, err = newForm(tagSampling, "", s, samplingFields); err != nil {
				return nil, err
			}
			if err := checkFixed(s); err != nil {
				return nil, err
			}
		}
	}
	if c.abort, err = newForm(tagAbort, tagAbort, wire[tagAbort], map[string]kinds{"rid": ofText, "abort_all": ofBool}); err != nil {
		return nil, err
	}
	if c.fence, err = newForm(tagFence, tagFence, wire[tagFence], map[string]kinds{"rid": ofText}); err != nil {
		return nil, err
	}
	if _, _, err = wire[tagState].split(tagState, tagState); err != nil {
		return nil, err
	}
	if wire[tagAbort].Fields[0] != "rid" || wire[tagFence].Fields[0] != "rid" {
		return nil, fmt.Errorf("%s and %s do not begin with rid", tagAbort, tagFence)
	}
	if c.finish = slices.Index(wire[tagAbort].Fields, "finished_reason"); c.finish < 0 {
		return nil, fmt.Errorf("%s has no field finished_reason", tagAbort)
	}
	return c, c.setColumns(wire[tagOutputs].Fields)
}

// saltsOf reports whether requests to a release carry a cache salt.
func (c *codec) saltsOf(release string) engine.Salts {
	if c.salts == 0 {
		return engine.Salts{Why: fmt.Sprintf("is SGLang %s, whose requests have no extra_key; 0.5.3 and later have it", release)}
	}
	return engine.Salts{Carried: true, Untold: c.salts < len(sglangserver.SaltFields)}
}

// newForm cuts a sample at the fields given, all of which it must have.
func newForm(name, tag string, s structure, fields map[string]kinds) (form, error) {
	head, chunks, err := s.split(name, tag)
	if err != nil {
		return form{}, err
	}
	f := form{head: slices.Clone(head)}
	for _, c := range chunks {
		of, ours := fields[c.field]
		switch {
		case ours && !slices.Contains(of, msgp.NextType(c.raw)):
			return form{}, fmt.Errorf("%s.%s is of type %v, want one of %v", name, c.field, msgp.NextType(c.raw), of)
		case ours:
			f.pieces = append(f.pieces, piece{field: c.field, value: slices.Clone(c.raw)})
		case len(f.pieces) == 0:
			f.head = append(f.head, c.raw...)
		default:
			last := &f.pieces[len(f.pieces)-1]
			last.after = append(last.after, c.raw...)
		}
	}
	if len(f.pieces) < len(fields) {
		for field := range fields {
			if !slices.Contains(s.Fields, field) {
				return form{}, fmt.Errorf("%s has no field %s", name, field)
			}
		}
		return form{}, fmt.Errorf("%s has a field twice", name)
	}
	return f, nil
}

func checkFixed(s structure) error {
	_, chunks, err := s.split(tagSampling, "")
	if err != nil {
		return err
	}
	found := 0
	for _, c := range chunks {
		want, ok := fixedFields[c.field]
		if ok && want != string(c.raw) {
			return fmt.Errorf("%s.%s of the sample is %x, want %x", tagSampling, c.field, c.raw, want)
		}
		if ok {
			found++
		}
	}
	if found != len(fixedFields) {
		return fmt.Errorf("%s lacks one of the fields that say that it is normalized", tagSampling)
	}
	return nil
}

// allIDs is the engine's own bound of top_k, which stands for no bound.
const allIDs = 1 << 30

// greedy is the temperature below which the engine's front end draws the likeliest.
const greedy = 1e-6

// appendRequest appends a request that check has let through, for a rank or, with -1, for
// any.
func (c *codec) appendRequest(b []byte, req *infer.Request, or *engine.Additions, loraID string, rank int) []byte {
	return c.request.append(b, func(b []byte, field string) []byte {
		switch field {
		case "rid":
			return msgp.AppendString(b, req.ID)
		case "input_ids":
			return c.appendIDs(b, req.Prompt)
		case "sampling_params":
			return c.appendSampling(b, req, or)
		case "lora_id":
			if loraID != "" {
				return msgp.AppendString(b, loraID)
			}
		case "routed_dp_rank":
			if rank >= 0 {
				return msgp.AppendInt(b, rank)
			}
		case "bootstrap_host", "bootstrap_port", "bootstrap_room", "disagg_prefill_dp_rank":
			if req.Half != nil {
				return appendHalf(b, field, &req.Half.Bootstrap)
			}
		case "extra_key", "cache_salt":
			if req.CacheSalt != "" {
				return msgp.AppendString(b, req.CacheSalt)
			}
		case "priority":
			if req.Priority != nil {
				return msgp.AppendInt64(b, *req.Priority)
			}
		case "stream":
			return msgp.AppendBool(b, true)
		case "require_reasoning":
			reasons, _ := c.mode.Reasons(req) // check has let it through
			return msgp.AppendBool(b, reasons)
		case "return_logprob":
			return msgp.AppendBool(b, req.Logprobs != nil)
		case "top_logprobs_num":
			if req.Logprobs != nil {
				return msgp.AppendInt(b, *req.Logprobs)
			}
		}
		return b
	})
}

// appendHalf appends a field of where halves meet.
func appendHalf(b []byte, field string, at *infer.Bootstrap) []byte {
	switch field {
	case "bootstrap_host":
		return msgp.AppendString(b, at.Host)
	case "bootstrap_port":
		return msgp.AppendInt(b, at.Port)
	case "bootstrap_room":
		return msgp.AppendInt64(b, at.Room)
	}
	if at.Rank < 0 {
		return b
	}
	return msgp.AppendInt(b, at.Rank)
}

func (c *codec) appendSampling(b []byte, req *infer.Request, or *engine.Additions) []byte {
	s := or.Defaults.Fill(req.Sampling)
	stops := c.mode.StopIDs(req, or.EndIDs)
	likeliest := s.Temperature != nil && *s.Temperature < greedy
	most, least := req.MaxTokens, req.MinTokens
	if req.Half != nil {
		most, least = sglang.Limits(req)
	}
	guideField, guideText := "", ""
	if req.Guide != nil {
		guideField, guideText = sglang.GuideField(req.Guide)
	}
	return c.sampling.append(b, func(b []byte, field string) []byte {
		switch field {
		case "max_new_tokens":
			return msgp.AppendInt(b, most)
		case "min_new_tokens":
			return msgp.AppendInt(b, least)
		case "stop_token_ids":
			if len(stops) > 0 {
				b = msgp.AppendArrayHeader(b, uint32(len(stops)))
				for _, id := range stops {
					b = msgp.AppendUint32(b, id)
				}
			}
			return b
		case "ignore_eos":
			return msgp.AppendBool(b, req.IgnoreEOS)
		case "temperature":
			if likeliest {
				return msgp.AppendFloat64(b, 1)
			}
			return appendFloat(b, s.Temperature)
		case "top_p":
			return appendFloat(b, s.TopP)
		case "top_k":
			switch {
			case likeliest:
				return msgp.AppendInt(b, 1)
			case s.TopK != nil && (*s.TopK <= 0 || *s.TopK > allIDs):
				return msgp.AppendInt(b, allIDs)
			case s.TopK != nil:
				return msgp.AppendInt(b, *s.TopK)
			}
			return b
		case "min_p":
			return appendFloat(b, s.MinP)
		case "presence_penalty":
			return appendFloat(b, s.PresencePenalty)
		case "frequency_penalty":
			return appendFloat(b, s.FrequencyPenalty)
		case "repetition_penalty":
			return appendFloat(b, s.RepetitionPenalty)
		case "logit_bias":
			if len(s.LogitBias) > 0 {
				b = msgp.AppendMapHeader(b, uint32(len(s.LogitBias)))
				for _, bias := range s.LogitBias {
					b = msgp.AppendString(b, strconv.FormatUint(uint64(bias.ID), 10))
					b = msgp.AppendFloat64(b, bias.Value)
				}
			}
			return b
		case "sampling_seed":
			if s.Seed != nil {
				return appendSeed(b, *s.Seed)
			}
			return b
		}
		if field == guideField {
			return msgp.AppendString(b, guideText)
		}
		return b
	})
}

func appendSeed(b []byte, seed int64) []byte {
	if seed < 0 {
		return msgp.AppendInt64(b, seed)
	}
	return msgp.AppendUint64(b, uint64(seed))
}

func appendFloat(b []byte, v *float64) []byte {
	if v == nil {
		return b
	}
	return msgp.AppendFloat64(b, *v)
}

// idsHead is what stands before the ids in an extension: the length of a msgpack
// value, and it: the type code of 64-bit integers.
const idsHead = "\x00\x00\x00\x02\xa1q"

const extIDs = 1

// appendIDs appends ids as Python's array("q").
func (c *codec) appendIDs(b []byte, ids []uint32) []byte {
	n := 8 * len(ids)
	if c.idsAsPair {
		b = msgp.AppendArrayHeader(b, 2)
		b = msgp.AppendString(b, "q")
		b = msgp.AppendBytesHeader(b, uint32(n))
	} else {
		switch size := n + len(idsHead); {
		case size <= math.MaxUint8:
			b = append(b, 0xc7, byte(size))
		case size <= math.MaxUint16:
			b = binary.BigEndian.AppendUint16(append(b, 0xc8), uint16(size))
		default:
			b = binary.BigEndian.AppendUint32(append(b, 0xc9), uint32(size))
		}
		b = append(append(b, extIDs), idsHead...)
	}
	b = slices.Grow(b, n)
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint64(b, uint64(id))
	}
	return b
}

// appendAbort appends an abort. The engine takes the id for a prefix, and that of
// nothing for all: an empty id aborts all.
func (c *codec) appendAbort(b []byte, id string) []byte {
	return c.abort.append(b, func(b []byte, field string) []byte {
		if field == "rid" {
			return msgp.AppendString(b, id)
		}
		return msgp.AppendBool(b, id == "")
	})
}

// shortestID is the length from which on an id of a request that nobody knows is
// aborted: as a prefix, a short one could be that of others.
const shortestID = 8

// AppendAborts implements coreclient.Code.
func (c *codec) AppendAborts(wire []byte, ids []string) []byte {
	var room [128]byte
	for _, id := range ids {
		if len(id) >= shortestID {
			wire = zmtp.AppendMessage(wire, c.appendAbort(room[:0], id))
		}
	}
	return wire
}

// fenceName begins the ids of fences.
const fenceName = "weir-fence-"

// AppendFence implements coreclient.Code. A fence is a call that sets up logging,
// with nothing to set up. A scheduler returns it unchanged, with its id, after its
// outputs and over their connection.
func (c *codec) AppendFence(wire []byte, call int64) []byte {
	var room [256]byte
	return zmtp.AppendMessage(wire, c.fence.append(room[:0], func(b []byte, _ string) []byte {
		return msgp.AppendString(b, fenceName+strconv.FormatInt(call, 16))
	}))
}

// check refuses what the engine's own front end would: the scheduler verifies
// nothing, and an id beyond the vocabulary is beyond its tables.
func (h *manifest) check(req *infer.Request, or *engine.Additions) *infer.Error {
	switch {
	case req.MaxTokens <= 0 || req.MaxTokens > math.MaxInt32:
		return infer.Invalid("max_tokens", "must be between 1 and %d", math.MaxInt32)
	case req.MinTokens < 0 || req.MinTokens > req.MaxTokens:
		return infer.Invalid("min_tokens", "must be between 0 and max_tokens")
	case len(req.Prompt) >= h.MaxInput:
		return infer.Errorf(infer.CodeInvalid, "the prompt has %d ids, and the engine takes at most %d", len(req.Prompt), h.MaxInput-1)
	case req.Logprobs != nil && (*req.Logprobs < 0 || *req.Logprobs > min(h.Vocab, sglang.MaxLogprobs)):
		return infer.Invalid("logprobs", "must be between 0 and %d", min(h.Vocab, sglang.MaxLogprobs))
	case len(req.ID) < shortestID:
		return infer.Errorf(infer.CodeInternal, "a request's id of %d bytes", len(req.ID))
	}
	if err := h.Started.Takes(req); err != nil {
		return err
	}
	if req.Half != nil && !utf8.ValidString(req.Half.Bootstrap.Host) {
		return infer.Errorf(infer.CodeInternal, "the bootstrap host is not UTF-8")
	}
	if err := req.Lacks(h.carries()); err != nil {
		return err
	}
	if _, err := h.Started.Reasons(req); err != nil {
		return err
	}
	if g := req.Guide; g != nil {
		if _, text := sglang.GuideField(g); !utf8.ValidString(text) {
			return infer.Invalid("response_format", "is not UTF-8")
		}
	}
	for i, id := range req.Prompt {
		if int64(id) >= int64(h.Vocab) {
			return infer.Errorf(infer.CodeInvalid, "id %d of the prompt is %d; the model's ids are 0 to %d", i, id, h.Vocab-1)
		}
	}
	for i, id := range req.StopIDs {
		if int64(id) >= int64(h.Vocab) {
			return infer.Invalid("stop_token_ids", "stop_token_ids[%d] is %d; the model's ids are 0 to %d", i, id, h.Vocab-1)
		}
	}
	s := or.Defaults.Fill(req.Sampling)
	for _, f := range [...]struct {
		name        string
		value       *float64
		least, most float64
	}{
		{"temperature", s.Temperature, 0, math.MaxFloat32},
		{"top_p", s.TopP, math.SmallestNonzeroFloat32, 1},
		{"min_p", s.MinP, 0, 1},
		{"presence_penalty", s.PresencePenalty, -2, 2},
		{"frequency_penalty", s.FrequencyPenalty, -2, 2},
		{"repetition_penalty", s.RepetitionPenalty, math.SmallestNonzeroFloat32, 2},
	} {
		if err := engine.Within(f.name, f.value, f.least, f.most); err != nil {
			return infer.Invalid(f.name, "%v", err)
		}
	}
	return engine.CheckBiases(s.LogitBias, h.Vocab)
}
