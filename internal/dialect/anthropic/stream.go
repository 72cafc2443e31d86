package anthropic

import (
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
)

// unsigned is the signature of thinking blocks. Clients send blocks back only if
// there is one, and take it for opaque.
const unsigned = "unsigned"

// kind is what a content block is.
type kind uint8

const (
	none kind = iota
	text
	thinking
	toolUse
)

// deltas are the beginnings of the blocks' deltas, behind their index.
var deltas = [...]string{
	text:     `,"delta":{"type":"text_delta","text":"`,
	thinking: `,"delta":{"type":"thinking_delta","thinking":"`,
	toolUse:  `,"delta":{"type":"input_json_delta","partial_json":"`,
}

// kindOf returns the block that a part of the output goes to.
func kindOf(d dialect.Delta) kind {
	switch d {
	case dialect.DeltaReasoning:
		return thinking
	case dialect.DeltaArguments:
		return toolUse
	}
	return text
}

// newEncoder returns the maker of a request's encoders; omit leaves the text of
// thinking blocks out.
func newEncoder(streamed, omit bool) func(dialect.AnswerOptions) dialect.Encoder {
	return func(o dialect.AnswerOptions) dialect.Encoder {
		if streamed {
			return &stream{AnswerOptions: o, omit: omit}
		}
		return &whole{AnswerOptions: o, omit: omit}
	}
}

// stream appends the events of a streamed answer.
type stream struct {
	dialect.AnswerOptions
	omit   bool
	open   kind   // of the block that is open
	muted  bool   // the delta that is open is not shown
	blocks int    // begun so far
	head   []byte // of the open block's deltas, up to their text
	finish dialect.Finish
}

// AppendStart implements dialect.Encoder.
func (s *stream) AppendStart(dst []byte, _ int) []byte {
	dst = append(dst, "event: message_start\ndata: {\"type\":\"message_start\",\"message\":"...)
	dst = appendMessageHead(dst, &s.AnswerOptions)
	dst = append(dst, `],"stop_reason":null,"stop_sequence":null,"usage":`...)
	dst = appendUsage(dst, infer.Usage{PromptTokens: s.Prompted()})
	s.PromptIDs = nil // which may be long; they are not needed again
	return append(dst, "}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n"...)
}

// appendMessageHead opens the message, up to its first content block.
func appendMessageHead(dst []byte, o *dialect.AnswerOptions) []byte {
	dst = append(dst, `{"id":"msg_`...)
	dst = dialect.AppendEscaped(dst, []byte(o.ID))
	dst = append(dst, `","type":"message","role":"assistant","model":`...)
	dst = dialect.AppendString(dst, o.Model)
	return append(dst, `,"content":[`...)
}

// appendUsage appends the usage. The API counts tokens that were found in the
// cache apart from the rest of the prompt; where the engine does not say, none
// were. No engine charges for what it puts there.
func appendUsage(dst []byte, u infer.Usage) []byte {
	cached := max(u.CachedTokens, 0)
	dst = strconv.AppendInt(append(dst, `{"input_tokens":`...), int64(u.PromptTokens-cached), 10)
	dst = append(dst, `,"cache_creation_input_tokens":0,"cache_read_input_tokens":`...)
	dst = strconv.AppendInt(dst, int64(cached), 10)
	dst = strconv.AppendInt(append(dst, `,"output_tokens":`...), int64(u.CompletionTokens), 10)
	return append(dst, `,"service_tier":"standard"}`...)
}

// block makes a block of a kind the open one.
func (s *stream) block(dst []byte, k kind) []byte {
	if s.open == k {
		return dst
	}
	dst = s.close(dst)
	dst = s.appendStartOf(dst)
	if k == text {
		dst = append(dst, `{"type":"text","text":""}`...)
	} else {
		dst = append(dst, `{"type":"thinking","thinking":"","signature":""}`...)
	}
	dst = append(dst, "}\n\n"...)
	s.opened(k)
	return dst
}

