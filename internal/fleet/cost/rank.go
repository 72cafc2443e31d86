package cost

import (
	"math"
	"sync"
	"sync/atomic"
)

const millisecond = 1e6 // nanoseconds

// Work is a request as an engine rank would have it.
type Work struct {
	Length int // of the prompt, in tokens
	New    int // of them those that are not resident there
	// Output is how many tokens are expected of it.
	Output float64
	// Unseen is set if its first token does not show itself. It is believed to come when
	// that is predicted, and nothing is learned from it.
	Unseen bool
	// Part is that of the request which the rank has. After is in how many milliseconds the
	// prompt's KV is there that another rank computes, of a DecodePart.
	Part  Part
	After float32
}

// Part is a rank's part in a request, where prefill and decode run on two engines.
type Part uint8

// The parts.
const (
	Whole       Part = iota
	PrefillPart      // the rank computes the prompt, and keeps its KV until that was fetched
	DecodePart       // it fetches the prompt's KV and generates; New is what it lacks of it
)

// Estimate is what a request would cost, in milliseconds.
type Estimate struct {
	Wait    float64 // until its prefill begins
	Room    float64 // of that, until there is a place and room in the cache for it
	Late    float64 // of that, since what waits there is late
	Prefill float64 // its own, with the decoding done in the same steps
	Decode  float64 // its own steps, from the first token to the last
	Others  float64 // by which those that decode there are delayed, by its prefill and its steps, added up
	// Evicts is how long those wait that will ask for what it evicts.
	Evicts float64
	// StepTime is that of a decoding step with it.
	StepTime float64
	Decoders int // that are there without it when its prefill begins
	// Total is all of these.
	Total float64
	// Cold is set if too little was measured to rely on it.
	Cold bool
}

// TTFT is the predicted time to the first token, in milliseconds.
func (e *Estimate) TTFT() float64 { return e.Wait + e.Prefill }

// Rank is the books of one engine rank, and what has been learned of it.
type Rank struct {
	quote
	*books
}

// books are what is booked on a rank, and what is learned of that. Their parts are read by each
// decision without a lock, but for prefilling, sharing and what of learning says so.
type books struct {
	model *Model
	learning
	crowd
	strangers
	cache
	capacity
	grace atomic.Int64 // by how much the oldest may be late: its own prefill, and its wait for room, ns

	mu sync.Mutex
	prefilling
	sharing

	_ [64]byte // so that tokens slow down no estimate
	generated
}

// crowd is the requests in flight on a rank. It changes under the lock.
type crowd struct {
	inFlight atomic.Int64
	pending  atomic.Int64 // tokens booked for prefill whose first token has not come
	prompts  atomic.Int64 // tokens
	computed atomic.Int64 // tokens of prompts ever given to the rank's cache
	decoders atomic.Int64 // of the requests those that have their first token
	prefills atomic.Int32 // of the requests those of which the rank has the prefill part
	unfilled atomic.Int32 // of them those whose prompt is not computed
}

// cache is what is known of the rank's KV cache.
type cache struct {
	kv   atomic.Int64 // tokens that it holds
	left atomic.Int64 // tokens for which it has room beside what requests use
}

// generated has the fields that each token changes.
type generated struct {
	tokens  atomic.Int64 // of all requests
	ended   atomic.Int64 // of them those of requests that have ended
	stepped atomic.Int64 // when some came last
}

// add counts n more tokens, which came at time now.
func (g *generated) add(now int64, n int) {
	g.tokens.Add(int64(n))
	if g.stepped.Load() != now {
		g.stepped.Store(now)
	}
}

// growing is the number of tokens that the requests on the rank have generated so far.
func (g *generated) growing() int64 { return g.tokens.Load() - g.ended.Load() }

// DefaultBudget is the budget of a step where none is known.
const DefaultBudget = 8192

