package trace

import (
	"net/netip"

	"weir/internal/infer"
)

// Record is the timeline of one request. Each request has exactly one. Stamps are
// nanoseconds on the timeline's clock. Zero means that the moment never came.
type Record struct {
	RequestID string   // the caller's id, which need not be unique, or else weir's
	Trace     *Context // its place in a trace; nil: in none
	Key       string   // the name of the caller's key; empty: none
	Tenant    string   // the tenant of the key
	Endpoint  string   // path of the API called
	Model     string
	Client    netip.Addr // the client's address, or that of a proxy that does not name its client
	Stream    bool
	Outcome   infer.Outcome
	Status    int32  // HTTP status sent, 0 when none was
	Code      string // infer.Code of the error, empty when finished
	Message   string // the error's message

	PromptTokens, CompletionTokens int
	BytesIn                        int64
	Used                           Used

	Arrival, Received, Parsed, Rendered int64
	TokenizeStart, TokenizeEnd          int64
	Queued, Routed                      int64
	Finished                            int64

	// The fields that change with each output of a stream are next to each other.
	Ledger                      Ledger
	Flushes                     int32 // writes that carried output
	CachedTokens                int32 // of the prompt, as the engine states it
	BytesOut                    int64
	FirstReceived, FirstFlushed int64
	Pace                        *Pace // nil: nothing was read from an engine

	Attempts []Attempt

	// Live streams of the whole gateway, so that lateness can be plotted against
	// load.
	LiveAtArrival, LiveAtFirstToken       int32
	PendingAtArrival, PendingAtFirstToken int32

	Stalls []Stall // during the request
}

// Pace is how the outputs of a request came.
type Pace struct {
	// Sent is when weir gave the first output to the kernel: what follows until FirstFlushed is the
	// client's time.
	Sent   int64
	Last   int64 // when the latest output was read
	Tokens int32 // that were taken; of a relayed stream, its events
	Gap    Gap
}

// Gap is the longest time from one output of a request until the next one was taken. It has three
// parts: before weir had read that output, while the client did not take what was written, and
// the rest, in which weir had it.
type Gap struct {
	For            int64 // 0: there were no two outputs
	Before, Client int64
	Token          int32 // the token that ended it, counted from 1
	Attempt        int32 // the attempt whose engine sent it
}

// Weir returns the part of the gap in which weir had the output.
func (g *Gap) Weir() int64 { return g.For - g.Before - g.Client }

// Used is what a request adds to its tenant's usage: the tokens of an answer of an engine,
// complete or not. A request without output uses nothing. A prompt counts once even if a second
// engine computed it again.
type Used struct {
	Prompt, Cached, Completion int32
	// Estimated is set for a relayed answer whose engine has not stated its final
	// counts. The prompt is then estimated by its size, and the completion is the number
	// of events, or of an answer that is no stream estimated by its size.
	Estimated bool
	// Clipped is set if the engine stated more than the request can have used.
	Clipped bool
}

// Attempt is one try at one engine, or one prefill/decode pair.
type Attempt struct {
	Legs   []Leg
	Choice Choice
	// Prefill states how the prefill engine was chosen, if there was one. In that case the
	// wait of Choice's options is the wait for the prompt's KV, and their Others includes the
	// requests that the prompt delays.
	Prefill *Choice
	// Turn describes the wait for the request's turn, nil if it did not wait.
	Turn *Turn
	// Repeated is set if the request went to another engine afterwards. MayHaveRun is set
	// if this attempt's engine may have begun with it.
	Repeated, MayHaveRun bool
	// Continued is set if another engine continued the stream after the Given ids of this
	// attempt. The client has had each of them once.
	Continued bool
	Given     int32
}

// Turn is the state of the queue when a request began to wait for its turn, and what the
// request was charged.
type Turn struct {
	Band, Tenant string
	Own          int32   // waiting requests of its tenant
	Others       int32   // waiting requests of other tenants
	Tenants      int32   // those tenants
	Charged      float32 // milliseconds
}

// Choice records how the engine of an attempt was chosen and what was predicted. Each
// stream keeps it until it ends, so it is small.
type Choice struct {
	Why       string   // the reason that decided
	Of        int32    // number of engines to choose from
	Length    int32    // tokens of the prompts, a shared beginning counted once
	Cached    int32    // tokens of the prompts that the engine reports as cached; -1: not reported
	Available int32    // the largest number of cached tokens predicted at any of the engines
	Best      []Option // the options of the lowest cost, and the chosen one
	Chosen    int8     // index of the chosen engine in Best
	// Unknown is set if the blocks of the prompts, and so their cached part, are not
	// known.
	Unknown bool
	// Regret is the predicted cost at the chosen engine minus the lowest predicted cost, in
	// milliseconds.
	Regret float32
}

