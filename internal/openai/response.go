package openai

import (
	"strconv"

	"weir/internal/infer"
)

// AppendResponse appends a whole answer with one choice. The reason is stop or
// length.
func AppendResponse(dst []byte, o StreamOptions, text []byte, reason infer.Reason, u infer.Usage) []byte {
	if o.Endpoint == Completions {
		dst = appendObjectHead(dst, o, "text_completion")
		dst = append(dst, `,"choices":[{"index":0,"text":"`...)
		dst = appendEscaped(dst, text)
		dst = append(dst, '"')
	} else {
		dst = appendObjectHead(dst, o, "chat.completion")
		dst = append(dst, `,"choices":[{"index":0,"message":{"role":"assistant","content":"`...)
		dst = appendEscaped(dst, text)
		dst = append(dst, `","refusal":null}`...)
	}
	dst = append(dst, `,"logprobs":null,"finish_reason":"`...)
	dst = append(dst, reason...)
	dst = append(dst, `"}],`...)
	dst = appendUsage(dst, u)
	return append(dst, '}')
}

// ModelInfo is a model as the API lists it.
type ModelInfo struct {
	ID string
	// Created is in seconds since 1970.
	Created int64
	OwnedBy string
	// MaxModelLen is the context length in tokens, left out when 0. The
	// field is not in OpenAI's own list but in those of the engines.
	MaxModelLen int
}

// AppendModel appends one model.
func AppendModel(dst []byte, m ModelInfo) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, m.ID)
	dst = append(dst, `,"object":"model","created":`...)
	dst = strconv.AppendInt(dst, m.Created, 10)
	dst = append(dst, `,"owned_by":`...)
	dst = appendString(dst, m.OwnedBy)
	if m.MaxModelLen > 0 {
		dst = append(dst, `,"max_model_len":`...)
		dst = strconv.AppendInt(dst, int64(m.MaxModelLen), 10)
	}
	return append(dst, '}')
}

// AppendModels appends the list of models.
func AppendModels(dst []byte, models []ModelInfo) []byte {
	dst = append(dst, `{"object":"list","data":[`...)
	for i, m := range models {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendModel(dst, m)
	}
	return append(dst, `]}`...)
}