func newRank(prior Coefficients, budget int, now int64) *Rank {
	r := &Rank{books: &books{learning: learning{fit: NewFit(prior)}, prefilling: prefilling{last: now}}}
	r.left.Store(math.MaxInt64)
	r.drained.Store(now) // clocks need not begin at 0
	r.floor.Store(^0)
	if budget <= 0 {
		budget = DefaultBudget
	}
	r.learned.Store(&learned{Coefficients: prior, budget: float64(budget), sureness: r.fit.sureness, at: now})
	r.publish()
	return r
}

// Estimate returns what the work would cost at time now. It takes no lock and allocates
// nothing.
func (r *Rank) Estimate(now int64, w Work) (e Estimate) {
	r.estimate(now, &w, &e)
	return e
}

// estimate is Estimate for those who have the work: it is not copied where a thousand ranks
// are asked.
func (r *Rank) estimate(now int64, w *Work, e *Estimate) {
	l, at := r.learned.Load(), r.model.Moment(now)
	e.Cold = l.seen < trusted
	room := w.New
	if w.Part == DecodePart { // an engine begins none that has no room for its answer
		room += int(w.Output)
	}
	booked, floor, late := r.queued(now)
	unseen := r.Unseen(now)
	e.Late = max(late-unseen, 0)
	s := State{
		Wait: float64(booked)/millisecond + unseen + e.Late, Room: r.room(room), Keeps: r.keeps(w), Decoders: int(r.crowds()), Horizon: at.Horizon, Later: at.Later, Budget: l.budget, Shared: floor > 0,
		Evicted: evicted(r.space.Load(), float64(w.New)+w.Output),
	}
	if w.Part == PrefillPart {
		// In the time that it stays, as many come as are there, and wait for it.
		s.Later = float64(r.unfilled.Load())
	}
	if l.seen > 0 && now-l.at <= fresh {
		l.Coefficients.estimate(&s, w, e)
	} else {
		c := l.drifted(now, r.model.median.Load())
		c.estimate(&s, w, e)
	}
	if e.Cold && w.Part != DecodePart {
		e.Total *= r.doubt(w.New)
	}
}

// unproven is the factor by which a rank may be slower of which too little was
// measured. It counts as that much slower once a step is booked there, so that a slow
// rank delays few requests. If all ranks are unproven, or the others are full, requests
// do not wait for measurements.
const unproven = 2

// doubt is by how much n tokens more count where too little was measured.
func (r *Rank) doubt(n int) float64 {
	if p := r.Pending(); p > 0 && p+int64(n) > int64(r.Budget()) {
		return unproven
	}
	return 1
}

// Total is Estimate's, for those who ask a thousand ranks of a model at the same moment.
func (r *Rank) Total(at *Moment, w *Work) (total, stepTime float64) {
	n := float64(w.New)
	crowd, ok := r.Plain(at.Now)
	if !ok {
		return r.total(at, w)
	}
	if n > r.reach.load() {
		return r.total(at, w)
	}
	floor := r.floor.Load()
	floor ^= floor >> 63 // its complement where it is one
	wait := float64(max(r.drained.Load()-at.Now, floor)) / millisecond
	if at.Now < r.foreign.Load() {
		wait += r.Unseen(at.Now)
	}
	outputs := at.Horizon
	if w.Output < outputs { // min would look for NaN
		outputs = w.Output
	}
	// Whether anything is booked on a rank is chance, so that a branch by it would be
	// mispredicted. Whole numbers are selected without one.
	steps, shared := math.Float64bits(1), math.Float64bits(n/r.budget.load())
	if floor > 0 {
		steps = shared
	}
	// The arithmetic of Coefficients.estimate, which of a struct made of words would be slow.
	share, k := math.Float64frombits(steps), crowd
	step, token := r.step.load(), r.token.load()
	tokens := n * (token + r.pair.load()*(float64(w.Length)-n/2))
	stepTime = r.stepTime.load()
	total = wait + (step*share + tokens) + share*r.mixing.load() + (step+tokens)*(k+at.Later) + outputs*stepTime + outputs*r.drag.load()
	if s := r.space.Load(); s>>32 != 0 {
		total += evicted(s, n+w.Output) * token * (1 + (k + at.Later))
	}
	return total, stepTime
}

