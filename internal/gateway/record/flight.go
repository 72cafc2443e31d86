package record

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"weir/internal/trace"
)

// This file lists the requests in flight, which may be tens of thousands, without delaying
// any of them. A token must pay nothing for it, and no lock may be held for longer than a
// copy of pointers.
//
// The obvious way, an atomic store for each stage that a request enters, costs each token
// half a dozen stores. A request therefore publishes its stage only until its first output,
// some ten times. After that the stage is derived from state that the output path keeps
// anyway: a driven stream is either parked or in its turn, and Wait has the time since
// when the engine is awaited. The number of tokens is read by briefly taking the turn of a
// parked stream.

// Stream is a request in flight. Its methods never wait, and anyone may call them at any time.
type Stream interface {
	// Account returns the request's account.
	Account() *Request
	// Parked reports whether the stream, which is driven, waits for its next event.
	Parked() bool
	// Tokens returns how many tokens the request has had so far. ok is false if that cannot
	// be known without waiting.
	Tokens() (n int, ok bool)
	// End ends the request.
	End(cause error)
}

// view is what others may read of a request at any time.
type view struct {
	slot   int32 // of its shard, whose lock guards it
	shard  uint8
	driven atomic.Bool  // its stream is driven from now on
	stage  atomic.Int64 // the latest published stage, and since when: see staged
	known  atomic.Pointer[known]
	wait   atomic.Pointer[Wait] // of the latest attempt
	// The generations of the engines that the latest attempt is relayed to; 0: there is none.
	engines [2]atomic.Uint64
}

// Wait is what others may read of a request's wait for its engine. Since is the time when the
// wait began, or one of the two below.
type Wait struct{ Since atomic.Int64 }

// The values of Wait.Since while nobody waits.
const (
	AtWork = 0
	Over   = -1
)

// known is what is known of a request so far. It does not change.
type known struct {
	id, model       string
	stream          bool
	prompt          int // tokens; 0: not known yet, or not to weir
	engine, prefill string
	attempt         int
}

// staged packs a stage and when it began, in microseconds.
func staged(stage trace.Stage, now int64) int64 { return now/1000<<5 | int64(stage) }

func unstaged(v int64) (stage trace.Stage, since int64) { return trace.Stage(v & 31), v >> 5 * 1000 }

// Publish publishes the beginning of a stage.
func (q *Request) Publish(stage trace.Stage, now int64) { q.view.stage.Store(staged(stage, now)) }

// Known publishes the facts about the request that are known now.
func (q *Request) Known() {
	k := &known{id: q.RequestID, model: q.Model, stream: q.Stream, prompt: q.PromptTokens, attempt: len(q.Attempts)}
	if leg := q.Leg(); leg != nil {
		k.engine = leg.Engine
		if first := &q.Attempts[len(q.Attempts)-1].Legs[0]; first != leg {
			k.prefill = first.Engine
		}
	}
	q.view.known.Store(k)
}

// Relayed publishes the generations of the engines that the latest attempt is relayed to; 0 for
// none.
func (q *Request) Relayed(target, partner uint64) {
	q.view.engines[0].Store(target)
	q.view.engines[1].Store(partner)
}

// RelayedAt reports whether the latest attempt is relayed to an engine of a generation.
func (q *Request) RelayedAt(generation uint64) bool {
	return q.view.engines[0].Load() == generation || q.view.engines[1].Load() == generation
}

// Driven publishes that the stream is driven from now on.
func (q *Request) Driven() { q.view.driven.Store(true) }

// IsDriven reports whether the stream is driven.
func (q *Request) IsDriven() bool { return q.view.driven.Load() }

// Awaits publishes the wait of the latest attempt.
func (q *Request) Awaits(w *Wait) { q.view.wait.Store(w) }

// AwaitsNoMore takes a wait back, unless a later attempt has published its own.
func (q *Request) AwaitsNoMore(w *Wait) { q.view.wait.CompareAndSwap(w, nil) }

// stageOf is the stage at hand and since when; 0 where that is not known.
func stageOf(s Stream) (stage trace.Stage, since int64) {
	v := &s.Account().view
	stage, since = unstaged(v.stage.Load())
	w := v.wait.Load()
	if stage != trace.Engine || w == nil {
		return stage, since
	}
	if v.driven.Load() && !s.Parked() {
		return trace.Receive, 0 // its turn comes, or goes on
	}
	switch at := w.Since.Load(); at {
	case Over:
		return trace.Finish, 0
	case AtWork:
		return trace.Flush, 0
	default:
		return trace.Engine, max(since, at)
	}
}

