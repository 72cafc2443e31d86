// Package infer defines the types that all of weir shares: a generation request, the
// deltas with which an engine answers, the end of a generation, and the closed set of
// coded errors. Every other package may import it. It imports none of them.
package infer

import (
	"cmp"
	"fmt"
)

// Request is one generation as a token engine receives it: ids in, ids out.
// It is immutable once built; an engine adapter may keep a reference to it
// until the generation's terminal delta.
type Request struct {
	// ID names this attempt on the engine's wire. It is unique per attempt and
	// of fixed length, because some engines match aborts by prefix.
	ID string
	// Model is the name the engine knows the model by.
	Model string
	// Prompt holds the ids of the whole prompt and is never empty. For each of Media
	// it has the model's placeholder, which the engine expands: only the engine knows
	// how many tokens such a prompt has.
	Prompt []uint32
	// Media are the parts of the conversation besides text, in order.
	Media []Media
	// MaxTokens bounds the ids generated. It is positive.
	MaxTokens int
	// ToContext is set if MaxTokens is not the caller's bound but the room that
	// Prompt leaves in the context. Media may take more of it, and the engine then
	// ends the output at the end of the context. It is set only with Media.
	ToContext bool
	// MinTokens is the number of ids before which no end id may come.
	MinTokens int
	// IgnoreEOS makes the engine generate MaxTokens ids regardless of end ids.
	IgnoreEOS bool
	// StopIDs end the generation in addition to the model's end ids.
	StopIDs []uint32
	// Sampling holds the parameters by which ids are drawn.
	Sampling Sampling
	// Guide is what the output must match; nil: anything.
	Guide *Guide
	// Priority orders the request among those that wait in the engine, by the
	// engine's meaning of the number. nil stands for the engine's default.
	Priority *int64
	// CacheSalt partitions the engine's prefix cache: the prompt finds only what requests of
	// the same salt left there. Empty means no salt. Only engines whose Facts report support
	// for salts get a request that has one.
	CacheSalt string
	// Logprobs asks for the log probability of each id. Its value is how many of the
	// most probable ids come with it. nil asks for none.
	Logprobs *int
	// LogprobsFrom asks for log probabilities of the prompt too, from this position on,
	// which must be inside the prompt. nil asks for none. It needs Logprobs.
	LogprobsFrom *int
	// Portion is how many ids the engine may collect before it sends them, because nobody
	// waits for each of them; 0 or 1: none. The first id comes at once, and the end too. An
	// adapter leaves it out where an event costs little, or the engine collects nothing.
	Portion int
	// Half makes the request one half of a pair; nil: it is served whole.
	Half *Half
}

// Sampling holds the sampling parameters. A nil pointer stands for the engine's
// default.
type Sampling struct {
	Temperature *float64
	TopP        *float64
	TopK        *int
	Seed        *int64
	// Not every wire carries these; see Carries.
	MinP              *float64
	PresencePenalty   *float64
	FrequencyPenalty  *float64
	RepetitionPenalty *float64
	LogitBias         []Bias // in the order of ids
}

// Delta is what an engine reports of one choice of one attempt in one message. Deltas
// of a choice are ordered, and their IDs together are exactly what the engine
// generated.
type Delta struct {
	// Attempt is the attempt that the ids belong to, counted from 1 within a request.
	// By it the receiver rejects a delta of an abandoned attempt.
	Attempt uint32
	// Choice is the index among the n choices of the request.
	Choice uint32
	// IDs are the new ids. The receiver copies what it keeps.
	IDs []uint32
	// Total is the engine's cumulative count for this choice, with this delta, by the
	// counting rule of its wire, which the adapter has applied. It must equal the
	// number of ids received. Anything else is an integrity failure.
	Total int
	// Logprobs are the log probabilities of all IDs if the request asked for them,
	// and nil otherwise. Like the IDs they belong to the adapter.
	Logprobs *Logprobs
	// Received is the time on the gateway's clock at which the delta's frame was
	// read.
	Received int64
	// Stamps are the engine's own stamps, if this delta has any.
	Stamps *Stamps
	// PromptTokens is the engine's count of the prompt with its media. It is set from
	// the first delta with ids on if the wire states it that early. 0 means not
	// stated.
	PromptTokens int
	// CachedTokens is how many tokens of the prompt the engine had in its cache.
	// CachedKnown is set if the wire states this before the end.
	CachedTokens int
	CachedKnown  bool
	// Finish is set once, on the terminal delta of the choice.
	Finish *Finish
}

