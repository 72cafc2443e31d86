package dialect

import (
	"slices"

	"weir/internal/infer"
)

// Request is a body decoded for an engine that takes ids. Raw JSON in it may share
// the body's memory.
type Request struct {
	Model string

	// Messages is the JSON array of a chat in OpenAI's shape, checked; nil if the
	// request is not a chat. Each element of Media has a part {"type": KIND} among
	// the messages, in the same order. All other parts are text.
	Messages []byte
	// Media are the parts of a chat besides text, or the media of the placeholders in
	// Prompt or PromptIDs. A request with media has one prompt.
	Media []infer.Media
	// ChatTemplateKwargs is a JSON object, or nil.
	ChatTemplateKwargs []byte
	// Effort is how much the model should reason: none, minimal, low, medium, high,
	// xhigh or max; empty if the caller did not state it. The gateway translates it
	// for the model's chat template.
	Effort string
	// Tools is the JSON array of the tools that the model may call, in OpenAI's
	// shape, checked. It is nil if there are none or if calls are forbidden. With
	// SingleCall the answer ends after its first call. With ForcedTool or ForcedAny,
	// Guide makes the answer nothing but the arguments of that tool, or an array of
	// objects with name and parameters.
	Tools      []byte
	SingleCall bool
	ForcedTool string
	ForcedAny  bool
	// AddGenerationPrompt opens the assistant's turn after the messages.
	// ContinueFinalMessage continues the last message instead.
	AddGenerationPrompt  bool
	ContinueFinalMessage bool

	// Prompt or PromptIDs is the prompt of a request that is not a chat; the other is
	// empty. The gateway checks that the ids are in the model's vocabulary.
	Prompt    string
	PromptIDs []uint32
	// MorePrompts are further prompts. The choices of each follow those of the
	// prompts before it.
	MorePrompts []Prompt
	// N is how many choices each prompt has. 0 means 1.
	N int

	// MaxTokens bounds the ids generated, 0 if the caller did not state it. The
	// gateway checks that it fits the context.
	MaxTokens int
	MinTokens int
	// Priority is passed to the engine, which defines its meaning; nil: not stated.
	Priority  *int64
	IgnoreEOS bool
	Stop      []string
	StopIDs   []uint32
	Sampling  infer.Sampling
	// Guide is what the output must match, nil if anything may come. Decoding.SetGuide
	// sets it.
	Guide *infer.Guide

	// Fields are the dialect's names of the fields that only the gateway can judge.
	Fields *FieldNames

	// LeftOut is what was left out of the request; nil: nothing.
	LeftOut *LeftOut

	Stream bool
	// NoText is set if the output's text is not needed. ShowSpecial makes special
	// tokens a part of the text, IncludeStop a stop string that ended it.
	NoText, ShowSpecial, IncludeStop bool
	// Tokens makes the gateway give the encoder the ids of the output, and their log
	// probabilities if Logprobs is not nil. Logprobs is the number of alternatives to
	// each (infer.Request.Logprobs). ContentLogprobs, instead of Tokens, gives it the
	// tokens of the content only. Logprobs needs one of the two.
	Tokens, ContentLogprobs bool
	Logprobs                *int
	// LogprobsFrom asks for log probabilities of the prompts too
	// (infer.Request.LogprobsFrom).
	LogprobsFrom *int
	// Repeats is set if each event of the stream repeats the answer so far. The
	// encoder then keeps all of it.
	Repeats bool
	// CountAlong is set if the encoder needs the number of ids that each choice has so
	// far (AnswerOptions.Generated).
	CountAlong bool
	// CountReasoning is set if the usage has to state the tokens of reasoning.
	CountReasoning bool
	// CallPrefix begins the ids of tool calls. It is used if the model writes no ids
	// and its template accepts any.
	CallPrefix string
	// Encoder returns the encoder of an attempt's answer. It must not keep a
	// reference to the body, which may be megabytes while a stream may last for
	// hours.
	Encoder func(AnswerOptions) Encoder
}

// Ignore records that something a field asked for is left out. The name is that of the field
// in the dialect's table.
func (r *Request) Ignore(name string) { r.LeftOut = r.LeftOut.With(name) }

func (r *Request) leaveOut() *LeftOut {
	if r.LeftOut == nil {
		r.LeftOut = new(LeftOut)
	}
	return r.LeftOut
}

// LeftOut is what was left out of a request because the answer does not depend on it.
// It is nil for most requests, and its methods accept nil.
type LeftOut struct {
	// Fields are the names of fields that asked for a service beside the answer, as in the
	// dialect's table, each once.
	Fields []string
	// Passed are the paths in the body of fields that are in no table and were passed
	// over.
	Passed []string
	// Tools are the names, or types, of tools that no engine runs.
	Tools []string
}

// With returns it with a further field.
func (l *LeftOut) With(field string) *LeftOut {
	if l == nil {
		l = new(LeftOut)
	}
	if !slices.Contains(l.Fields, field) {
		l.Fields = append(l.Fields, field)
	}
	return l
}

// Ignored returns Fields.
func (l *LeftOut) Ignored() []string {
	if l == nil {
		return nil
	}
	return l.Fields
}

// Unknown returns Passed.
func (l *LeftOut) Unknown() []string {
	if l == nil {
		return nil
	}
	return l.Passed
}

// MaxGuide bounds the size of a guide in bytes, because an engine compiles the guide
// while it serves other requests.
const MaxGuide = 1 << 20

// Needs returns what the request needs that not every wire can carry. min_tokens that
// equals max_tokens needs nothing: if the engine does not hold back what ends the
// answer, a bias does (HeldBack).
func (r *Request) Needs() infer.Carries {
	ask := infer.Request{MinTokens: r.MinTokens, Priority: r.Priority, Sampling: r.Sampling, Guide: r.Guide, Logprobs: r.Logprobs, LogprobsFrom: r.LogprobsFrom, Media: r.Media}
	if r.HeldBack() {
		ask.MinTokens = 0
	}
	return ask.Needs()
}

// HeldBack reports whether no id may end the answer, because min_tokens equals
// max_tokens.
func (r *Request) HeldBack() bool { return r.MinTokens > 0 && r.MinTokens == r.MaxTokens }

// Prompt is one of several prompts, a text or ids.
type Prompt struct {
	Text string
	IDs  []uint32
}

// FieldNames are a dialect's names of fields, for errors.
type FieldNames struct {
	Prompt    string // the field of the text or conversation
	MaxTokens string
	MinTokens string
	Effort    string
	StopIDs   string
	LogitBias string
	Choices   string // the field of the number of answers to each prompt
	Logprobs  string // the field of the number of alternatives to each token
	Seed      string
	// LogprobsFrom is the field of the first prompt token whose log probability is
	// returned.
	LogprobsFrom string
}
