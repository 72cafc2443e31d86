package openai

import (
	"strconv"

	"weir/internal/infer"
)

// StreamOptions describe an answer, streamed or whole.
type StreamOptions struct {
	Endpoint Endpoint
	// ID is the request's id; the endpoint's prefix is put before it.
	ID string
	// Created is in seconds since 1970.
	Created int64
	// Model is the name the caller used.
	Model string
	// IncludeUsage says that a chunk with the usage comes last, which the
	// chunks before it announce with a null. It has no effect on a whole answer.
	IncludeUsage bool
	// TokenIDs says that the ids of prompt and output come with the text, as
	// vLLM has them; PromptIDs are the prompt's.
	TokenIDs  bool
	PromptIDs []uint32
}

// Stream appends the events of one streamed answer. All that does not change
// from chunk to chunk is put together once; appending a chunk copies it and
// allocates nothing.
type Stream struct {
	chat bool
	head []byte // from "data: " to the index of the choice
	text []byte // head, choice 0, and on to the text of a chunk
	tail []byte // from a chunk's text to its end
	end  string // from a chunk's finish_reason to its end

	prompt []uint32 // ids that are still to be said, with the first chunk
}

// The parts of a chunk between its choice's index and its text, and from there
// to its finish_reason.
const (
	chatOpen        = `,"delta":{"content":"`
	chatClose       = `"},"logprobs":null,"finish_reason":`
	completionOpen  = `,"text":"`
	completionClose = `","logprobs":null,"finish_reason":`
)

// NewStream prepares a stream's events.
func NewStream(o StreamOptions) *Stream {
	s := &Stream{chat: o.Endpoint != Completions, end: "}]}\n\n"}
	if o.IncludeUsage {
		s.end = "}],\"usage\":null}\n\n"
	}
	object, open, shut := "chat.completion.chunk", chatOpen, chatClose
	if !s.chat {
		object, open, shut = "text_completion", completionOpen, completionClose
	}
	b := append(make([]byte, 0, 256), "data: "...)
	b = appendObjectHead(b, o, object)
	b = append(b, `,"choices":[`...)
	s.head = append(b, `{"index":`...)
	s.text = append(append(append(s.text, s.head...), '0'), open...)
	s.tail = append(append(append(s.tail, shut...), "null"...), s.end...)
	if o.TokenIDs {
		s.prompt = o.PromptIDs
	}
	return s
}

// appendObjectHead opens an answer's object, up to its model.
func appendObjectHead(dst []byte, o StreamOptions, object string) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendString(dst, o.Endpoint.ObjectID(o.ID))
	dst = append(dst, `,"object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, o.Created, 10)
	dst = append(dst, `,"model":`...)
	return appendString(dst, o.Model)
}

// AppendStart appends what comes before a choice's text: in a chat, the chunk
// that names the role.
func (s *Stream) AppendStart(dst []byte, choice int) []byte {
	if !s.chat {
		return dst
	}
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	dst = append(dst, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null`...)
	if s.prompt != nil {
		dst = append(dst, `}],"prompt_token_ids":`...)
		dst = appendIDs(dst, s.prompt)
		s.prompt = nil
		return append(dst, s.end[len("}]"):]...)
	}
	return append(dst, s.end...)
}

// AppendTextIDs is AppendText with the ids that came with the text, which may be
// held back: either may be empty.
func (s *Stream) AppendTextIDs(dst []byte, choice int, text []byte, ids []uint32) []byte {
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	if s.chat {
		dst = append(dst, chatOpen...)
		dst = append(appendEscaped(dst, text), chatClose...)
	} else {
		dst = append(dst, completionOpen...)
		dst = append(appendEscaped(dst, text), completionClose...)
	}
	return s.closeIDs(dst, ids)
}

// AppendIDs appends a chunk of a chat with ids alone, whose text is in others.
func (s *Stream) AppendIDs(dst []byte, choice int, ids []uint32) []byte {
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	dst = append(dst, `,"delta":{},"logprobs":null,"finish_reason":`...)
	return s.closeIDs(dst, ids)
}

func (s *Stream) closeIDs(dst []byte, ids []uint32) []byte {
	dst = appendIDs(append(dst, `null,"token_ids":`...), ids)
	if s.prompt != nil { // of a completion, whose choices have it
		dst = appendIDs(append(dst, `,"prompt_token_ids":`...), s.prompt)
		s.prompt = nil
	}
	return append(dst, s.end...)
}

