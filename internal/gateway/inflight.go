package gateway

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/trace"
)

// This file lists the requests in flight, which may be tens of thousands, without delaying
// any of them. A token must pay nothing for it, and no lock may be held for longer than a
// copy of pointers.
//
// The obvious way, an atomic store for each stage that a request enters, costs each token
// half a dozen stores. A request therefore publishes its stage only until its first output,
// some ten times. After that the stage is derived from state that the output path keeps
// anyway: a driven stream is either parked or in its turn, and silence has the time since
// when the engine is awaited. The number of tokens is read by briefly taking the turn of a
// parked stream.

// flight is what others may read of a request at any time.
type flight struct {
	slot    int32 // of its shard, whose lock guards it
	shard   uint8
	driven  atomic.Bool  // its stream is driven from now on
	stage   atomic.Int64 // the latest published stage, and since when: see staged
	known   atomic.Pointer[known]
	silence atomic.Pointer[silence] // of the latest attempt
	// The generations of the engines that the latest attempt is relayed to; 0: there is none.
	engines [2]atomic.Uint64
}

// at records the relayed engines of the latest attempt.
func (f *flight) at(target *route.Target, partner *partner) {
	f.engines[0].Store(relayedBy(target))
	second := uint64(0)
	if partner != nil {
		second = relayedBy(&partner.target)
	}
	f.engines[1].Store(second)
}

// relayedBy is the generation of an engine that is relayed, 0 of one that is not.
func relayedBy(t *route.Target) uint64 {
	if t.Relay == nil {
		return 0
	}
	return t.Generation
}

// CutAt ends the requests that are relayed to an engine of a generation, which was removed and
// whose requests have not ended in time. The adapter of a token engine ends its own.
func (g *Gateway) CutAt(name string, generation uint64) (n int) {
	e := &infer.Error{Code: infer.CodeUnavailable, Engine: name, Message: "the engine was removed before the answer was complete"}
	for _, x := range g.flights.list() {
		if x.flight.engines[0].Load() == generation || x.flight.engines[1].Load() == generation {
			x.end(e)
			n++
		}
	}
	return n
}

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

// knows publishes the facts about the request that are known now. Only the owner of the
// request calls it.
func knows(rec *trace.Record, f *flight) {
	k := &known{id: rec.RequestID, model: rec.Model, stream: rec.Stream, prompt: rec.PromptTokens, attempt: len(rec.Attempts)}
	if leg := rec.Leg(); leg != nil {
		k.engine = leg.Engine
		if first := &rec.Attempts[len(rec.Attempts)-1].Legs[0]; first != leg {
			k.prefill = first.Engine
		}
	}
	f.known.Store(k)
}

// tell publishes the beginning of a stage.
func (f *flight) tell(stage trace.Stage, now int64) { f.stage.Store(staged(stage, now)) }

// stageOf is the stage at hand and since when; 0 where that is not known.
func stageOf(x *exchange) (stage trace.Stage, since int64) {
	f := &x.flight
	stage, since = unstaged(f.stage.Load())
	s := f.silence.Load()
	if stage != trace.Engine || s == nil {
		return stage, since
	}
	if f.driven.Load() && x.state.Load() != parked {
		return trace.Receive, 0 // its turn comes, or goes on
	}
	switch at := s.since.Load(); at {
	case silenceOver:
		return trace.Finish, 0
	case silenceAtWork:
		return trace.Flush, 0
	default:
		return trace.Engine, max(since, at)
	}
}

// soFar is how many tokens the request has had so far; ok is false where that cannot
// be known without waiting.
func soFar(x *exchange) (n int, ok bool) {
	if x.flight.driven.Load() {
		if !x.state.CompareAndSwap(parked, running) {
			return 0, false // somebody else has its turn
		}
		n = x.sent
		for i := range x.booked.generations {
			n += x.booked.generations[i].tokens
		}
		x.park(waits) // which gives it a turn if something came meanwhile
		return n, true
	}
	if box := x.abortable.mailbox.Load(); box != nil {
		return box.Received()
	}
	return 0, false
}

// flights are the requests under way. Each has a place in one of the shards, so that
// those who come and go do not meet, and a reader copies a few hundred pointers at a time.
type flights struct {
	next   atomic.Uint32
	count  atomic.Int64
	shards [64]struct {
		mu  sync.Mutex
		all []*exchange
		_   [32]byte // a cache line each
	}
}

func (fs *flights) enter(x *exchange) {
	fs.count.Add(1)
	x.flight.shard = uint8(fs.next.Add(1) % uint32(len(fs.shards)))
	s := &fs.shards[x.flight.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	x.flight.slot = int32(len(s.all))
	s.all = append(s.all, x)
}

func (fs *flights) leave(x *exchange) {
	fs.count.Add(-1)
	s := &fs.shards[x.flight.shard]
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.all[len(s.all)-1]
	s.all[x.flight.slot], last.flight.slot = last, x.flight.slot
	s.all[len(s.all)-1] = nil
	s.all = s.all[:len(s.all)-1]
}

// list returns all of them, in no order.
func (fs *flights) list() []*exchange {
	all := make([]*exchange, 0, fs.count.Load()+64)
	for i := range fs.shards {
		s := &fs.shards[i]
		s.mu.Lock()
		all = append(all, s.all...)
		s.mu.Unlock()
	}
	return all
}

// InFlightQuery selects requests in flight. Its zero value selects all.
type InFlightQuery struct {
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
	x       *exchange
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

// InFlight returns the requests in flight. No request waits for it.
func (g *Gateway) InFlight(q InFlightQuery) InFlight {
	all := g.flights.list()
	found := InFlight{Total: len(all)}
	oldest := oldest{most: cmp.Or(q.Limit, 100)}
	for _, x := range all {
		stage, since := stageOf(x)
		found.Stages[stage]++
		k := x.flight.known.Load()
		if k == nil {
			k = new(known)
		}
		if q.Stage != trace.NumStages && stage != q.Stage || q.Model != "" && q.Model != k.model || q.Engine != "" && q.Engine != k.engine && q.Engine != k.prefill {
			continue
		}
		found.Matched++
		oldest.add(seen{x, x.rec.Arrival, stage, since})
	}
	for _, m := range oldest.all {
		found.Requests = append(found.Requests, underway(m.x, m.stage, m.since))
	}
	return found
}

// underway returns the view of a request. It uses only those fields of the record that
// were set when the request began.
func underway(x *exchange, stage trace.Stage, since int64) Underway {
	rec := x.rec
	u := Underway{RequestID: x.id, Endpoint: rec.Endpoint, Dialect: dialectOf(x.endpoint), Client: rec.Client, Arrival: rec.Arrival, Stage: stage, Since: since, Tokens: -1}
	if k := x.flight.known.Load(); k != nil {
		u.RequestID, u.Model, u.Stream, u.PromptTokens = k.id, k.model, k.stream, k.prompt
		u.Engine, u.PrefillEngine, u.Attempt = k.engine, k.prefill, k.attempt
	}
	if n, ok := soFar(x); ok {
		u.Tokens = n
	}
	return u
}
