// Package engine is the contract between the gateway and an inference engine. There are
// two kinds, because control flows in opposite directions. A Tokens engine receives
// token ids and pushes ids back. A Relay receives the caller's own bytes, and its
// answer is pulled. Each wire has one adapter package, which implements one of them.
package engine

import (
	"context"
	"io"
	"math"
	"net/http"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// Sink receives the deltas of one attempt. Offer never blocks and never fails: the
// reader of the sink finds what is wrong with a delta. It is called from one
// goroutine at a time, in order.
type Sink interface {
	Offer(d *infer.Delta)
}

// Read arranges for read to be called. read takes the output of a generation and returns at its
// end. If the sink's owner implements interface{ Read(func()) }, the owner's goroutine calls it
// when Generate has returned; otherwise a new goroutine does.
func Read(sink Sink, read func()) {
	if owner, ok := sink.(interface{ Read(read func()) }); ok {
		owner.Read(read)
		return
	}
	go read()
}

// Batch is notified around deltas that arrive at once for many streams. The goroutines
// that the sinks wake can then be woken once for all of them, and the batches can be
// measured.
type Batch interface {
	// Reader returns the notifications for one goroutine that takes in output of an
	// engine of this kind.
	Reader(kind string) Reader
}

// Reader belongs to one reader of an adapter. It calls Begin before it offers the deltas
// of a frame that holds output of many streams, with the time at which the frame was read.
// Afterwards it calls End with the number of streams that had output. Calls come in pairs
// and from one goroutine at a time. Neither blocks. Deltas may also be offered outside of
// a pair.
type Reader interface {
	Begin(received int64)
	End(streams int)
}

// NewReader returns a Reader of b, which may be nil.
func NewReader(b Batch, kind string) Reader {
	if b == nil {
		return untold{}
	}
	return b.Reader(kind)
}

// untold is a Reader that tells nobody.
type untold struct{}

// Begin implements Reader.
func (untold) Begin(int64) {}

// End implements Reader.
func (untold) End(int) {}

// Tokens is an engine that takes and returns ids.
//
// Generate hands req to the engine and returns once the engine confirmed that it has
// the request, or with an *infer.Error. After a nil error the sink gets the deltas of
// the attempt and, last, exactly one with Finish set for each choice; that also holds
// when the connection to the engine is lost and after Abort. After an error the sink
// gets nothing more. Deltas may reach the sink before Generate returns. ctx bounds
// only the hand-over; ending it later does nothing. An error that another engine may
// not have is Retryable, also after output.
//
// leg.DPRank is the rank that the request is for, one of Facts.Ranks. It is -1 if
// there are none.
//
// The adapter fills leg's stamps up to Acked before it returns; the engine's
// own stamps travel with the deltas.
type Tokens interface {
	Generate(ctx context.Context, req *infer.Request, attempt uint32, sink Sink, leg *trace.Leg) (Generation, error)
}

// Generation is an accepted request.
type Generation interface {
	// Abort requests that the engine stop. It does not wait, and may be called several
	// times and after the end, when it has no effect. Deltas in flight still reach the
	// sink.
	Abort()
}

// Relay is an engine that receives the caller's request unchanged.
//
// Forward sends it and returns when the engine's response head was read, or with an
// *infer.Error. The caller closes Response.Body. If the body was not read to its end,
// that closes the connection, by which the engine notices that the caller is gone.
type Relay interface {
	Forward(ctx context.Context, req *RelayRequest, leg *trace.Leg) (*RelayResponse, error)
}

// RelayRequest is what the caller sent.
type RelayRequest struct {
	Method string
	Path   string // with the query, "/v1/chat/completions"
	// Header has the caller's fields. Forward sends those that concern the two ends. It neither
	// changes nor keeps them.
	Header http.Header
	ID     string // sent as X-Request-Id, whatever the caller has sent
	Body   []byte
	// Waits delays the abort of a relayed request, which is the closing of its connection, until
	// the first byte of the answer's body has arrived or the Deferral ends. Forward and Read
	// still return at once when ctx ends. If it is nil, the abort is not delayed.
	Waits *Deferral
}

// RelayResponse is what the engine answered.
type RelayResponse struct {
	Status int
	// Fields are those that the caller may see, without the length.
	Fields Fields
	// Length is the length of the body in bytes as the answer states it, or -1.
	Length int64
	// RetryAfter is the time for which the engine asks to get no requests from any
	// caller; 0 if none.
	RetryAfter time.Duration
	// Framed is set if HTTP's framing marks the end of the answer, so that a truncated
	// answer ends with an error; otherwise the answer ends with its connection.
	Framed bool
	Body   io.ReadCloser
}

// Fields are fields of an answer.
type Fields interface {
	// Get returns the first value of a field, by its canonical name; empty if there is none.
	Get(name string) string
	// Put puts the fields into h, which has none of them.
	Put(h http.Header)
}

// Polled is a RelayResponse's Body that can be read without blocking. It serves a
// caller that polls the sockets of many answers itself. As before, one goroutine at a
// time reads and closes it.
type Polled interface {
	// Detach returns the socket for the caller to poll. The body still owns it. ok is
	// false if this answer cannot be polled, and then nothing changes. After Detach
	// only TryRead may read, and the end of Forward's ctx has no effect: the caller
	// closes the body instead, after it has removed the socket from its poller.
	Detach() (fd int, ok bool)
	// TryRead is Read without blocking: if nothing has arrived, it returns 0 and no error. Before
	// Detach it may also find nothing where something has arrived. drained is set if the socket
	// held nothing more. Otherwise it must be called again before the caller polls.
	TryRead(p []byte) (n int, drained bool, err error)
}

// Facts is what an engine reports about itself when it joins.
type Facts struct {
	Models        []string // names it serves; a relay may serve several
	ContextLength int      // 0 when unknown
	MaxRunning    int      // 0 when unknown
	KVTokens      int      // capacity of its KV cache, 0 when unknown
	StepTokens    int      // the most prompt tokens that it computes in a step, 0 when unknown
	SideBySide    int      // data-parallel ranks that step together; 0 is 1
	Software      string   // name and version, if it reports them
	Instance      string   // changes when the engine restarts
	// Carries is what a Tokens engine supports beyond what all of them do. A request
	// that needs more is not sent to it. For a Relay only Lacks is set.
	Carries infer.Carries
	// Lacks are features that the wire can carry and this engine does not, with the
	// reasons.
	Lacks []infer.Lack
	// LoRA are the adapters that a Tokens engine serves beside its model.
	LoRA []LoRA
	// Verify is how a Relay's streams are verified.
	Verify infer.Verify
	// Salts reports whether requests to it carry a cache salt.
	Salts Salts
	// KVEvents is where the engine publishes the content of its KV cache, if it has no
	// ranks.
	KVEvents KVEvents
	// Role is the engine's part in requests as it reports it, valid if RoleSaid is set.
	// Meets is how its half of a request meets the other one, whatever its role.
	Role     infer.Role
	RoleSaid bool
	Meets    Meets
	// Forgets is set if the engine was started without a prefix cache, so that it never
	// finds a prompt of another request in its KV cache.
	Forgets bool
	// Old are the pages of the engine that could not be read lately. The facts that they state
	// are those of the last time.
	Old []Old
	// Ranks are the data-parallel ranks in the order of their numbers. It is empty if
	// the wire has no ranks. All other fields except StepTokens apply to all ranks
	// together.
	Ranks []Rank
}

// Old is a page of an engine that could be read before and cannot be read now.
type Old struct {
	Page  string // its path, or AllPages
	Since int64  // when it was read last
	Why   string // it could not be read then
}

// AllPages are all pages of an engine, none of which answers.
const AllPages = "all"

// Salts states whether requests to an engine carry a cache salt. Prompts with different
// salts share nothing in the engine's prefix cache.
type Salts struct {
	// Carried is set if they do.
	Carried bool
	// Why states why they do not, and what to do. Its subject is the engine.
	Why string
	// Paths has, for a Relay, the fields by which bodies carry the salt. It is nil for a token
	// engine.
	Paths SaltPaths
	// Untold is set if the engine's KV events name no salts, so that they do not show the
	// blocks of prompts that have one.
	Untold bool
}

// SaltPaths has the fields by which requests of a relayed engine carry a cache salt. Facts are
// compared to find changes, so it must equal (reflect.DeepEqual) another one that has the same
// fields. No func does.
type SaltPaths interface {
	// At returns the fields of a body for a path; none if it carries no salt.
	At(path string) []string
}

// Check returns an error for a request with a salt if none is carried. The gateway hands an
// engine no such request; the check covers an engine that has changed since.
func (s *Salts) Check(req *infer.Request) *infer.Error {
	if req.CacheSalt == "" || s.Carried {
		return nil
	}
	err := infer.Errorf(infer.CodeUnsupported, "the engine cannot keep callers' caches apart: it %s", s.Why)
	err.Retryable = true // another may
	return err
}

// Rank is one data-parallel rank of an engine: a queue, a batch and a KV cache of its own.
type Rank struct {
	Number   int
	Ready    bool   // requests can be handed to it now
	Instance string // changes when the rank restarts; empty: not reported
	KVTokens int    // capacity of its KV cache, 0 when unknown
	// MaxRunning is how many requests it runs at once, 0 when unknown.
	MaxRunning int
	KVEvents   KVEvents // where it publishes the content of its KV cache
	Without    []string // the engine's LoRA adapters that this rank cannot use
}

// LoRA is a low-rank adapter of an engine's model. Requests name it like a separate
// model, which has the tokenizer and the template of the engine's model.
type LoRA struct {
	Name  string
	Fault string // why the engine cannot use it; empty: it can
}

// Load is what an engine last reported of its load.
type Load struct {
	Running, Waiting int
	// KVUsage is the share of its KV cache that is in use, negative if not reported.
	KVUsage float64
	// Ranks are the loads of the data-parallel ranks, if the engine reports each.
	Ranks []RankLoad
}

// RankLoad is the Load of one data-parallel rank.
type RankLoad struct {
	Rank             int
	Running, Waiting int
	KVUsage          float64
	// Behind is how much older the rank's report is than the latest one of any rank; 0 if
	// reports have no times.
	Behind time.Duration
}

// Behind is how much older a rank's report is than the latest one of any rank, by their times in
// seconds. A report without a time is not.
func Behind(at, latest float64) time.Duration {
	if !(at > 0) || !(latest > at) {
		return 0
	}
	return time.Duration(min(latest-at, math.MaxInt32) * float64(time.Second))
}

// SumLoads returns the load of an engine from the loads of its ranks, of which there
// is at least one. Its KVUsage is their mean. Its Ranks are set if there are several.
func SumLoads(ranks []RankLoad) (sum Load) {
	for _, r := range ranks {
		sum.Running += r.Running
		sum.Waiting += r.Waiting
		sum.KVUsage += r.KVUsage / float64(len(ranks))
	}
	if len(ranks) > 1 {
		sum.Ranks = ranks
	}
	return sum
}

// Loaded is an Adapter whose wire reports the engine's load. ok is false until the
// first report.
type Loaded interface {
	Load() (l Load, ok bool)
}

// State states whether requests can be handed to the engine now, and if not, why. An
// adapter reports every change of it.
type State struct {
	Ready bool
	Facts Facts
	Err   error // why not ready
	// Note is what the operator should know although nothing is wrong.
	Note string
	// Via is set by an adapter that delegates: the adapter that it delegates to now,
	// and its kind. It is nil while that is unknown.
	Via  Adapter
	Kind string
}

// Stand is an Adapter that delegates to another one, because the kind of the engine
// shows only when it answers. Its reports name the other. It is neither Tokens nor
// Relay.
type Stand interface {
	Adapter
	Stands()
}

// Adapter is a connection to one engine, of either kind. Run serves it until
// ctx ends: it connects, reads the facts, reports each change of state, and
// reconnects after a loss. Every goroutine the adapter starts has ended when
// Run returns, and every generation has had its terminal delta.
type Adapter interface {
	Run(ctx context.Context, report func(State))
}
