package openai

import (
	"bytes"
	"strconv"

	"weir/internal/dialect"
	"weir/internal/infer"
	"weir/internal/jsonlex"
)

// streamOptions are what a request says of its answer.
type streamOptions struct {
	endpoint Endpoint
	// includeUsage states that a chunk with the usage comes last, which the chunks
	// before it announce with a null. It has no effect on a whole answer.
	includeUsage bool
	// countAlong states that each chunk has the usage so far in place of that null, as vLLM
	// has it: of the chunk's choice alone, without what is known at the end only.
	countAlong bool
	// tokenIDs states that the ids of prompt and output come with the text, as vLLM
	// has them.
	tokenIDs bool
	// logprobs states that log probabilities come with the text, and with how many
	// alternatives to each token; nil: none do.
	logprobs *int
	dialect.AnswerOptions
}

// scorer returns what writes log probabilities, nil when there are none.
func (o *streamOptions) scorer() *Scorer {
	if o.logprobs == nil {
		return nil
	}
	return &Scorer{Top: *o.logprobs, Vocabulary: o.Vocabulary}
}

// prompt returns the ids of a choice's prompt.
func (o *streamOptions) prompt(choice int) []uint32 {
	if o.PromptOf == nil {
		return o.PromptIDs
	}
	return o.PromptOf(choice)
}

// promptTokens returns the length of a choice's prompt.
func (o *streamOptions) promptTokens(choice int) int {
	if o.PromptOf == nil || o.endpoint == Chat {
		return o.Prompted()
	}
	return len(o.PromptOf(choice))
}

// reasoning returns the members that tell reasoning.
func (o *streamOptions) reasoning() []string {
	if len(o.Reasoning) == 0 {
		return usualReasoning
	}
	return o.Reasoning
}

var usualReasoning = []string{"reasoning_content"}

// newEncoder returns the maker of a request's encoders.
func newEncoder(o streamOptions, streamed bool) func(dialect.AnswerOptions) dialect.Encoder {
	return func(a dialect.AnswerOptions) dialect.Encoder {
		o := o
		o.AnswerOptions = a
		if streamed {
			return newStream(o)
		}
		return &whole{streamOptions: o, scorer: o.scorer()}
	}
}

// stream appends the events of one streamed answer. All that does not change
// from chunk to chunk is put together once; appending a chunk copies it and
// allocates nothing.
type stream struct {
	// These are one allocation, of which text is the longest and begins with head. A
	// chunk of text needs only the first two, which lie in one cache line.
	text []byte // head, choice 0, and on to the text of a chunk
	tail []byte // from a chunk's text to its end
	head []byte // from "data: " to the index of the choice
	end  string // from a chunk's finish_reason to its end

	chat, includeUsage, tokenIDs bool

	open      dialect.Delta // of the chunk that is open
	at        uint32        // and where its text begins
	reasoning []string

	count *soFar // nil: chunks do not have the usage so far

	prompt func(choice int) []uint32 // with tokenIDs
	told   []bool                    // of choices, whether their prompt's ids were said; a chat has one prompt

	scorer  *Scorer    // nil: without log probabilities
	columns []*columns // of a completion's choices
}

// soFar is what the usage so far is made of.
type soFar struct {
	prompt    func(choice int) int
	generated func(choice int) int
	choice    int // of the chunk that is open
}

// The parts of a chunk between its choice's index and its text, and from there
// to its finish_reason.
const (
	chatOpen        = `,"delta":{"content":"`
	chatClose       = `"},"logprobs":null,"finish_reason":`
	completionOpen  = `,"text":"`
	completionClose = `","logprobs":null,"finish_reason":`
)

// newStream prepares a stream's events.
func newStream(o streamOptions) *stream {
	s := &stream{chat: o.endpoint != Completions, includeUsage: o.includeUsage, end: "}]}\n\n"}
	if o.includeUsage {
		s.end = "}],\"usage\":null}\n\n"
	}
	if o.countAlong {
		s.end = "}],"
		kept := o
		s.count = &soFar{prompt: kept.promptTokens, generated: kept.Generated}
	}
	object, open, shut := "chat.completion.chunk", chatOpen, chatClose
	if !s.chat {
		object, open, shut = "text_completion", completionOpen, completionClose
	}
	var room [512]byte
	b := append(room[:0], "data: "...)
	b = appendObjectHead(b, &o, object)
	b = append(b, `,"choices":[{"index":`...)
	head := len(b)
	b = append(append(b, '0'), open...)
	text := len(b)
	b = append(append(append(b, shut...), "null"...), s.end...)
	b = bytes.Clone(b) // a stream keeps it to its end, and no more than it needs
	s.head, s.text, s.tail = b[:head:head], b[:text:text], b[text:]
	s.scorer, s.reasoning = o.scorer(), o.reasoning()
	if o.tokenIDs {
		kept := o
		s.tokenIDs, s.prompt = true, kept.prompt
	}
	return s
}

