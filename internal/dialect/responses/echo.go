package responses

import (
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/dialect"
)

// echo is what an answer says of its request. Its parts are raw JSON, nil where
// the request did not have them.
type echo struct {
	instructions, metadata, reasoning, text, toolChoice []byte

	tools  []tool
	strict bool // the engine is made to keep to the tools' schemas
}

// members returns the members of the answer's object that its request decides, a
// comma before each. They hold no white space, since an event is one line.
func (e *echo) members(r *dialect.Request) []byte {
	dst := []byte(`{"background":false`)
	dst = appendRaw(dst, "instructions", e.instructions, "null")
	dst = append(dst, `,"max_output_tokens":`...)
	if r.MaxTokens > 0 {
		dst = strconv.AppendInt(dst, int64(r.MaxTokens), 10)
	} else {
		dst = append(dst, "null"...)
	}
	dst = appendRaw(dst, "metadata", e.metadata, "{}")
	dst = append(dst, `,"parallel_tool_calls":`...)
	dst = strconv.AppendBool(dst, !r.SingleCall)
	dst = append(dst, `,"previous_response_id":null`...)
	dst = appendRaw(dst, "reasoning", e.reasoning, `{"effort":null,"summary":null}`)
	dst = append(dst, `,"store":false`...)
	dst = appendNumber(dst, "temperature", r.Sampling.Temperature)
	dst = appendRaw(dst, "text", e.text, `{"format":{"type":"text"}}`)
	dst = appendRaw(dst, "tool_choice", e.toolChoice, `"auto"`)
	dst = append(dst, `,"tools":[`...)
	dst = append(e.appendTools(dst), ']')
	top := 0
	if r.Logprobs != nil {
		top = *r.Logprobs
	}
	dst = append(dst, `,"top_logprobs":`...)
	dst = strconv.AppendInt(dst, int64(top), 10)
	dst = appendNumber(dst, "top_p", r.Sampling.TopP)
	object := jsontext.Value(append(dst, `,"truncation":"disabled"}`...))
	if err := object.Compact(); err != nil {
		panic("responses: the echo of a checked request is no JSON: " + err.Error())
	}
	object[0] = ','
	return slices.Clip(object[:len(object)-1])
}

// appendTools appends the tools as they came, those of a namespace in it.
func (e *echo) appendTools(dst []byte) []byte {
	var space *namespace
	for i := range e.tools {
		t := &e.tools[i]
		if t.space != space && space != nil {
			dst = append(dst, `]}`...)
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		if t.space != space && t.space != nil {
			dst = appendRaw(append(dst, `{"type":"namespace"`...), "name", t.space.rawName, "")
			dst = appendRaw(dst, "description", t.space.description, `""`)
			dst = append(dst, `,"tools":[`...)
		}
		space = t.space
		if t.custom {
			as := *t
			as.Parameters = nil
			dst = as.appendMembers(append(dst, `{"type":"custom",`...))
			dst = append(appendRaw(dst, "format", t.format, `{"type":"text"}`), '}')
			continue
		}
		dst = t.appendMembers(append(dst, `{"type":"function",`...))
		dst = append(dst, `,"strict":`...)
		dst = append(strconv.AppendBool(dst, e.strict), '}')
	}
	if space != nil {
		dst = append(dst, `]}`...)
	}
	return dst
}

func appendRaw(dst []byte, name string, raw []byte, otherwise string) []byte {
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	if raw == nil {
		return append(dst, otherwise...)
	}
	return append(dst, raw...)
}

func appendNumber(dst []byte, name string, v *float64) []byte {
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	if v == nil {
		return append(dst, "null"...)
	}
	return strconv.AppendFloat(dst, *v, 'g', -1, 64)
}
