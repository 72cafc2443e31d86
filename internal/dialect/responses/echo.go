package responses

import (
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"weir/internal/dialect"
)

// echo is what an answer says of its request. Its parts are raw JSON, nil where
// the request did not have them.
type echo struct {
	instructions, metadata, reasoning, format, verbosity, toolChoice []byte
	maxToolCalls, safetyIdentifier, promptCacheKey                   []byte

	tools  []tool
	strict bool // the engine is made to keep to the tools' schemas
}

// ignored notes the value of a field that is ignored, and that the answer says back. One that is too
// long, or of another type than its own, is not.
func (e *echo) ignored(name string, raw []byte) {
	text := dialect.KindOf(raw) == '"' && len(raw) <= maxMetadataValue
	switch name {
	case "max_tool_calls":
		if _, err := strconv.ParseUint(string(raw), 10, 31); err == nil {
			e.maxToolCalls = raw
		}
	case "safety_identifier":
		if text {
			e.safetyIdentifier = raw
		}
	case "prompt_cache_key":
		if text {
			e.promptCacheKey = raw
		}
	}
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
	dst = appendRaw(dst, "max_tool_calls", e.maxToolCalls, "null")
	dst = appendRaw(dst, "metadata", e.metadata, "{}")
	dst = append(dst, `,"parallel_tool_calls":`...)
	dst = strconv.AppendBool(dst, !r.SingleCall)
	dst = appendNumber(dst, "presence_penalty", r.Sampling.PresencePenalty, 0)
	dst = appendNumber(dst, "frequency_penalty", r.Sampling.FrequencyPenalty, 0)
	dst = append(dst, `,"previous_response_id":null`...)
	dst = appendRaw(dst, "prompt_cache_key", e.promptCacheKey, "null")
	dst = appendObject(append(dst, `,"reasoning":`...), e.reasoning, `"effort":null`, `"summary":null`)
	dst = appendRaw(dst, "safety_identifier", e.safetyIdentifier, "null")
	dst = append(dst, `,"service_tier":"default","store":false`...)
	dst = appendNumber(dst, "temperature", r.Sampling.Temperature, 1)
	dst = append(dst, `,"text":{"format":`...)
	switch {
	case e.format == nil:
		dst = append(dst, `{"type":"text"}`...)
	case dialect.AskType(e.format) == "json_schema":
		dst = appendObject(dst, e.format, `"description":null`, `"strict":true`) // the engine is made to keep to it
	default:
		dst = append(dst, e.format...)
	}
	if e.verbosity != nil {
		dst = appendRaw(dst, "verbosity", e.verbosity, "")
	}
	dst = append(dst, '}')
	dst = appendRaw(dst, "tool_choice", e.toolChoice, `"auto"`)
	dst = append(dst, `,"tools":[`...)
	dst = append(e.appendTools(dst), ']')
	top := 0
	if r.Logprobs != nil {
		top = *r.Logprobs
	}
	dst = append(dst, `,"top_logprobs":`...)
	dst = strconv.AppendInt(dst, int64(top), 10)
	dst = appendNumber(dst, "top_p", r.Sampling.TopP, 1)
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
		as := *t
		if as.description == nil {
			as.description = []byte("null")
		}
		if as.Parameters == nil {
			as.Parameters = []byte("null")
		}
		dst = as.appendMembers(append(dst, `{"type":"function",`...))
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

// appendNumber appends a number of the request, or the API's default.
func appendNumber(dst []byte, name string, v *float64, otherwise float64) []byte {
	if v == nil {
		v = &otherwise
	}
	return strconv.AppendFloat(append(append(append(dst, `,"`...), name...), `":`...), *v, 'g', -1, 64)
}

// appendObject appends an object with all of its members but null ones, and of others those that it
// does not have, each with its value.
func appendObject(dst, raw []byte, others ...string) []byte {
	dst = append(dst, '{')
	first := len(dst)
	has := map[string]bool{}
	if raw != nil {
		_ = dialect.EachMember(raw, func(name string, value []byte) error {
			if dialect.KindOf(value) == 'n' {
				return nil
			}
			has[name] = true
			if len(dst) > first {
				dst = append(dst, ',')
			}
			dst = append(append(dialect.AppendString(dst, name), ':'), value...)
			return nil
		})
	}
	for _, other := range others {
		if name, _, _ := strings.Cut(other[1:], `"`); has[name] {
			continue
		}
		if len(dst) > first {
			dst = append(dst, ',')
		}
		dst = append(dst, other...)
	}
	return append(dst, '}')
}
