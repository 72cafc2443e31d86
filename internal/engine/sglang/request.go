package sglang

import (
	"math"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
)

// allIDs is the engine's own bound of top_k, which stands for no bound.
const allIDs = 1 << 30

// appendRequest appends req as the body of a /generate. Every field of req is
// in it; what the caller did not say is left to the engine's defaults, which
// may be the model's own.
func appendRequest(b []byte, req *infer.Request, adapter bool) ([]byte, *infer.Error) {
	if req.MaxTokens < 1 || int64(req.MaxTokens) > math.MaxInt32 {
		return nil, infer.Invalid("max_tokens", "must be between 1 and %d", math.MaxInt32)
	}
	if req.MinTokens < 0 || req.MinTokens > req.MaxTokens {
		return nil, infer.Invalid("min_tokens", "must be between 0 and max_tokens")
	}
	b = append(b, `{"rid":`...)
	b = appendString(b, req.ID)
	if adapter {
		b = append(b, `,"lora_path":`...)
		b = appendString(b, req.Model)
	}
	b = append(b, `,"stream":true,"input_ids":`...)
	b = appendIDs(b, req.Prompt)
	b = append(b, `,"sampling_params":{"max_new_tokens":`...)
	b = strconv.AppendInt(b, int64(req.MaxTokens), 10)
	if req.MinTokens > 0 {
		b = append(b, `,"min_new_tokens":`...)
		b = strconv.AppendInt(b, int64(req.MinTokens), 10)
	}
	if req.IgnoreEOS {
		b = append(b, `,"ignore_eos":true`...)
	}
	if len(req.StopIDs) > 0 {
		b = append(b, `,"stop_token_ids":`...)
		b = appendIDs(b, req.StopIDs)
	}
	s := &req.Sampling
	if s.Temperature != nil {
		b = append(b, `,"temperature":`...)
		b = strconv.AppendFloat(b, *s.Temperature, 'g', -1, 64)
	}
	if s.TopP != nil {
		b = append(b, `,"top_p":`...)
		b = strconv.AppendFloat(b, *s.TopP, 'g', -1, 64)
	}
	if s.TopK != nil {
		k := int64(*s.TopK)
		if k <= 0 || k > allIDs {
			k = -1
		}
		b = append(b, `,"top_k":`...)
		b = strconv.AppendInt(b, k, 10)
	}
	if s.Seed != nil {
		b = append(b, `,"sampling_seed":`...)
		b = strconv.AppendInt(b, *s.Seed, 10)
	}
	return append(b, "}}"...), nil
}

func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s) // what is not UTF-8 becomes U+FFFD
	return b
}

func appendIDs(b []byte, ids []uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}
