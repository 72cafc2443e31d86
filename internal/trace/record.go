package trace

import (
	"net/netip"
	"time"

	"weir/internal/infer"
)

// Record is the timeline of one request: one per request, exactly once. Stamps
// are nanoseconds of the timeline's clock; zero means the moment never came.
type Record struct {
	RequestID string   // the caller's, where it gave one, and then not always unique
	Trace     *Context // of the trace that it is part of; nil: of none
	Key       string   // the name of the caller's key; empty where it has none
	Tenant    string   // whose key it is
	Endpoint  string   // path of the API called
	Model     string
	Stream    bool
	Client    netip.Addr // as far as it is known; a proxy's where that says nothing
	Outcome   infer.Outcome
	Code      string // infer.Code of the error, empty when finished
	Message   string // the error's message
	Status    int    // HTTP status sent, 0 when none was

	PromptTokens, CompletionTokens, CachedTokens int
	BytesIn                                      int64
	Used                                         Used

	Arrival, Received, Decoded, Rendered int64
	TokenizeStart, TokenizeEnd           int64
	Queued, Routed                       int64
	Finished                             int64

	// The fields that each turn of a stream touches are next to each other.
	Ledger                      Ledger
	Flushes                     int // writes that carried output
	BytesOut                    int64
	FirstReceived, FirstFlushed int64

	Attempts []Attempt

	// Live streams and merges pending across the gateway, so that lateness can
	// be plotted against backlog.
	LiveAtArrival, LiveAtFirstToken       int
	PendingAtArrival, PendingAtFirstToken int

	Stalls []Stall // that the request lived through
}

// Used is what a request counts as used by its tenant: the tokens of an answer that came from an
// engine, whole or not. A request without output uses nothing. A prompt counts once, also where
// a second engine computed it again.
type Used struct {
	Prompt, Cached, Completion int
	// Estimated is set for a relayed answer whose engine has not stated its last counts:
	// the prompt is estimated by its size, and the completion is the events that came.
	Estimated bool
}

// Attempt is one try at one engine, or one prefill/decode pair.
type Attempt struct {
	Legs   []Leg
	Choice Choice
	// Prefill is how the engine was chosen that computes the prompt, where another one does
	// than generates. Then the wait of Choice's options is that for the prompt's KV, and their
	// others are also those that the prompt delays.
	Prefill *Choice
	// Turn is whose turn it was, nil if the request did not wait for one.
	Turn *Turn
	// Repeated states that the request went to another engine after it, and MayHaveRun that
	// this one may have begun with it.
	Repeated, MayHaveRun bool
	// Continued states that another engine went on with the stream behind the Given ids that
	// the attempt gave, of which the client has had each once.
	Continued bool
	Given     int32
}

// Turn is what a request found before it when it began to wait for its turn, and what it was
// charged for it.
type Turn struct {
	Band, Tenant string
	Own          int32   // requests of its tenant that waited
	Others       int32   // requests of other tenants
	Tenants      int32   // those tenants
	Charged      float32 // milliseconds
}

// Choice states how the engine of an attempt was chosen, and what was predicted of it. Each
// stream keeps it to its end, so it is small.
type Choice struct {
	Why       string   // what decided
	Of        int32    // engines there were to choose from
	Length    int32    // of the prompts, in tokens, as far as they are not alike
	Cached    int32    // tokens of the prompts that the engine says it had; -1: it does not
	Available int32    // the most that any of the engines was believed to have
	Best      []Option // those that would have cost least, the chosen one among them
	Chosen    int8     // its place there
	// Unknown states that nobody knows the blocks of the prompts, and so what engines have
	// of them.
	Unknown bool
	// Regret is by how much more the request was predicted to cost where it went than where
	// it would have cost least, in milliseconds.
	Regret float32
}

// Option is an engine as the choice saw it. Times are predicted, in milliseconds.
type Option struct {
	Engine   string
	Resident int32 // tokens of Length that were believed to be there
	Decoders int32 // requests that decode there when its prefill begins
	// Wait is from the choice until its prefill begins, Room of that until the cache has
	// room. Prefill is its own, Decode its decoding as far as that counts, and Others by
	// how much all others there are delayed, added up.
	Wait, Room, Prefill, Decode, Others float32
	Cold                                bool // too little was measured there to rely on that
	Half                                bool // it would have one half of the request
}

// TTFT is the time from the choice to the first token.
func (o *Option) TTFT() float32 { return o.Wait + o.Prefill }

