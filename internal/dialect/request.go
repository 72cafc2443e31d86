package dialect

import "weir/internal/infer"

// Request is a body decoded for an engine that takes ids. Raw JSON in it may
// refer to the body.
type Request struct {
	Model string

	// Messages is the JSON array of a chat in OpenAI's shape, checked; nil when
	// the request is no chat. Of each of Media there is a part {"type": KIND}
	// among its messages, in their order; there is none else that is not text.
	Messages []byte
	// Media are the parts of a chat besides text, or what belongs to the
	// placeholders in Prompt or PromptIDs; then there is one prompt only.
	Media []infer.Media
	// ChatTemplateKwargs is a JSON object, or nil.
	ChatTemplateKwargs []byte
	// Effort says how much the model is to reason: none, minimal, low, medium,
	// high, xhigh or max; empty when the caller did not say. What the model's chat
	// template makes of it is the gateway's to find out.
	Effort string
	// Tools is the JSON array of the tools that the model may call, in OpenAI's
	// shape, checked; nil where there are none or they may not be called. With
	// SingleCall the answer ends with its first call. With ForcedTool or ForcedAny,
	// Guide is such that the answer is nothing but the arguments of that tool, or
	// an array of objects with name and parameters.
	Tools      []byte
	SingleCall bool
	ForcedTool string
	ForcedAny  bool
	// AddGenerationPrompt opens the assistant's turn after the messages;
	// ContinueFinalMessage goes on with the last of them instead.
	AddGenerationPrompt  bool
	ContinueFinalMessage bool

	// Prompt or PromptIDs is the prompt of what is no chat; the other is empty.
	// Whether the ids are below the model's vocabulary is the gateway's to check.
	Prompt    string
	PromptIDs []uint32
	// MorePrompts are further prompts, each with its own choices after those of
	// the prompts before it.
	MorePrompts []Prompt
	// N is how many choices each prompt has; 0 is 1.
	N int

	// MaxTokens bounds the ids generated; 0 when the caller did not say. Whether
	// it fits the context is the gateway's to check.
	MaxTokens int
	MinTokens int
	// Priority is the engine's to understand; nil: not said.
	Priority  *int64
	IgnoreEOS bool
	Stop      []string
	StopIDs   []uint32
	Sampling  infer.Sampling
	// Guide is what the output must match, nil when anything may come; Decoding.SetGuide
	// sets it.
	Guide *infer.Guide

	// Fields are the dialect's names for what only the gateway can judge.
	Fields *FieldNames

	// LeftOut is what was left out; nil: nothing.
	LeftOut *LeftOut

	Stream bool
	// NoText says that nobody asks for the output's text, ShowSpecial that special
	// tokens are part of it, IncludeStop that a stop string that ended it is, and
	// TrimStop that an id that ended it is not told, though counted.
	NoText, ShowSpecial, IncludeStop, TrimStop bool
	// Tokens says that the encoder is to be told the ids of the output, and their
	// log probabilities where Logprobs is not nil: the number of alternatives to
	// each (infer.Request.Logprobs). ContentLogprobs instead of Tokens says that it
	// is to be told of the content's tokens alone. Logprobs needs one of the two.
	Tokens, ContentLogprobs bool
	Logprobs                *int
	// LogprobsFrom asks for those of the prompts too (infer.Request.LogprobsFrom).
	LogprobsFrom *int
	// Repeats says that each event of the stream repeats the answer so far, of which
	// the encoder therefore keeps all.
	Repeats bool
	// CountAlong says that the encoder is to know how many ids each choice has so far
	// (AnswerOptions.Generated).
	CountAlong bool
	// CountReasoning says that the usage is to tell the tokens of reasoning.
	CountReasoning bool
	// CallPrefix begins the ids of tool calls, where the model gives them none of
	// its own and its template takes any.
	CallPrefix string
	// Encoder makes the encoder of an attempt's answer. It must not hold on to
	// the body, which may be megabytes while a stream may live for long.
	Encoder func(AnswerOptions) Encoder
}

// LeftOut is what of a request was left out, because it changes nothing of the answer.
// That of most requests is nil, whose methods give nothing.
type LeftOut struct {
	// Fields asked for a service beside the answer, by their names in the dialect's table,
	// each once.
	Fields []string
	// Passed are those in no table that were passed over, by their paths in the body.
	Passed []string
	// Tools are the names, or types, of tools that no engine runs.
	Tools []string
}

// Ignored gives the Fields.
func (l *LeftOut) Ignored() []string {
	if l == nil {
		return nil
	}
	return l.Fields
}

// Unknown gives those Passed.
func (l *LeftOut) Unknown() []string {
	if l == nil {
		return nil
	}
	return l.Passed
}

// MaxGuide bounds what the output must match, in bytes: an engine compiles it, beside
// all that it generates.
const MaxGuide = 1 << 20

// Needs gives what of the request not every wire can carry. min_tokens as large as
// max_tokens needs nothing: what ends the answer is then held back by a bias, where
// the engine does not do it itself (HeldBack).
func (r *Request) Needs() infer.Carries {
	ask := infer.Request{MinTokens: r.MinTokens, Priority: r.Priority, Sampling: r.Sampling, Guide: r.Guide, Logprobs: r.Logprobs, LogprobsFrom: r.LogprobsFrom, Media: r.Media}
	if r.HeldBack() {
		ask.MinTokens = 0
	}
	return ask.Needs()
}

// HeldBack says that no id may end the answer, which is as long as it can be.
func (r *Request) HeldBack() bool { return r.MinTokens > 0 && r.MinTokens == r.MaxTokens }

// Prompt is one of several prompts: a text or ids.
type Prompt struct {
	Text string
	IDs  []uint32
}

// FieldNames are a dialect's names of fields, for errors.
type FieldNames struct {
	Prompt    string // what text or conversation came in
	MaxTokens string
	MinTokens string
	Effort    string
	StopIDs   string
	LogitBias string
	Choices   string // how many answers there are to each prompt
	Logprobs  string // how many alternatives there are to each token
	Seed      string
	// LogprobsFrom is from which of a prompt's tokens on their log probabilities are told.
	LogprobsFrom string
}