// Option is an engine as the choice saw it. Times are predictions in milliseconds.
type Option struct {
	Engine   string
	Resident int32 // tokens of Length that were predicted to be cached there
	Decoders int32 // requests that decode there when the prefill begins
	// Wait is the time from the choice until the prefill begins. Room is the part of it
	// until the cache has room. Prefill is the duration of the request's own prefill,
	// Decode the part of its decoding that the cost includes. Others is the sum of the
	// delays of all other requests there.
	Wait, Room, Prefill, Decode, Others float32
	Cold                                bool // too few measurements for a reliable prediction
	Half                                bool // it would serve one half of the request
}

// TTFT returns the predicted time from the choice to the first token.
func (o *Option) TTFT() float32 { return o.Wait + o.Prefill }

// Total returns the cost that the choice compares.
func (o *Option) Total() float32 { return o.Wait + o.Prefill + o.Decode + o.Others }

// Resident returns how many tokens of the prompt were predicted to be cached at the
// engine that computes it.
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
	Role string // "full", "prefill" or "decode"
	// RequestID is weir's id of the request on the engine's wire, empty if each of
	// several choices has its own.
	RequestID string
	Engine    string
	Kind      string // the engine's, as in --engine KIND=URL
	DPRank    int    // -1: the engine has none
	Outcome   string
	Caller    *Caller // what the engine gets of the trace; nil: nothing. Set until the request has ended
	// Handed, ToServer, Acked and Known are times of the gateway: the request was handed
	// to the adapter, it was written, its acknowledgement was read, and the goroutine
	// that handed it over learned of that.
	Handed, ToServer, Acked, Known int64
	// Answered is when a prefill half had ended. Fetched is the same time if its engine
	// ends it only after the KV is at the decode engine.
	Answered, Fetched int64
	// Stamps are the engine's own, on the gateway's clock.
	Stamps infer.Stamps
}

// Ack divides the time of an acknowledgement. A part that the wire does not report is
// negative.
type Ack struct {
	// Send is the wait of the gateway until the request is sent. Over HTTP it includes
	// connecting.
	Send int64
	// Engine is the time at the engine and on the network, both ways. Queue and Write
	// are parts of it: before the engine accepted the request, and after.
	Engine, Queue, Write int64
	// Read is the wait of the gateway from the reading of the acknowledgement until
	// it is noticed.
	Read int64
}

// NumAckParts is how many parts an Ack has.
const NumAckParts = 5

// AckParts are the names of the parts, in the order of Ack.Parts.
var AckParts = [NumAckParts]string{"send", "engine", "queue", "write", "read"}

// Parts returns the parts in the order of AckParts.
func (a *Ack) Parts() [NumAckParts]int64 {
	return [NumAckParts]int64{a.Send, a.Engine, a.Queue, a.Write, a.Read}
}

// Ack divides the time of the leg's acknowledgement. ok is false if the request was not
// sent. Without an acknowledgement, which a relay never has, only Send is known.
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

// Leg returns the leg that served the client, or nil if nothing was dispatched.
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

// ToServer returns when the request was first written to an engine of the attempt that
// served the client.
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

// TTFT returns the time from the arrival until the first output was written. ok is false for an
// answer that is not streamed: it is written at its end, and has no first token of its own.
func (r *Record) TTFT() (ns int64, ok bool) {
	return r.FirstFlushed - r.Arrival, r.Stream && r.FirstFlushed != 0
}

// OutputDelay returns weir's own part of the output path: the time from the reading of the first
// output until weir gave it to the kernel. An answer that is not streamed is written when its
// engine is done, so its delay begins with the last output. ok is false if nothing was written.
func (r *Record) OutputDelay() (ns int64, ok bool) {
	sent := r.FirstSent()
	if r.FirstReceived == 0 || sent == 0 {
		return 0, false
	}
	from := r.FirstReceived
	if !r.Stream && r.Pace.Last <= sent {
		from = r.Pace.Last
	}
	return max(sent-from, 0), true
}

// FirstSent returns when weir gave the first output to the kernel, 0 if it never did.
func (r *Record) FirstSent() int64 {
	if r.Pace == nil {
		return 0
	}
	return r.Pace.Sent
}

// Hop returns the time from the engine's stamp of its first output until weir had read it, which
// is that of the engine's server process and of the network. ok is false if the engine does not
// stamp its output: the hop is not known then.
func (r *Record) Hop() (ns int64, ok bool) {
	leg := r.Leg()
	if leg == nil || leg.Stamps.FirstOutput == 0 || r.FirstReceived == 0 {
		return 0, false
	}
	return max(r.FirstReceived-leg.Stamps.FirstOutput, 0), true
}

// Slowest returns the stage that took longest.
func (r *Record) Slowest() (stage Stage, ns int64) {
	for s, spent := range r.Ledger.Spent {
		if spent > ns {
			stage, ns = Stage(s), spent
		}
	}
	return stage, ns
}

// Total returns the time from arrival to finish.
func (r *Record) Total() int64 { return r.Finished - r.Arrival }

// Residual returns the part of the total that no stage explains.
func (r *Record) Residual() int64 {
	left := r.Total()
	for _, ns := range r.Ledger.Spent {
		left -= ns
	}
	return left
}