// untold returns the ids of a choice's prompt the first time; nil when they were
// told, or are not to be.
func (s *stream) untold(choice int) []uint32 {
	if s.chat {
		choice = 0
	}
	if !s.tokenIDs || choice < len(s.told) && s.told[choice] {
		return nil
	}
	for len(s.told) <= choice {
		s.told = append(s.told, false)
	}
	s.told[choice] = true
	return s.prompt(choice)
}

// counted ends a chunk that has the usage so far, which has tokens of a choice.
func (s *stream) counted(dst []byte, choice, tokens int) []byte {
	dst = appendUsage(dst, infer.Usage{PromptTokens: s.count.prompt(choice), CompletionTokens: tokens, CachedTokens: -1})
	return append(dst, "}\n\n"...)
}

// closed ends a chunk, of which end is left.
func closed[T string | []byte](s *stream, dst []byte, choice int, end T) []byte {
	if dst = append(dst, end...); s.count != nil {
		return s.counted(dst, choice, s.count.generated(choice))
	}
	return dst
}

// closedOpen is closed for the chunk that is open.
func closedOpen[T string | []byte](s *stream, dst []byte, end T) []byte {
	choice := 0
	if s.count != nil {
		choice = s.count.choice
	}
	return closed(s, dst, choice, end)
}

// appendObjectHead opens an answer's object, up to its model.
func appendObjectHead(dst []byte, o *streamOptions, object string) []byte {
	dst = append(dst, `{"id":`...)
	dst = dialect.AppendString(dst, o.endpoint.ObjectID(o.ID))
	dst = append(dst, `,"object":"`...)
	dst = append(dst, object...)
	dst = append(dst, `","created":`...)
	dst = strconv.AppendInt(dst, o.Created, 10)
	dst = append(dst, `,"model":`...)
	return dialect.AppendString(dst, o.Model)
}

// AppendStart implements dialect.Encoder: in a chat, the chunk that names the role.
func (s *stream) AppendStart(dst []byte, choice int) []byte {
	if !s.chat {
		return dst
	}
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	dst = append(dst, `,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null`...)
	if ids := s.untold(choice); ids != nil {
		dst = append(dst, `}],"prompt_token_ids":`...)
		dst = appendIDs(dst, ids)
		dst = append(dst, s.end[len("}]"):]...)
	} else {
		dst = append(dst, s.end...)
	}
	if s.count != nil {
		return s.counted(dst, choice, 0)
	}
	return dst
}

// AppendTokens implements dialect.Encoder: a chunk with text, ids and log
// probabilities.
func (s *stream) AppendTokens(dst []byte, choice int, text []byte, t dialect.Tokens) []byte {
	if len(text) == 0 && len(t.IDs) == 0 {
		return dst
	}
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	switch {
	case !s.chat:
		dst = append(dialect.AppendEscaped(append(dst, completionOpen...), text), '"')
	case len(text) == 0:
		dst = append(dst, `,"delta":{}`...)
	default:
		dst = append(dialect.AppendEscaped(append(dst, chatOpen...), text), `"}`...)
	}
	dst = s.appendScores(append(dst, `,"logprobs":`...), choice, t)
	dst = append(dst, `,"finish_reason":null`...)
	if s.tokenIDs {
		dst = appendIDs(append(dst, `,"token_ids":`...), t.IDs)
		if ids := s.untold(choice); ids != nil { // of a completion, whose choices have it
			dst = appendIDs(append(dst, `,"prompt_token_ids":`...), ids)
		}
	}
	return closed(s, dst, choice, s.end)
}