// appendStartOf begins the event that begins the next block.
func (s *stream) appendStartOf(dst []byte) []byte {
	dst = append(dst, "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":"...)
	dst = strconv.AppendInt(dst, int64(s.blocks), 10)
	return append(dst, `,"content_block":`...)
}

func (s *stream) opened(k kind) {
	s.open = k
	s.head = append(s.head[:0], "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
	s.head = strconv.AppendInt(s.head, int64(s.blocks), 10)
	s.head = append(s.head, deltas[k]...)
	s.blocks++
}

const deltaEnd = "\"}}\n\n"

// close ends the open block, if there is one.
func (s *stream) close(dst []byte) []byte {
	if s.open == none {
		return dst
	}
	index := int64(s.blocks - 1)
	if s.open == thinking {
		dst = append(dst, "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":"...)
		dst = strconv.AppendInt(dst, index, 10)
		dst = append(dst, `,"delta":{"type":"signature_delta","signature":"`+unsigned+deltaEnd...)
	}
	s.open = none
	dst = append(dst, "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":"...)
	dst = strconv.AppendInt(dst, index, 10)
	return append(dst, "}\n\n"...)
}

// AppendText implements dialect.Encoder.
func (s *stream) AppendText(dst []byte, _ int, content []byte) []byte {
	dst = s.block(dst, text)
	dst = append(dst, s.head...)
	dst = dialect.AppendEscaped(dst, content)
	return append(dst, deltaEnd...)
}

// AppendTokens implements dialect.Encoder. The API has no place for ids.
func (s *stream) AppendTokens(dst []byte, choice int, content []byte, _ dialect.Tokens) []byte {
	if len(content) == 0 {
		return dst
	}
	return s.AppendText(dst, choice, content)
}

// AppendCall implements dialect.Encoder.
func (s *stream) AppendCall(dst []byte, _, _ int, id, name string) []byte {
	dst = s.close(dst)
	dst = s.appendStartOf(dst)
	dst = dialect.AppendString(append(dst, `{"type":"tool_use","id":`...), id)
	dst = dialect.AppendString(append(dst, `,"name":`...), name)
	dst = append(dst, ",\"input\":{}}}\n\n"...)
	s.opened(toolUse)
	return dst
}

// EndCall implements dialect.Encoder. The stop_reason says whether the call is complete.
func (s *stream) EndCall(dst []byte, _ int, _ bool) []byte { return dst }

// OpenDelta implements dialect.Encoder.
func (s *stream) OpenDelta(dst []byte, _ int, d dialect.Delta, _ int) []byte {
	dst = s.block(dst, kindOf(d))
	if s.muted = s.omit && d == dialect.DeltaReasoning; s.muted {
		return dst
	}
	return append(dst, s.head...)
}

// AppendDelta implements dialect.Encoder.
func (s *stream) AppendDelta(dst, part []byte) []byte {
	if s.muted {
		return dst
	}
	return dialect.AppendEscaped(dst, part)
}

// CloseDelta implements dialect.Encoder.
func (s *stream) CloseDelta(dst []byte) []byte {
	if s.muted {
		return dst
	}
	return append(dst, deltaEnd...)
}

// AppendFinish implements dialect.Encoder.
func (s *stream) AppendFinish(dst []byte, _ int, f dialect.Finish) []byte {
	s.finish = f
	return s.close(dst)
}

// AppendEnd implements dialect.Encoder.
func (s *stream) AppendEnd(dst []byte, u infer.Usage) []byte {
	dst = append(dst, "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{"...)
	dst = appendStop(dst, &s.finish)
	dst = appendUsage(append(dst, `},"usage":`...), u)
	return append(dst, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"...)
}

// AppendError implements dialect.Encoder.
func (s *stream) AppendError(dst []byte, e *infer.Error) []byte {
	return Messages.AppendErrorEvent(dst, e)
}

// appendStop appends why the answer ended. A stop sequence inside a call cuts
// it, and is the reason then too.
func appendStop(dst []byte, f *dialect.Finish) []byte {
	reason := "end_turn"
	switch {
	case f.Stop != "":
		reason = "stop_sequence"
	case f.Reason == infer.ReasonToolCalls:
		reason = "tool_use"
	case f.Reason == infer.ReasonLength:
		reason = "max_tokens"
	}
	dst = append(append(append(dst, `"stop_reason":"`...), reason...), `","stop_sequence":`...)
	if f.Stop == "" {
		return append(dst, "null"...)
	}
	return dialect.AppendString(dst, f.Stop)
}