// Stamps are an engine's own times of one request, in nanoseconds on the gateway's
// clock. The adapter has applied the clock offset. Zero means not stated. The fields
// have the timeline's names.
type Stamps struct {
	ServerCreated  int64 // request read by the engine
	QueueStart     int64 // entered the waiting queue
	QueueEnd       int64 // first placed in a batch
	PrefillStart   int64 // first prefill chunk began
	PrefillEnd     int64 // last prefill chunk ended
	FirstToken     int64 // first token generated
	FirstOutput    int64 // first token sent to the gateway
	ClockUncertain int64 // half the width of the interval of the clock offset's error; 0 on one clock

	// Stamps of a request that is divided between a prefill and a decode engine.
	BootstrapStart, BootstrapEnd int64 // the halves began to look for each other, and met
	TransferStart, TransferEnd   int64 // KV handed from prefill to decode
	WaitingToRunning             int64 // admitted to the running batch of the decode engine

	// Retracted is not a time but how often the engine has returned the request to
	// its queue.
	Retracted int64
}

// Met adds what the stamps of SGLang's queue say of a half: it is queued when it has met the other,
// or has its KV.
func (s *Stamps) Met(role Role) {
	switch role {
	case RolePrefill:
		s.BootstrapEnd = cmp.Or(s.BootstrapEnd, s.QueueStart)
	case RoleDecode:
		s.TransferEnd, s.WaitingToRunning = cmp.Or(s.TransferEnd, s.QueueStart), cmp.Or(s.WaitingToRunning, s.QueueEnd)
	}
}

// NumStamps is how many stamps have a name.
const NumStamps = 12

// StampNames are the names of stamps. Code, timeline and engines share them.
var StampNames = [NumStamps]string{
	"server_created_time", "queue_time_start", "queue_time_end", "prefill_start_time", "prefill_end_time", "server_first_token_time", "first_output_time",
	"bootstrap_time_start", "bootstrap_time_end", "transfer_time_start", "transfer_time_end", "waiting_to_running_time",
}

// Named returns the stamps in the order of StampNames.
func (s *Stamps) Named() [NumStamps]*int64 {
	return [NumStamps]*int64{
		&s.ServerCreated, &s.QueueStart, &s.QueueEnd, &s.PrefillStart, &s.PrefillEnd, &s.FirstToken, &s.FirstOutput,
		&s.BootstrapStart, &s.BootstrapEnd, &s.TransferStart, &s.TransferEnd, &s.WaitingToRunning,
	}
}

// StampNamed returns the index of a name in StampNames. ok is false if there is no
// such name.
func StampNamed(name []byte) (i int, ok bool) {
	for i, of := range StampNames {
		if string(name) == of {
			return i, true
		}
	}
	if string(name) == "server_start_time" { // which is queue_time_end
		return 2, true
	}
	return 0, false
}

// Reason is why a choice ended, in the word of the OpenAI API.
type Reason string

// The reasons.
const (
	ReasonStop   Reason = "stop"   // an end id, a stop id or a stop string
	ReasonLength Reason = "length" // the token limit
	ReasonAbort  Reason = "abort"  // weir aborted it
	ReasonError  Reason = "error"  // Finish.Err has the error

	// ReasonToolCalls is the reason of an answer that stopped after calls of tools.
	// Engines never report it.
	ReasonToolCalls Reason = "tool_calls"
)

// Finish is the end of one choice.
type Finish struct {
	Reason Reason
	// PromptTokens and CachedTokens are the engine's counts, -1 when unknown.
	PromptTokens, CachedTokens int
	// Unsent is how many ids the engine counts but did not send, such as a stop id.
	Unsent int
	// StopID is the id that ended the choice, valid if the adapter knows it and has
	// set ByID. If the engine sent the id too, the receiver can find it itself.
	StopID uint32
	ByID   bool
	// Err is set with ReasonError.
	Err *Error
	// Unbegun is set for an aborted prefill half if the engine reports that it had computed none
	// of it, and therefore writes none of its KV.
	Unbegun bool
	// Params are the kv_transfer_params in the answer of a prefill half of vLLM's, as
	// JSON.
	Params []byte
}

// Usage is the tokens of a request, as reported to the client. CachedTokens is -1
// when the engine does not say.
type Usage struct {
	PromptTokens, CompletionTokens, CachedTokens int
	// ReasoningTokens is how many of CompletionTokens were generated before the end
	// of the reasoning. It is counted only for answers that report it.
	ReasoningTokens int
	// Clipped is set if the engine stated more than the request can have used.
	Clipped bool
}

// String is for logs and test failures.
func (f Finish) String() string {
	if f.Err != nil {
		return fmt.Sprintf("%s: %v", f.Reason, f.Err)
	}
	return string(f.Reason)
}
