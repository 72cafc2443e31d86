package idstream

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/infer"
	"weir/internal/jsonlex"
)

// allIDs is the bound of top_k from which on it is none.
const allIDs = 1 << 30

// AppendSampling appends the sampling parameters that engines name alike, as members that
// follow others: all but the seed. What the caller did not say is left to the engine.
func AppendSampling(b []byte, s *infer.Sampling) []byte {
	b = appendFloat(b, `,"temperature":`, s.Temperature)
	b = appendFloat(b, `,"top_p":`, s.TopP)
	if s.TopK != nil {
		k := int64(*s.TopK)
		if k <= 0 || k > allIDs {
			k = -1
		}
		b = append(b, `,"top_k":`...)
		b = strconv.AppendInt(b, k, 10)
	}
	b = appendFloat(b, `,"min_p":`, s.MinP)
	b = appendFloat(b, `,"presence_penalty":`, s.PresencePenalty)
	b = appendFloat(b, `,"frequency_penalty":`, s.FrequencyPenalty)
	b = appendFloat(b, `,"repetition_penalty":`, s.RepetitionPenalty)
	if len(s.LogitBias) > 0 {
		b = append(b, `,"logit_bias":`...)
		for i, bias := range s.LogitBias {
			b = append(b, "{,"[min(i, 1)], '"')
			b = strconv.AppendUint(b, uint64(bias.ID), 10)
			b = append(b, `":`...)
			b = strconv.AppendFloat(b, bias.Value, 'g', -1, 64)
		}
		b = append(b, '}')
	}
	return b
}

func appendFloat(b []byte, name string, v *float64) []byte {
	if v == nil {
		return b
	}
	return strconv.AppendFloat(append(b, name...), *v, 'g', -1, 64)
}

// AppendString appends a JSON string. What is not UTF-8 becomes U+FFFD.
func AppendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// AppendIDs appends ids as an array.
func AppendIDs(b []byte, ids []uint32) []byte {
	return append(jsonlex.AppendIDs(append(b, '['), ids), ']')
}

// AppendMediaURL appends the address of a part of a conversation, or its data as a data URL.
func AppendMediaURL(b []byte, m *infer.Media) []byte {
	if m.Data == nil {
		return AppendString(b, m.URL)
	}
	b = append(append(append(b, `"data:`...), m.Type...), ";base64,"...)
	return append(append(b, m.Data...), '"')
}
