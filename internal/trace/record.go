package trace

import (
	"net/netip"

	"weir/internal/infer"
)

// Record is the timeline of one request: one per request, exactly once. Stamps
// are nanoseconds of the timeline's clock; zero means the moment never came.
type Record struct {
	RequestID string // the caller's, where it gave one, and then not always unique
	Endpoint  string // path of the API called
	Model     string
	Stream    bool
	Client    netip.Addr // as far as it is known; a proxy's where that says nothing
	Outcome   infer.Outcome
	Code      string // infer.Code of the error, empty when finished
	Message   string // the error's message
	Status    int    // HTTP status sent, 0 when none was

	PromptTokens, CompletionTokens, CachedTokens int
	BytesIn                                      int64

	Arrival, Received, Decoded, Rendered int64
	TokenizeStart, TokenizeEnd           int64
	Queued, Routed                       int64
	Finished                             int64

	// What each turn of a stream touches stands together.
	Ledger                      Ledger
	Flushes                     int // writes that carried output
	BytesOut                    int64
	FirstReceived, FirstFlushed int64

	Attempts []Attempt

	// Live streams and merges pending across the gateway, so that lateness can
	// be plotted against backlog.
	LiveAtArrival, LiveAtFirstToken       int
	PendingAtArrival, PendingAtFirstToken int
}

// Attempt is one try at one engine, or one prefill/decode pair.
type Attempt struct {
	Legs   []Leg
	Choice Choice
	// Repeated says that the request went to another engine after it, and MayHaveRun that
	// this one may have begun with it.
	Repeated, MayHaveRun bool
}

// Choice says how the engine of an attempt was chosen, and what was predicted of it.
type Choice struct {
	Why    string // what decided
	Of     int    // engines there were to choose from
	Length int    // of the prompts, in tokens, as far as they are not alike
	Best   [4]Option
	N      int // of Best: those that would have cost least, the chosen one among them
	Chosen int // its place there
	Cached int // tokens of the prompts that the engine says it had; -1: it does not
}

// Option is an engine as the choice saw it.
type Option struct {
	Engine     string
	Resident   int   // tokens of Length that were believed to be there
	Wait, TTFT int64 // predicted, from the choice on
}

// Resident is what was believed to be at the chosen engine.
func (c *Choice) Resident() int { return c.Best[c.Chosen].Resident }

// Leg is one engine's part of an attempt.
type Leg struct {
	Role string // "full", later "prefill" or "decode"
	// RequestID is weir's own name of the request on the engine's wire; empty where
	// each of several choices has one.
	RequestID string
	Engine    string
	DPRank    int // -1 when the engine has none
	Outcome   string
	// ToServer and Acked are the gateway's: request written, and confirmed.
	ToServer, Acked int64
	// Stamps are the engine's own, on the gateway's clock.
	Stamps infer.Stamps
}

// Leg gives the leg that served the client, or nil when nothing was
// dispatched.
func (r *Record) Leg() *Leg {
	if len(r.Attempts) == 0 {
		return nil
	}
	legs := r.Attempts[len(r.Attempts)-1].Legs
	if len(legs) == 0 {
		return nil
	}
	return &legs[len(legs)-1]
}

// Total is the time from arrival to finish.
func (r *Record) Total() int64 { return r.Finished - r.Arrival }

// Residual is what the stages do not explain of the total.
func (r *Record) Residual() int64 {
	left := r.Total()
	for _, ns := range r.Ledger.Spent {
		left -= ns
	}
	return left
}
