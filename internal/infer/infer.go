// Package infer is the vocabulary of weir: a generation request, the deltas an
// engine answers with, how a generation ends, and the closed set of coded
// errors. Every other package may import it; it imports none of them.
package infer

import "fmt"

// Request is one generation as a token engine receives it: ids in, ids out.
// It is immutable once built; an engine adapter may keep a reference to it
// until the generation's terminal delta.
type Request struct {
	// ID names this attempt on the engine's wire. It is unique per attempt and
	// of fixed length, because some engines match aborts by prefix.
	ID string
	// Model is the name the engine knows the model by.
	Model string
	// Prompt holds the ids of the whole prompt. Never empty. Where there are Media
	// it has the model's own placeholder for each, which the engine makes the ids
	// of: only the engine knows then how many tokens the prompt has.
	Prompt []uint32
	// Media are the conversation's parts besides text, in its order.
	Media []Media
	// MaxTokens bounds the ids generated. Always positive.
	MaxTokens int
	// ToContext states that MaxTokens is nobody's wish but what the context leaves
	// beside Prompt: where Media take more of it, the engine ends the output where
	// the context ends. Only with Media.
	ToContext bool
	// MinTokens forbids an end id before this many ids.
	MinTokens int
	// IgnoreEOS generates to MaxTokens regardless of end ids.
	IgnoreEOS bool
	// StopIDs end the generation in addition to the model's end ids.
	StopIDs []uint32
	// Sampling states how the next id is drawn.
	Sampling Sampling
	// Guide is what the output must match; nil is anything.
	Guide *Guide
	// Priority is where it stands among the requests that wait in the engine, in the
	// engine's own sense of the number; nil is what the engine gives those that do
	// not say.
	Priority *int64
	// CacheSalt divides the engine's prefix cache: the prompt finds there only what requests
	// of the same salt left. Empty is none. An engine whose Facts do not say that its
	// requests carry a salt is handed none that has one.
	CacheSalt string
	// Logprobs asks for the log probability of each id, and says how many of the
	// most probable ids there come with it; nil asks for none.
	Logprobs *int
	// LogprobsFrom asks for those of the prompt too, from this position on, which the prompt
	// has; nil asks for none. Only with Logprobs.
	LogprobsFrom *int
	// Half makes it one half of a pair; nil: it is served whole.
	Half *Half
}

// Sampling holds the sampling parameters. A nil pointer means the caller did
// not say and the engine's default holds.
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

// Delta is what an engine reports of one choice of one attempt between two of
// its messages. Deltas of a choice are ordered; concatenating their IDs gives
// exactly what the engine generated.
type Delta struct {
	// Attempt is the attempt the ids belong to, counted from 1 within a
	// request. A delta of an abandoned attempt is fenced off by it.
	Attempt uint32
	// Choice is the index among the n choices of the request.
	Choice uint32
	// IDs are the new ids; the receiver copies what it keeps.
	IDs []uint32
	// Total is the engine's own cumulative count for this choice, this delta
	// included, after the adapter has applied its wire's counting rule. It must
	// equal the ids received; anything else is an integrity failure.
	Total int
	// Logprobs are those of the ids, where the request asked for them, and then
	// of every id; nil otherwise. Like the ids they are the adapter's.
	Logprobs *Logprobs
	// Received is the gateway's clock when the frame holding the delta was read.
	Received int64
	// Stamps are the engine's own stamps, when this delta brought any.
	Stamps *Stamps
	// PromptTokens is the engine's count of the prompt with its media, from the
	// first delta with ids on where the wire tells it so early; 0 is not said.
	PromptTokens int
	// CachedTokens is how much of the prompt the engine had in its cache, where
	// CachedKnown says that its wire tells that before the end.
	CachedTokens int
	CachedKnown  bool
	// Finish is set once, on the terminal delta of the choice.
	Finish *Finish
}

// Stamps are an engine's own stamps of one request, nanoseconds on the
// gateway's clock (the adapter has applied the clock offset). Zero means the
// engine did not say. Field names follow the timeline's names.
type Stamps struct {
	ServerCreated  int64 // request read by the engine
	QueueStart     int64 // entered the waiting queue
	QueueEnd       int64 // first placed in a batch
	PrefillStart   int64 // first prefill chunk began
	PrefillEnd     int64 // last prefill chunk ended
	FirstToken     int64 // first token generated
	FirstOutput    int64 // first token sent to the gateway
	ClockUncertain int64 // half-width of the clock offset's error; 0 on one clock

	// For prefill and decode on two engines.
	BootstrapStart, BootstrapEnd int64 // the legs looked for each other, and met
	TransferStart, TransferEnd   int64 // KV handed from prefill to decode
	WaitingToRunning             int64 // admitted to the running batch of the decode engine

	// Retracted is no time: how often the engine has sent it back to its queue.
	Retracted int64
}

// NumStamps is how many of the stamps have a name of their own.
const NumStamps = 12

// StampNames are those names, which code, timeline and engines have in common.
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

// StampNamed is the place of a name among StampNames; ok is false where it is none.
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

// Reason states why a choice ended, in the word the OpenAI API uses.
type Reason string

// The reasons a choice ends for.
const (
	ReasonStop   Reason = "stop"   // an end id, a stop id or a stop string
	ReasonLength Reason = "length" // the token limit
	ReasonAbort  Reason = "abort"  // ended by an abort of ours
	ReasonError  Reason = "error"  // Err says what

	// ReasonToolCalls is the answer's, never the engine's: it stopped, having
	// called tools.
	ReasonToolCalls Reason = "tool_calls"
)

// Finish ends one choice.
type Finish struct {
	Reason Reason
	// PromptTokens and CachedTokens are the engine's counts, -1 when unknown.
	PromptTokens, CachedTokens int
	// Unsent is how many ids the engine generated and counts beyond those it sent:
	// a stop id that it keeps to itself.
	Unsent int
	// StopID is the id that ended it, where ByID says that the adapter knows it;
	// of one that it sent too, the receiver can tell as well.
	StopID uint32
	ByID   bool
	// Err is set with ReasonError.
	Err *Error
	// Unbegun is set for a prefill half that was aborted if the engine says that it had computed
	// nothing of it, and so writes none of its KV.
	Unbegun bool
	// Params are the kv_transfer_params that vLLM's prefill half answers, as JSON.
	Params []byte
}

// Usage is what a request consumed, as reported to the client. CachedTokens is
// -1 when the engine does not say.
type Usage struct {
	PromptTokens, CompletionTokens, CachedTokens int
	// ReasoningTokens are those of CompletionTokens that were generated before the
	// reasoning had ended. It is counted only for answers that tell it.
	ReasoningTokens int
}

// String is for logs and test failures.
func (f Finish) String() string {
	if f.Err != nil {
		return fmt.Sprintf("%s: %v", f.Reason, f.Err)
	}
	return string(f.Reason)
}
