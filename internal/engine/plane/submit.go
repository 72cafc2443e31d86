package plane

import (
	"encoding/binary"
	"math"
	"slices"

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

// appendIDs appends a packed column. An id's size, which no processor foresees, decides no
// branch: each id writes four bytes, and the next one begins after those that count.
func appendIDs(b []byte, field protowire.Number, ids []uint32) []byte {
	if len(ids) == 0 {
		return b
	}
	b = protowire.AppendTag(b, field, protowire.BytesType)
	// The size before the ids has mostly as many bytes as if each id had two.
	at := len(b)
	width := protowire.SizeVarint(uint64(2 * len(ids)))
	b = append(b, make([]byte, width)...)
	for len(ids) > 0 {
		part := ids[:min(len(ids), 1024)]
		ids = ids[len(part):]
		b = slices.Grow(b, binary.MaxVarintLen32*len(part)+4)
		largest := uint32(0)
		for _, id := range part {
			largest |= id
		}
		if largest >= 1<<21 {
			for _, id := range part {
				b = protowire.AppendVarint(b, uint64(id))
			}
			continue
		}
		b = b[:len(b)+putVarints(b[len(b):cap(b)], part)]
	}
	size := len(b) - at - width
	if need := protowire.SizeVarint(uint64(size)); need != width {
		b = append(b, make([]byte, max(0, need-width))...)
		copy(b[at+need:], b[at+width:at+width+size])
		b = b[:at+need+size]
	}
	protowire.AppendVarint(b[:at], uint64(size))
	return b
}

// putVarints writes ids below 1<<21 and returns their size. There must be room for one more.
func putVarints(b []byte, ids []uint32) (n int) {
	for _, id := range ids {
		second, third := (1<<7-1-id)>>31, (1<<14-1-id)>>31 // 1 if there is such a byte
		binary.LittleEndian.PutUint32(b[n:n+4], id&0x7f|id<<1&0x7f00|id<<2&0x7f0000|second<<7|third<<15)
		n += 1 + int(second+third)
	}
	return n
}