func appendIDs(dst []byte, ids []uint32) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}

// AppendText appends a chunk with the next part of a choice's text, which is
// whole UTF-8.
func (s *Stream) AppendText(dst []byte, choice int, text []byte) []byte {
	if choice == 0 {
		dst = append(dst, s.text...)
	} else {
		dst = append(dst, s.head...)
		dst = strconv.AppendInt(dst, int64(choice), 10)
		if s.chat {
			dst = append(dst, chatOpen...)
		} else {
			dst = append(dst, completionOpen...)
		}
	}
	dst = appendEscaped(dst, text)
	return append(dst, s.tail...)
}

// Delta says what a chunk's text is.
type Delta uint8

// The deltas.
const (
	DeltaContent   Delta = iota
	DeltaReasoning       // reasoning_content
	DeltaArguments       // of a tool call
)

// OpenDelta begins a chunk of a chat with the next part of a choice's content, of
// its reasoning, or of the arguments of its tool call of that index. Any number of
// AppendDelta follow, and CloseDelta.
func (s *Stream) OpenDelta(dst []byte, choice int, d Delta, call int) []byte {
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	switch d {
	case DeltaReasoning:
		return append(dst, `,"delta":{"reasoning_content":"`...)
	case DeltaArguments:
		dst = append(dst, `,"delta":{"tool_calls":[{"index":`...)
		dst = strconv.AppendInt(dst, int64(call), 10)
		return append(dst, `,"function":{"arguments":"`...)
	}
	return append(dst, chatOpen...)
}

// AppendDelta appends to the text of the chunk that is open.
func (s *Stream) AppendDelta(dst, text []byte) []byte { return appendEscaped(dst, text) }

// CloseDelta ends the chunk.
func (s *Stream) CloseDelta(dst []byte, d Delta) []byte {
	if d == DeltaArguments {
		dst = append(dst, `"}}]},"logprobs":null,"finish_reason":null`...)
		return append(dst, s.end...)
	}
	return append(dst, s.tail...)
}

// AppendCall appends the chunk that begins a tool call.
func (s *Stream) AppendCall(dst []byte, choice, call int, id, name string) []byte {
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	dst = append(dst, `,"delta":{"tool_calls":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(call), 10)
	dst = appendString(append(dst, `,"id":`...), id)
	dst = appendString(append(dst, `,"type":"function","function":{"name":`...), name)
	dst = append(dst, `,"arguments":""}}]},"logprobs":null,"finish_reason":null`...)
	return append(dst, s.end...)
}

// AppendFinish appends the chunk that ends a choice. The reason is stop, length
// or tool_calls: a choice that ended any other way has no such chunk but an error
// event (AppendErrorEvent).
func (s *Stream) AppendFinish(dst []byte, choice int, reason infer.Reason) []byte {
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	if s.chat {
		dst = append(dst, `,"delta":{},"logprobs":null,"finish_reason":"`...)
	} else {
		dst = append(dst, `,"text":"","logprobs":null,"finish_reason":"`...)
	}
	dst = append(dst, reason...)
	dst = append(dst, '"')
	return append(dst, s.end...)
}

// AppendUsage appends the chunk with the usage, which has no choices.
func (s *Stream) AppendUsage(dst []byte, u infer.Usage) []byte {
	dst = append(dst, s.head[:len(s.head)-len(`{"index":`)]...)
	dst = append(dst, `],`...)
	dst = appendUsage(dst, u)
	return append(dst, "}\n\n"...)
}

// AppendDone appends the marker that ends a stream that is complete.
func (s *Stream) AppendDone(dst []byte) []byte {
	return append(dst, "data: [DONE]\n\n"...)
}

// appendUsage appends the usage member. A negative count of cached tokens is
// not known and left out.
func appendUsage(dst []byte, u infer.Usage) []byte {
	dst = append(dst, `"usage":{"prompt_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.PromptTokens), 10)
	dst = append(dst, `,"completion_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.CompletionTokens), 10)
	dst = append(dst, `,"total_tokens":`...)
	dst = strconv.AppendInt(dst, int64(u.PromptTokens)+int64(u.CompletionTokens), 10)
	if u.CachedTokens >= 0 {
		dst = append(dst, `,"prompt_tokens_details":{"cached_tokens":`...)
		dst = strconv.AppendInt(dst, int64(u.CachedTokens), 10)
		dst = append(dst, '}')
	}
	return append(dst, '}')
}
