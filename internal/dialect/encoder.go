package dialect

import "weir/internal/infer"

// AnswerOptions describe an answer.
type AnswerOptions struct {
	// ID is the request's id; a dialect puts its prefix before it.
	ID string
	// Created is in seconds since 1970.
	Created int64
	// Model is the name the caller used.
	Model string
	// PromptIDs are the prompt's ids, never empty; of several prompts, the first's.
	PromptIDs []uint32
	// PromptTokens is the engine's count of the prompt, where that is not the number
	// of its ids; 0 where it is, or is not known yet.
	PromptTokens int
	// PromptOf gives the prompt's ids of a choice; nil where there is one choice.
	PromptOf func(choice int) []uint32
	// Generated gives how many ids a choice has so far, those of the delta at hand among
	// them; nil unless Request.CountAlong asks for it.
	Generated func(choice int) int
	// Vocabulary tells the text of ids.
	Vocabulary Vocabulary
	// Reasoning are the members that tell a chat's reasoning, each the same, in a
	// dialect that has no one name for it; empty is the dialect's usual one.
	Reasoning []string
	// Timing tells the request's times when its answer ends; nil when nothing
	// does.
	Timing func() Timing
}

// Prompted is how many tokens the (first) prompt has.
func (o *AnswerOptions) Prompted() int {
	if o.PromptTokens > 0 {
		return o.PromptTokens
	}
	return len(o.PromptIDs)
}

// Vocabulary tells the text of single ids.
type Vocabulary interface {
	// TokenBytes gives what an id adds to a text, which need not be whole UTF-8.
	TokenBytes(id uint32) []byte
	// Special says that an answer's text leaves the id out.
	Special(id uint32) bool
}

// Timing is when things happened to a request, in seconds; 0 is not known. What
// is no duration is counted from 1970.
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
// output comes. The encoder of a whole answer keeps the output, appends nothing before AppendEnd,
// and has the same content for the same output.
//
// For each choice AppendStart is called first and AppendFinish last. Calls for different choices
// come in any order. Appending text to a stream allocates nothing but the room in dst.
type Encoder interface {
	// AppendStart begins a choice.
	AppendStart(dst []byte, choice int) []byte
	// AppendText appends the next part of a choice's content, which is whole
	// UTF-8 and not empty.
	AppendText(dst []byte, choice int, text []byte) []byte
	// AppendTokens is called instead of AppendText where Request.Tokens asks for
	// it, with every delta: text and ids may be empty, as text is held back. Where
	// the answer's text is parsed, its deltas come first and text is empty here.
	//
	// With Request.ContentLogprobs it is called before CloseDelta of a delta of
	// content, with the tokens that made this, maybe none, and text is empty. There
	// may be tokens in a delta that has no text.
	AppendTokens(dst []byte, choice int, text []byte, t Tokens) []byte
	// AppendCall begins the choice's tool call of that index; calls count from 0.
	AppendCall(dst []byte, choice, call int, id, name string) []byte
	// OpenDelta begins the next part of a choice's content, of its reasoning, or
	// of the arguments of its latest tool call. Any number of AppendDelta follow,
	// and CloseDelta.
	OpenDelta(dst []byte, choice int, d Delta, call int) []byte
	AppendDelta(dst, text []byte) []byte
	CloseDelta(dst []byte) []byte
	// AppendFinish ends a choice.
	AppendFinish(dst []byte, choice int, f Finish) []byte
	// AppendEnd ends the answer after the last choice. What was appended is
	// complete with it, and never looks complete without it.
	AppendEnd(dst []byte, u infer.Usage) []byte
	// AppendError ends a stream that is not complete.
	AppendError(dst []byte, e *infer.Error) []byte
}

// Tokens are what a delta's text was made of, up to a stop string. They are the
// gateway's: the encoder copies what it keeps.
type Tokens struct {
	IDs []uint32
	// Logprobs are those of the ids, where Request.Logprobs asked for them. Every
	// id has them, also those of reasoning, of tool calls and of no text at all.
	Logprobs infer.Logprobs
	// Last says that the choice ends with this delta: AppendFinish or AppendError
	// comes next.
	Last bool
}

// Delta says what a part of the output is.
type Delta uint8

// The deltas.
const (
	DeltaContent Delta = iota
	DeltaReasoning
	DeltaArguments // of a tool call: a fragment of JSON, unless the model's were not
)

// Finish says how a choice ended.
type Finish struct {
	// Reason is stop, length or tool_calls, or abort where the caller itself has
	// ended the request by Head.RequestID: a choice that ended any other way ends
	// the answer by an error.
	Reason infer.Reason
	// Stop is the stop string that ended it, empty when none did.
	Stop string
	// StopID is the id that ended it, if ByID says that one did. It counts in
	// Tokens, and with Request.TrimStop it is not among those told.
	StopID uint32
	ByID   bool
	// Tokens is the number of ids generated for the choice.
	Tokens int
}
