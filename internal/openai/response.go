package openai

import (
	"strconv"

	"weir/internal/infer"
)

// Answer is a whole answer. Only a chat's has more than text.
type Answer struct {
	Text, Reasoning []byte
	Calls           []ToolCall
	TokenIDs        []uint32 // said where StreamOptions has TokenIDs
}

// ToolCall is a call of a tool. Arguments are JSON, unless the model's were not.
type ToolCall struct {
	ID, Name  string
	Arguments []byte
}

// AppendResponse appends a whole answer with one choice. The reason is stop,
// length or tool_calls.
func AppendResponse(dst []byte, o StreamOptions, a *Answer, reason infer.Reason, u infer.Usage) []byte {
	if o.Endpoint == Completions {
		dst = appendObjectHead(dst, o, "text_completion")
		dst = append(dst, `,"choices":[{"index":0,"text":"`...)
		dst = appendEscaped(dst, a.Text)
		dst = append(dst, '"')
	} else {
		dst = appendObjectHead(dst, o, "chat.completion")
		dst = append(dst, `,"choices":[{"index":0,"message":`...)
		dst = appendMessage(dst, a)
	}
	dst = append(dst, `,"logprobs":null,"finish_reason":"`...)
	dst = append(dst, reason...)
	dst = append(dst, '"')
	if o.TokenIDs {
		dst = appendIDs(append(dst, `,"token_ids":`...), a.TokenIDs)
		if o.Endpoint == Completions {
			dst = appendIDs(append(dst, `,"prompt_token_ids":`...), o.PromptIDs)
		}
	}
	dst = append(dst, `}],`...)
	if o.TokenIDs && o.Endpoint != Completions {
		dst = append(appendIDs(append(dst, `"prompt_token_ids":`...), o.PromptIDs), ',')
	}
	dst = appendUsage(dst, u)
	return append(dst, '}')
}

// appendMessage appends the assistant's message. One that is nothing but calls
// has null for content, as the API has it.
func appendMessage(dst []byte, a *Answer) []byte {
	dst = append(dst, `{"role":"assistant","content":`...)
	if len(a.Text) == 0 && len(a.Calls) > 0 {
		dst = append(dst, "null"...)
	} else {
		dst = append(appendEscaped(append(dst, '"'), a.Text), '"')
	}
	if len(a.Reasoning) > 0 {
		dst = append(appendEscaped(append(dst, `,"reasoning_content":"`...), a.Reasoning), '"')
	}
	for i, call := range a.Calls {
		if i == 0 {
			dst = append(dst, `,"tool_calls":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = append(appendString(append(dst, `{"id":`...), call.ID), `,"type":"function","function":{"name":`...)
		dst = append(appendString(dst, call.Name), `,"arguments":"`...)
		dst = append(appendEscaped(dst, call.Arguments), `"}}`...)
	}
	if len(a.Calls) > 0 {
		dst = append(dst, ']')
	}
	return append(dst, `,"refusal":null}`...)
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
