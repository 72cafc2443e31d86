package dialect

import "weir/internal/infer"

// AnswerOptions describe the answer that an Encoder writes.
type AnswerOptions struct {
	// ID is the request's id, to which a dialect adds its prefix.
	ID string
	// Created is the time of the answer, in seconds since 1970.
	Created int64
	// Now returns the time, in seconds since 1970. If it is nil, it is Created.
	Now func() int64
	// Model is the model's name as the caller wrote it.
	Model string
	// PromptIDs are the ids of the prompt, or of the first of several. They are never
	// empty.
	PromptIDs []uint32
	// PromptTokens is the engine's count of the prompt if that differs from the
	// number of PromptIDs. It is 0 if it does not, or is not known yet.
	PromptTokens int
	// PromptOf returns the ids of a choice's prompt. It is nil if there is one
	// choice.
	PromptOf func(choice int) []uint32
	// Generated returns how many ids a choice has so far, those of the current delta
	// included. It is nil unless Request.CountAlong asks for it.
	Generated func(choice int) int
	// Vocabulary returns the text of ids.
	Vocabulary Vocabulary
	// Reasoning are the names of the members that carry a chat's reasoning, all with
	// the same text. If there are none, the dialect uses its usual name.
	Reasoning []string
	// Timing returns the request's times at the end of its answer. It is nil if there
	// are none.
	Timing func() Timing
}

// Prompted returns how many tokens the prompt has, or the first of several.
func (o *AnswerOptions) Prompted() int {
	if o.PromptTokens > 0 {
		return o.PromptTokens
	}
	return len(o.PromptIDs)
}

// Vocabulary has the text of single ids.
type Vocabulary interface {
	// TokenBytes returns the bytes that an id adds to a text. They need not be whole
	// UTF-8.
	TokenBytes(id uint32) []byte
	// Special reports whether the text of an answer omits the id.
	Special(id uint32) bool
}

// Timing holds the times and durations of a request, in seconds. Times are counted
// from 1970, and 0 is not known.
type Timing struct {
	Received   float64 // by the gateway
	Dispatched float64 // written to the engine
	FirstSent  float64 // first part of the answer written
	Ended      float64 // now
	Duration   float64 // from Received to Ended
	// From the engine's own stamps.
	Queue     float64 // a duration: in the engine's waiting queue
	Started   float64 // first placed in a batch
	Prefilled float64 // last part of the prompt read
}

// Encoder appends one answer in a dialect's shape. The encoder of a stream appends events as the
// output comes. The encoder of a whole answer keeps the output and appends nothing before
// AppendEnd. Both write the same content for the same output.
//
// For each choice AppendStart is called first and AppendFinish last. Calls for different choices
// may alternate. Appending text to a stream allocates nothing but growth of dst.
type Encoder interface {
	// AppendStart begins a choice.
	AppendStart(dst []byte, choice int) []byte
	// AppendText appends the next part of a choice's content, which is whole
	// UTF-8 and not empty.
	AppendText(dst []byte, choice int, text []byte) []byte
	// AppendTokens is called for every delta instead of AppendText if Request.Tokens
	// asks for it. Text and ids may be empty, because text may be held back. If the
	// answer's text is parsed, its deltas come first and text is empty here.
	//
	// With Request.ContentLogprobs it is called before CloseDelta of a delta of
	// content, with the tokens of that content and with empty text. There may be no
	// tokens in it, and there may be tokens in a delta without text.
	AppendTokens(dst []byte, choice int, text []byte, t Tokens) []byte
	// AppendCall begins a tool call of the choice. Calls are numbered from 0.
	AppendCall(dst []byte, choice, call int, id, name string) []byte
	// EndCall ends the choice's latest call. Valid is set if its arguments are whole and
	// valid JSON; without, a dialect that can say so does not call it complete.
	EndCall(dst []byte, choice int, valid bool) []byte
	// OpenDelta begins the next part of a choice's content, of its reasoning, or of
	// the arguments of its latest tool call. Any number of AppendDelta follow it,
	// then CloseDelta.
	OpenDelta(dst []byte, choice int, d Delta, call int) []byte
	AppendDelta(dst, text []byte) []byte
	CloseDelta(dst []byte) []byte
	// AppendFinish ends a choice.
	AppendFinish(dst []byte, choice int, f Finish) []byte
	// AppendEnd ends the answer after the last choice. An answer without it never
	// looks complete.
	AppendEnd(dst []byte, u infer.Usage) []byte
	// AppendError ends an incomplete stream with an error.
	AppendError(dst []byte, e *infer.Error) []byte
}

// Tokens are the tokens of a delta's text, up to a stop string. The gateway owns
// them; an encoder copies what it keeps.
type Tokens struct {
	IDs []uint32
	// Logprobs are the log probabilities of the ids if Request.Logprobs asked for
	// them. Every id has one, also ids of reasoning, of tool calls and of no text.
	Logprobs infer.Logprobs
	// Last is set if the choice ends with this delta. AppendFinish or AppendError
	// comes next.
	Last bool
}

// Delta is the kind of a part of the output.
type Delta uint8

// The kinds of parts.
const (
	DeltaContent Delta = iota
	DeltaReasoning
	DeltaArguments // arguments of a tool call: a fragment of JSON, if the model wrote JSON
)

// Finish states how a choice ended.
type Finish struct {
	// Reason is stop, length, or tool_calls if the model stopped after calls that are all
	// complete, or abort if the caller ended the request
	// by Head.RequestID. A choice that ends in any other way ends the answer with an
	// error.
	Reason infer.Reason
	// Stop is the stop string that ended the choice, empty if none did.
	Stop string
	// StopID is the id that ended the choice, valid if ByID is set. Tokens counts it.
	StopID uint32
	ByID   bool
	// Tokens is the number of ids generated for the choice.
	Tokens int
}