// Total is what the choice compares.
func (o *Option) Total() float32 { return o.Wait + o.Prefill + o.Decode + o.Others }

// Resident is what of the prompt was believed to be at the engine that computes it.
func (a *Attempt) Resident() int {
	if a.Prefill != nil {
		return a.Prefill.resident()
	}
	return a.Choice.resident()
}

func (c *Choice) resident() int {
	if len(c.Best) == 0 {
		return 0
	}
	return int(c.Best[c.Chosen].Resident)
}

// Leg is one engine's part of an attempt.
type Leg struct {
	Role string // "full", later "prefill" or "decode"
	// RequestID is weir's own name of the request on the engine's wire; empty where
	// each of several choices has one.
	RequestID string
	Engine    string
	Kind      string // the engine's, as in --engine KIND=URL
	DPRank    int    // -1 when the engine has none
	Outcome   string
	Caller    *Caller // what its engine is told of the trace; nil: nothing. Only until the request has ended
	// Handed, ToServer, Acked and Known are the gateway's: request handed to the adapter,
	// written, its confirmation read, and known to whoever handed it over.
	Handed, ToServer, Acked, Known int64
	// Answered is when a prefill half had ended, and Fetched the same where its engine ends
	// it no sooner than its KV is at the decode engine.
	Answered, Fetched int64
	// Stamps are the engine's own, on the gateway's clock.
	Stamps infer.Stamps
}

// Ack is where the time of an acknowledgement went. What no wire tells is negative.
type Ack struct {
	// Send is the gateway's wait to send the request; over HTTP it includes connecting.
	Send int64
	// Engine is the engine's part, the network's both ways among it, and Queue and Write
	// are that before and after it took the request in.
	Engine, Queue, Write int64
	// Read is the gateway's wait to notice what was read.
	Read int64
}

// NumAckParts is how many parts an Ack has.
const NumAckParts = 5

// AckParts are their names, in the order of Parts.
var AckParts = [NumAckParts]string{"send", "engine", "queue", "write", "read"}

// Parts returns them in the order of AckParts.
func (a *Ack) Parts() [NumAckParts]int64 {
	return [NumAckParts]int64{a.Send, a.Engine, a.Queue, a.Write, a.Read}
}

// Ack divides the time of the leg's acknowledgement. ok is false where the request was
// not sent. Where there was no acknowledgement, as a relay gives none, it has Send alone.
func (l *Leg) Ack() (a Ack, ok bool) {
	if l.Handed == 0 || l.ToServer == 0 {
		return Ack{}, false
	}
	a = Ack{Send: max(l.ToServer-l.Handed, 0), Engine: -1, Queue: -1, Write: -1, Read: -1}
	if l.Acked == 0 || l.Known == 0 {
		return a, true
	}
	a.Engine, a.Read = max(l.Acked-l.ToServer, 0), max(l.Known-l.Acked, 0)
	if at := l.Stamps.ServerCreated; at != 0 {
		a.Queue = min(max(at-l.ToServer, 0), a.Engine)
		a.Write = a.Engine - a.Queue
	}
	return a, true
}

// Leg returns the leg that served the client, or nil when nothing was
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

// ToServer is when the request was first written to an engine of the attempt that served the
// client.
func (r *Record) ToServer() int64 {
	if len(r.Attempts) == 0 {
		return 0
	}
	var first int64
	for i := range r.Attempts[len(r.Attempts)-1].Legs {
		if at := r.Attempts[len(r.Attempts)-1].Legs[i].ToServer; at != 0 && (first == 0 || at < first) {
			first = at
		}
	}
	return first
}

// OutputDelay is what the first token took from its sending by the engine, as far as the
// engine stamps that, and otherwise from its reading, to its writing; 0 where none was
// written.
func (r *Record) OutputDelay() time.Duration {
	from := r.FirstReceived
	if leg := r.Leg(); leg != nil && leg.Stamps.FirstOutput > 0 {
		from = leg.Stamps.FirstOutput
	}
	if from == 0 || r.FirstFlushed == 0 {
		return 0
	}
	return time.Duration(max(r.FirstFlushed-from, 0))
}

// Slowest is the stage that took longest.
func (r *Record) Slowest() (stage Stage, ns int64) {
	for s, spent := range r.Ledger.Spent {
		if spent > ns {
			stage, ns = Stage(s), spent
		}
	}
	return stage, ns
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