// total is Total as Estimate finds it.
//
//go:noinline
func (r *Rank) total(at *Moment, w *Work) (total, stepTime float64) {
	var e Estimate
	r.estimate(at.Now, w, &e)
	return e.Total, e.StepTime
}

// Room is how full a rank's cache is, in tokens.
type Room struct {
	KV    int64 // that it holds
	InUse int64 // of them prompts of requests on the rank, what several have in common once
	Kept  int64 // of them prompts and answers, of requests or not
	// Reuse is the share of what it evicts that is asked for again.
	Reuse float64
}

// SetRoom sets the fill of the rank's cache. While it is unknown, no request is expected
// to wait for room, and no evictions are expected.
func (r *Rank) SetRoom(m Room) {
	r.mu.Lock()
	defer r.mu.Unlock()
	growing := r.growing()
	r.kv.Store(m.KV)
	r.left.Store(m.KV - m.InUse - growing)
	free := min(max(m.KV-m.Kept-growing, 0), math.MaxUint32)
	r.space.Store(uint64(math.Float32bits(float32(m.Reuse)))<<32 | uint64(free))
	r.publish()
}

// Roomy reports whether at least half of the rank's cache is known to be free, besides what the
// requests on it are expected to need yet.
func (r *Rank) Roomy() bool {
	kv := r.kv.Load()
	return kv > 0 && r.left.Load() >= kv/2
}

// evicted is how many tokens that will be asked for again have to leave a cache of so much
// space for n more.
func evicted(space uint64, n float64) float64 {
	return max(n-float64(uint32(space)), 0) * float64(math.Float32frombits(uint32(space>>32)))
}

// room is how long it takes until requests have ended that leave a place, and room in the
// cache for n tokens more, in milliseconds. An engine begins no prompt that has none.
func (r *Rank) room(n int) float64 {
	place := r.place()
	left := r.left.Load()
	if int64(n) <= left {
		return place
	}
	// All that is in use goes in the time that a request lasts, one after another. Of
	// more than the cache holds, as much as it holds goes in that time.
	kv := max(r.kv.Load(), 1)
	lasts := float64(max(-left, 0)) / float64(kv)
	lasts += min(float64(int64(n)-max(left, 0))/float64(min(max(kv-left, 1), kv)), 1)
	return max(lasts*math.Float64frombits(r.lasting.Load()), place)
}

// place is room's for a place alone.
func (r *Rank) place() float64 {
	places := r.places()
	if r.crowds() < places {
		return 0
	}
	return float64(r.crowds()+1-places) / float64(places) * math.Float64frombits(r.lasting.Load())
}

// keeps is for how long the work keeps its place, or its part of the cache, from those that
// wait for that, in milliseconds: for its part of the time that a request lasts.
func (r *Rank) keeps(w *Work) float64 {
	part := 1 / float64(r.places())
	if kv := r.kv.Load(); kv > 0 {
		part = max(part, min((float64(w.New)+w.Output)/float64(kv), 1))
	}
	return part * math.Float64frombits(r.lasting.Load())
}

// Model is the one that the rank serves.
func (r *Rank) Model() *Model { return r.model }

// Wait is how long it takes from now on until the prefill of a request would begin, in
// milliseconds.
func (r *Rank) Wait(now int64) float64 {
	return r.Booked(now) + r.Unseen(now)
}