// flights are the requests under way. Each has a place in one of the shards, so that
// those who come and go do not meet, and a reader copies a few hundred pointers at a time.
type flights struct {
	next   atomic.Uint32
	count  atomic.Int64
	shards [64]struct {
		mu  sync.Mutex
		all []Stream
		_   [32]byte // a cache line each
	}
}

func (fs *flights) enter(x Stream) {
	fs.count.Add(1)
	v := &x.Account().view
	v.shard = uint8(fs.next.Add(1) % uint32(len(fs.shards)))
	s := &fs.shards[v.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	v.slot = int32(len(s.all))
	s.all = append(s.all, x)
}

func (fs *flights) leave(x Stream) {
	fs.count.Add(-1)
	v := &x.Account().view
	s := &fs.shards[v.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.all[len(s.all)-1]
	s.all[v.slot], last.Account().view.slot = last, v.slot
	s.all[len(s.all)-1] = nil
	s.all = s.all[:len(s.all)-1]
}

// list returns all of them, in no order.
func (fs *flights) list() []Stream {
	all := make([]Stream, 0, fs.count.Load()+64)
	for i := range fs.shards {
		s := &fs.shards[i]
		s.mu.Lock()
		all = append(all, s.all...)
		s.mu.Unlock()
	}
	return all
}

// Enter shows a request to those who look on.
func (r *Recorder) Enter(s Stream) { r.flights.enter(s) }

// Leave ends that, and the request is live no more.
func (r *Recorder) Leave(s Stream) {
	r.flights.leave(s)
	r.live.Add(-1)
}

// Streams returns the requests in flight, in no order.
func (r *Recorder) Streams() []Stream { return r.flights.list() }

// Query selects requests in flight. Its zero value selects all.
type Query struct {
	Model  string
	Engine string      // of the latest attempt
	Stage  trace.Stage // NumStages: any
	Limit  int         // 0 means 100
}

// InFlight are the requests in flight that a query selects.
type InFlight struct {
	Total    int
	Stages   [trace.NumStages]int // how many are in each
	Matched  int
	Requests []Underway // the oldest first
}

// Underway is a request in flight. Fields that are not known yet are zero.
type Underway struct {
	RequestID, Model, Endpoint, Dialect string
	Client                              netip.Addr
	Stream                              bool
	Engine, PrefillEngine               string // of the latest attempt
	Attempt                             int
	PromptTokens                        int
	Tokens                              int // so far; -1: not known
	Arrival                             int64
	Stage                               trace.Stage
	Since                               int64 // when it began; 0: not known
}

// seen is a request as it was found.
type seen struct {
	s       Stream
	arrival int64
	stage   trace.Stage
	since   int64
}

// oldest is the oldest requests of those that were added, in their order. Nearly all of
// many are younger than those few, and cost a comparison.
type oldest struct {
	most int
	all  []seen
}

func (o *oldest) add(s seen) {
	full := len(o.all) == o.most
	if full && s.arrival >= o.all[len(o.all)-1].arrival {
		return
	}
	if full {
		o.all = o.all[:len(o.all)-1]
	}
	at, _ := slices.BinarySearchFunc(o.all, s.arrival, func(e seen, arrival int64) int { return cmp.Compare(e.arrival, arrival) })
	o.all = slices.Insert(o.all, at, s)
}

// InFlight returns the requests in flight, without the dialects of their endpoints. No request
// waits for it.
func (r *Recorder) InFlight(q Query) InFlight {
	all := r.flights.list()
	found := InFlight{Total: len(all)}
	oldest := oldest{most: cmp.Or(q.Limit, 100)}
	for _, s := range all {
		stage, since := stageOf(s)
		found.Stages[stage]++
		account := s.Account()
		k := account.view.known.Load()
		if k == nil {
			k = new(known)
		}
		if q.Stage != trace.NumStages && stage != q.Stage || q.Model != "" && q.Model != k.model || q.Engine != "" && q.Engine != k.engine && q.Engine != k.prefill {
			continue
		}
		found.Matched++
		oldest.add(seen{s, account.Arrival, stage, since})
	}
	for _, m := range oldest.all {
		found.Requests = append(found.Requests, underway(m))
	}
	return found
}

// underway returns the view of a request. It uses only those fields of the record that
// were set when the request began.
func underway(m seen) Underway {
	q := m.s.Account()
	u := Underway{RequestID: q.ID, Endpoint: q.Endpoint, Client: q.Client, Arrival: q.Arrival, Stage: m.stage, Since: m.since, Tokens: -1}
	if k := q.view.known.Load(); k != nil {
		u.RequestID, u.Model, u.Stream, u.PromptTokens = k.id, k.model, k.stream, k.prompt
		u.Engine, u.PrefillEngine, u.Attempt = k.engine, k.prefill, k.attempt
	}
	if n, ok := m.s.Tokens(); ok {
		u.Tokens = n
	}
	return u
}