// appendScores appends the log probabilities of a chunk's tokens, or null.
func (s *stream) appendScores(dst []byte, choice int, t dialect.Tokens) []byte {
	switch {
	case s.scorer == nil || len(t.IDs) == 0:
		return append(dst, "null"...)
	case s.chat:
		dst = s.scorer.AppendEntries(append(dst, chatScores...), t.IDs, &t.Logprobs)
		return append(dst, chatScoresEnd...)
	}
	for len(s.columns) <= choice {
		s.columns = append(s.columns, new(columns))
	}
	c := s.columns[choice]
	c.reset()
	c.add(s.scorer, t.IDs, &t.Logprobs)
	return c.append(dst)
}

func appendIDs(dst []byte, ids []uint32) []byte {
	return append(jsonlex.AppendIDs(append(dst, '['), ids), ']')
}

// AppendText implements dialect.Encoder.
func (s *stream) AppendText(dst []byte, choice int, text []byte) []byte {
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
	return closed(s, dialect.AppendEscaped(dst, text), choice, s.tail)
}

// EndCall implements dialect.Encoder. The finish_reason says whether the call is complete.
func (s *stream) EndCall(dst []byte, _ int, _ bool) []byte { return dst }

// OpenDelta implements dialect.Encoder: a chunk of a chat.
func (s *stream) OpenDelta(dst []byte, choice int, d dialect.Delta, call int) []byte {
	s.open = d
	if s.count != nil {
		s.count.choice = choice
	}
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	switch d {
	case dialect.DeltaReasoning:
		dst = append(append(append(dst, `,"delta":{"`...), s.reasoning[0]...), `":"`...)
		s.at = uint32(len(dst))
		return dst
	case dialect.DeltaArguments:
		dst = append(dst, `,"delta":{"tool_calls":[{"index":`...)
		dst = strconv.AppendInt(dst, int64(call), 10)
		return append(dst, `,"function":{"arguments":"`...)
	}
	return append(dst, chatOpen...)
}

// AppendDelta implements dialect.Encoder.
func (s *stream) AppendDelta(dst, text []byte) []byte { return dialect.AppendEscaped(dst, text) }

// CloseDelta implements dialect.Encoder.
func (s *stream) CloseDelta(dst []byte) []byte {
	switch s.open {
	case dialect.DeltaArguments:
		dst = append(dst, `"}}]},"logprobs":null,"finish_reason":null`...)
		return closedOpen(s, dst, s.end)
	case dialect.DeltaReasoning:
		text := dst[s.at:]
		for _, name := range s.reasoning[1:] {
			dst = append(append(append(dst, `","`...), name...), `":"`...)
			dst = append(dst, text...)
		}
	}
	return closedOpen(s, dst, s.tail)
}

// AppendCall implements dialect.Encoder.
func (s *stream) AppendCall(dst []byte, choice, call int, id, name string) []byte {
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	dst = append(dst, `,"delta":{"tool_calls":[{"index":`...)
	dst = strconv.AppendInt(dst, int64(call), 10)
	dst = dialect.AppendString(append(dst, `,"id":`...), id)
	dst = dialect.AppendString(append(dst, `,"type":"function","function":{"name":`...), name)
	dst = append(dst, `,"arguments":""}}]},"logprobs":null,"finish_reason":null`...)
	return closed(s, dst, choice, s.end)
}

// AppendFinish implements dialect.Encoder.
func (s *stream) AppendFinish(dst []byte, choice int, f dialect.Finish) []byte {
	dst = append(dst, s.head...)
	dst = strconv.AppendInt(dst, int64(choice), 10)
	if s.chat {
		dst = append(dst, `,"delta":{},"logprobs":null,"finish_reason":"`...)
	} else {
		dst = append(dst, `,"text":"","logprobs":null,"finish_reason":"`...)
	}
	dst = append(dst, f.Reason...)
	dst = append(dst, '"')
	return closed(s, dst, choice, s.end)
}

// AppendEnd implements dialect.Encoder: a chunk with the usage, which has no choices,
// where it was asked for, and the marker that ends a stream that is complete.
func (s *stream) AppendEnd(dst []byte, u infer.Usage) []byte {
	if s.includeUsage {
		dst = append(dst, s.head[:len(s.head)-len(`{"index":`)]...)
		dst = append(dst, `],`...)
		dst = appendUsage(dst, u)
		dst = append(dst, "}\n\n"...)
	}
	return append(dst, "data: [DONE]\n\n"...)
}

// AppendError implements dialect.Encoder.
func (s *stream) AppendError(dst []byte, e *infer.Error) []byte {
	return Chat.AppendErrorEvent(dst, e)
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