// Next returns the longest time until some request on the rank shows progress, in
// milliseconds: others' work, the longest waiting prompt, and a step with as many other
// prompts as it has room for. An engine computes several prompts at once only in a step. The
// time is at most the whole work. ok is false if no better bound is known: among requests
// whose first token is not visible, any may be the next to show progress.
func (r *Rank) Next(now int64) (ms float64, ok bool) {
	l := r.learned.Load()
	pending := float64(r.pending.Load())
	if l.seen < trusted || pending <= 0 {
		return 0, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hidden > 0 {
		return 0, false
	}
	k := float64(r.decoders.Load())
	longest, end := 0.0, 0.0
	for _, b := range r.queue {
		a := Prefill(float64(max(b.work.New, 1)), float64(b.work.Length), l.budget)
		longest, end = max(longest, l.Of(a)+l.mixed(a, k)), max(end, float64(b.work.Length))
	}
	room := min(pending, l.budget)
	step := Amount{Steps: 1, Tokens: room, Pairs: room * end}
	return r.Unseen(now) + longest + l.Of(step) + l.mixed(step, k), true
}

// Booked is how much of Wait is for what this gateway has booked.
func (r *Rank) Booked(now int64) float64 {
	booked, _, _ := r.queued(now)
	return float64(booked) / millisecond
}

// crowds is the number of requests that decode on the rank when what is booked there
// has been prefilled. Those are none of it that decode elsewhere.
func (r *Rank) crowds() int64 {
	n := r.inFlight.Load() - int64(r.prefills.Load())
	if p := r.peers.Load(); p != nil {
		n += p.InFlight
	}
	return n
}

// InFlight is the number of requests on the rank.
func (r *Rank) InFlight() int64 { return r.inFlight.Load() }

// Prefills is how many of them it has the prefill part of, whose KV it keeps until that was
// fetched.
func (r *Rank) Prefills() int64 { return int64(r.prefills.Load()) }

// Decoders is how many of them have their first token, and decode there.
func (r *Rank) Decoders() int64 { return r.decoders.Load() }

// Pending is the number of tokens that are booked for prefill and whose first token
// has not come.
func (r *Rank) Pending() int64 { return r.pending.Load() }

// Held returns the number of tokens of the requests on the rank, prompts and outputs.
// Shared tokens count for each request.
func (r *Rank) Held() int64 {
	n := r.own()
	if p := r.peers.Load(); p != nil {
		n += p.Held
	}
	return n
}

// own is Held's of this gateway's requests.
func (r *Rank) own() int64 { return r.prompts.Load() + r.growing() }

// Growing returns the number of blocks of so many tokens that hold the output of
// requests on the rank so far. Each request has one that is not full.
func (r *Rank) Growing(blockTokens int64) int64 {
	return (r.growing() + (r.inFlight.Load()-int64(r.prefills.Load()))*blockTokens/2) / blockTokens
}

// Generated is the number of tokens that have ever come of it, first ones not among
// them.
func (r *Rank) Generated() int64 { return r.tokens.Load() }

// Placed is the number of tokens that have ever been given to the rank's cache.
func (r *Rank) Placed() int64 { return r.computed.Load() + r.tokens.Load() }

// SetBudget says what the rank turned out to have as its budget.
func (r *Rank) SetBudget(tokens int) {
	r.fitting.Lock()
	defer r.fitting.Unlock()
	if l := *r.learned.Load(); l.budget != float64(tokens) {
		l.budget = float64(tokens)
		r.learned.Store(&l)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.publish()
	}
}

// Budget is the most tokens that a step of the rank prefills.
func (r *Rank) Budget() int { return int(r.learned.Load().budget) }

// Tokens reports that a request on the rank got n more tokens at time now. It does not
// access the request's booking, which would be a cache miss among thousands; End
// reports the total.
func (r *Rank) Tokens(now int64, n int) { r.add(now, n) }

// Stood reports that the rank did nothing for a while up to time now, for another
// reason than its work. Nothing is learned from an interval that began before.
func (r *Rank) Stood(now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enter(Entry{Kind: stood, At: now})
	r.settle(now)
	r.stood = now
	r.group.before = Amount{}
	r.publish()
}

// Silent reports that the rank made no visible progress for so long, up to time now,
// that it may have stood still. Waits during that time are not attributed to others'
// work.
func (r *Rank) Silent(now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.enter(Entry{Kind: silent, At: now})
	r.silent = now
}
