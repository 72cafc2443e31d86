package api

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
	// PromptOf gives the prompt's ids of a choice; nil where there is one choice.
	PromptOf func(choice int) []uint32
	// Vocabulary tells the text of ids.
	Vocabulary Vocabulary
}

// Vocabulary tells the text of single ids.
type Vocabulary interface {
	// TokenBytes gives what an id adds to a text, which need not be whole UTF-8.
	TokenBytes(id uint32) []byte
	// Special says that an answer's text leaves the id out.
	Special(id uint32) bool
}

// Encoder appends one answer in a dialect's shape. That of a stream appends
// events as the output comes. That of a whole answer keeps what comes, appends
// nothing before AppendEnd, and has the same content for the same output.
//
// Of each choice AppendStart is called first and AppendFinish last; between
// choices there is no order. Appending text to a stream allocates nothing but
// the room in dst.
type Encoder interface {
	// AppendStart begins a choice.
	AppendStart(dst []byte, choice int) []byte
	// AppendText appends the next part of a choice's content, which is whole
	// UTF-8 and not empty.
	AppendText(dst []byte, choice int, text []byte) []byte
	// AppendTokens is called instead of AppendText where Request.Tokens asks for
	// it, with every delta: text and ids may be empty, as text is held back. Where
	// the answer's text is parsed, its deltas come first and text is empty here.
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
	// Reason is stop, length or tool_calls: a choice that ended any other way
	// ends the answer by an error.
	Reason infer.Reason
	// Stop is the stop string that ended it, empty when none did.
	Stop string
	// Tokens is the number of ids generated for the choice.
	Tokens int
}
