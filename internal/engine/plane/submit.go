package plane

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"weir/internal/engine/plane/planepb"
)

// The field numbers of SubmitRequest.
const (
	submitSession     = 1
	submitSlot        = 2
	submitRequestID   = 3
	submitPrompt      = 4
	submitMaxTokens   = 5
	submitMinTokens   = 6
	submitIgnoreEOS   = 7
	submitStopIDs     = 8
	submitTemperature = 9
	submitTopP        = 10
	submitTopK        = 11
	submitSeed        = 12
	submitToContext   = 21
)

// appendSubmit appends a request in its wire form, if that has at most so many bytes. The
// generated encoder looks at each field of the message's type twice and at each id three
// times. It encodes what few requests have.
func appendSubmit(b []byte, req *planepb.SubmitRequest, most int) (_ []byte, fits bool) {
	if len(req.Prompt) > most || len(req.Media) > 0 {
		return b, false
	}
	before := len(b)
	if req.MinP != nil || req.PresencePenalty != nil || req.FrequencyPenalty != nil || req.RepetitionPenalty != nil ||
		len(req.LogitBias) > 0 || req.Guide != nil || req.Logprobs != nil || req.CacheSalt != "" {
		if proto.Size(req) > most {
			return b, false
		}
		b, err := proto.MarshalOptions{}.MarshalAppend(b, req)
		return b, err == nil
	}
	b = protowire.AppendTag(b, submitSession, protowire.Fixed64Type)
	b = protowire.AppendFixed64(b, req.Session)
	b = appendNumber(b, submitSlot, uint64(req.Slot))
	b = protowire.AppendTag(b, submitRequestID, protowire.BytesType)
	b = protowire.AppendString(b, req.RequestId)
	b = appendIDs(b, submitPrompt, req.Prompt)
	b = appendNumber(b, submitMaxTokens, uint64(req.MaxTokens))
	b = appendNumber(b, submitMinTokens, uint64(req.MinTokens))
	b = appendNumber(b, submitIgnoreEOS, protowire.EncodeBool(req.IgnoreEos))
	b = appendIDs(b, submitStopIDs, req.StopIds)
	b = appendDouble(b, submitTemperature, req.Temperature)
	b = appendDouble(b, submitTopP, req.TopP)
	if k := req.TopK; k != nil {
		b = protowire.AppendTag(b, submitTopK, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(*k))
	}
	if seed := req.Seed; seed != nil {
		b = protowire.AppendTag(b, submitSeed, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(*seed))
	}
	b = appendNumber(b, submitToContext, protowire.EncodeBool(req.ToContext))
	return b, len(b)-before <= most
}

// appendNumber appends a field unless it is 0, which is its default.
func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}

// appendDouble appends a field unless it is absent.
func appendDouble(b []byte, field protowire.Number, v *float64) []byte {
	if v == nil {
		return b
	}
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), math.Float64bits(*v))
}

// appendIDs appends a packed column.
func appendIDs(b []byte, field protowire.Number, ids []uint32) []byte {
	if len(ids) == 0 {
		return b
	}
	size := 0
	for _, id := range ids {
		size += protowire.SizeVarint(uint64(id))
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	for _, id := range ids {
		switch {
		case id < 1<<7:
			b = append(b, byte(id))
		case id < 1<<14:
			b = append(b, byte(id)|0x80, byte(id>>7))
		case id < 1<<21:
			b = append(b, byte(id)|0x80, byte(id>>7)|0x80, byte(id>>14))
		default:
			b = protowire.AppendVarint(b, uint64(id))
		}
	}
	return b
}
