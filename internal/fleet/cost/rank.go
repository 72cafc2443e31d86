package cost

import (
	"math"
	"slices"
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

// quote is what a decision reads of a rank that has a place, was measured, and is not late. It
// is two cache lines, which lie one behind the other where a thousand ranks are asked one after
// another (TestTwoLines). Each is a word by itself: who reads while they change may have some of
// before and some of after. They change under mu.
type quote struct {
	bid
	// floor is what of drained cannot have been done yet, in ns: those behind the oldest. It is
	// a complement where no first token is awaited, or the oldest does not show its own.
	floor   atomic.Int64
	foreign atomic.Int64  // until when Unseen is something
	space   atomic.Uint64 // float32: Room.Reuse; and uint32: tokens that nobody uses or has left
	reach   word          // tokens of a prompt that fit in one step, and in the cache's room
	budget  word          // the former alone
	step    word          // of Coefficients
	mixing  word          // what decoding adds to a step that prefills, in ms
	// With Rank.books they are 128 bytes.
}

// bid is the line of a quote that a bound of Total needs (Plain), which is all that a decision
// reads of most ranks.
type bid struct {
	// plain is until when the short way is right: nothing but what is in the quote is needed. Its
	// last bits are crowds (crowdBits).
	plain   atomic.Int64
	drained atomic.Int64 // when the booked prefills are predicted to be done
	// start is no more than what a step costs beside its tokens, for each that waits for it: the
	// coefficient, less what prompts that share the step pay of it. It is negative where the
	// bound is the cost (Told).
	start          word
	token, pair    word // Coefficients
	mixed          word // no more than mixing's share of the work
	stepTime, drag word // how long a step takes with one more, and by how much that one delays the others in it
}

// crowdBits are the last bits of plain, which are too few for a time to be told by.
const crowdBits = 1<<16 - 1

// word is a float64 that is read and written whole.
type word struct{ bits atomic.Uint64 }

func (w *word) load() float64   { return math.Float64frombits(w.bits.Load()) }
func (w *word) store(x float64) { w.bits.Store(math.Float64bits(x)) }

// books are what is booked on a rank, and what is learned of that.
type books struct {
	model *Model
	// fitting is held during a fit, which takes a hundred times as long as a change of
	// the books.
	fitting sync.Mutex
	fit     *Fit
	taken   []interval   // those that are being learned from
	pending atomic.Int64 // tokens booked for prefill whose first token has not come

	learned  atomic.Pointer[learned]
	inFlight atomic.Int64  // requests
	unseen   atomic.Uint64 // float64: ms that others' work was found to take
	unseenAt atomic.Int64  // when unseen was
	peers    atomic.Pointer[Peers]
	kv       atomic.Int64  // tokens that its cache holds
	left     atomic.Int64  // tokens for which it has room beside what requests use
	lasting  atomic.Uint64 // float64: ms from a request's first token to its end
	prompts  atomic.Int64  // tokens of requests in flight

	decoders atomic.Int64 // of the requests those that have their first token
	computed atomic.Int64 // tokens of prompts ever given to its cache
	prefills atomic.Int32 // of the requests in flight those of which it has the prefill part
	unfilled atomic.Int32 // of them those whose prompt is not computed
	grace    atomic.Int64 // by how much the oldest may be late: its own prefill, and its wait for room, ns

	mu     sync.Mutex
	hidden int        // requests in flight whose first token does not show itself
	noted  []interval // that nothing was learned from yet
	queue  []*Booking // without their first token, in the order of booking
	done   Amount     // prefilled, of all requests whose group is closed
	last   int64      // when that was
	stood  int64      // an interval that began by then is not used to learn the cost of work
	// silent: waits of requests handed over by then are not used to learn others' work.
	silent int64
	group  group
	capacity
	// lost is what may have been prefilled since then of requests that ended without a
	// first token, in milliseconds.
	lost float64
	// common are nil unless the rank is shared; entries are those since the last Tell, and given
	// those before it.
	common         *common
	entries, given []Entry
	merged         bool // these are the books of several gateways

	_ [64]byte // so that tokens slow down no estimate
	// Fields that each token changes.
	tokens  atomic.Int64 // generated, of all requests
	ended   atomic.Int64 // of them those of requests that have ended
	stepped atomic.Int64 // when some came last
}

// group are the first tokens that came together, from one step of the engine, and the
// interval that ended with them.
type group struct {
	members       []*Booking
	from, at      int64
	tokens, pairs float64
	decoders      float64 // beside them
	stamped       bool    // from is the engine's own
	full          bool    // some may have waited for room in the cache
	awaited       bool    // from is when a step began in which the engine only decoded
	before        Amount  // of an interval in doubt, which this one goes on
	unsure        float64 // milliseconds
}

// interval is an observation for the fit.
type interval struct {
	sort         Sort
	amount       Amount
	took, unsure float64
	ours         float64 // the share of the rank's requests that were this gateway's
	at           int64
}

// learned is what an estimate needs of the fit, in its first cache line.
type learned struct {
	Coefficients
	budget float64
	until  int64 // that it was measured counts as fresh; 0: too little was
	filled int64 // of what was seen, prefills
	at     int64 // when it was measured
	seen   int
	sureness
}

// lasts says until when it counts.
func (l learned) lasts() *learned {
	if l.until = 0; l.seen >= trusted {
		l.until = l.at + fresh
	}
	return &l
}

// DefaultBudget is the budget of a step where none is known.
const DefaultBudget = 8192

func newRank(prior Coefficients, budget int, now int64) *Rank {
	r := &Rank{books: &books{fit: NewFit(prior), last: now}}
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

// Coefficients are what has been learned, and from how many observations.
func (r *Rank) Coefficients() (c Coefficients, seen int) {
	l := r.learned.Load()
	return l.Coefficients, l.seen
}

// Errors are the standard errors of the coefficients.
func (r *Rank) Errors() Coefficients {
	l := r.learned.Load()
	return Coefficients{
		Step: l.Error(Amount{Steps: 1}), Token: l.Error(Amount{Tokens: 1}), Pair: l.Error(Amount{Pairs: 1}),
		Decode: l.Error(Amount{Decodes: 1}), Decoder: l.Error(Amount{Decoded: 1}),
	}
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

// Plain reports whether at time now the sum Busy + Fill (crowd + 1 + Later) + Mixed + outputs
// (Steps) is a lower bound of Total: the rank's booked work, the prefill for all that wait for it,
// and the steps of the outputs. crowd is the number of requests that decode there when all bookings
// are prefilled. If ok is false, only Total is valid. The terms are separate functions so that they
// are inlined in a loop over a thousand ranks.
func (r *Rank) Plain(now int64) (crowd float64, ok bool) {
	until := r.plain.Load()
	return float64(until & crowdBits), now <= until
}

// Told reports whether the bound equals Total for so many fresh tokens.
func (r *Rank) Told(fresh float64) bool {
	return math.Signbit(r.start.load()) && fresh <= r.reach.load()
}

// Busy is how long what is booked takes at least, in milliseconds.
func (r *Rank) Busy(now int64) float64 {
	return float64(max(r.drained.Load()-now, 0)) * (1.0 / millisecond)
}

// Fill is how long a prefill of fresh tokens takes at least that makes so many pairs.
func (r *Rank) Fill(fresh, pairs float64) float64 {
	return math.Abs(r.start.load()) + (fresh*r.token.load() + pairs*r.pair.load())
}

// Mixed is what decoding adds to the prefill's steps at least.
func (r *Rank) Mixed() float64 { return r.mixed.load() }

// Steps are how long a step of decoding takes with one more, and by how much that one delays
// the others in it.
func (r *Rank) Steps() (own, others float64) { return r.stepTime.load(), r.drag.load() }

// total is Total as Estimate finds it.
//
//go:noinline
func (r *Rank) total(at *Moment, w *Work) (total, stepTime float64) {
	var e Estimate
	r.estimate(at.Now, w, &e)
	return e.Total, e.StepTime
}

// publish writes the quote. The lock is held.
func (r *Rank) publish() {
	l, n := r.learned.Load(), r.crowds()
	plain, foreign, mixing := l.until, int64(math.MinInt64), 0.0
	if floor := r.floor.Load(); floor >= 0 {
		plain = min(plain, r.drained.Load()-floor+r.grace.Load())
	}
	if n >= r.places() {
		plain = math.MinInt64
	}
	if p := r.peers.Load(); p != nil {
		foreign = p.Drained
	}
	if r.unseen.Load() != 0 {
		foreign = math.MaxInt64
	}
	k := float64(n)
	if k > 0 {
		mixing = l.Decode + l.Decoder*k
	}
	stepTime, drag := l.decoding(k)
	start, mixed := l.Step, mixing
	switch floor := r.floor.Load(); {
	case floor > 0 || ^floor > 0: // those share steps
		start, mixed = start*k/(k+1), 0
	case foreign == math.MinInt64 && r.space.Load()>>32 == 0:
		start = -start
	}
	if n > crowdBits {
		plain = math.MinInt64
	}
	r.start.store(start)
	r.mixed.store(mixed)
	r.mixing.store(mixing)
	r.step.store(l.Step)
	r.token.store(l.Token)
	r.pair.store(l.Pair)
	r.stepTime.store(stepTime)
	r.drag.store(drag)
	r.budget.store(l.budget)
	r.reach.store(min(l.budget, float64(r.left.Load())))
	r.foreign.Store(foreign)
	r.plain.Store(max(plain, math.MinInt64+2*crowdBits)&^crowdBits - (crowdBits + 1) | n&crowdBits) // earlier rather than later
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

// queued returns the time, in nanoseconds, that the rank takes for the prompts booked by this
// gateway, and for those behind the oldest. late is the unexplained lateness of the oldest
// one's first token, in milliseconds, beyond twice its own prefill. A request that arrives
// now is served after the oldest, and a token that has been late for so long is expected to
// be late for as long again.
func (r *Rank) queued(now int64) (booked, behind int64, late float64) {
	left, behind := r.drained.Load()-now, r.floor.Load()
	if behind < 0 {
		behind = ^behind
	} else if left < behind {
		late = float64(max(behind-left-r.grace.Load(), 0)) / millisecond
	}
	return max(left, behind, 0), behind, late
}

// Unseen is how much of Wait is for what others do.
func (r *Rank) Unseen(now int64) float64 {
	unseen := 0.0
	if r.unseen.Load() != 0 {
		unseen = r.others(now)
	}
	if p := r.peers.Load(); p != nil {
		// Work that was not seen belongs to peers, until they are known to do more.
		unseen = max(unseen, float64(p.Drained-now)/millisecond)
	}
	return unseen
}

// Peers is what other gateways have booked on a rank.
type Peers struct {
	Drained  int64 // when their prefills are predicted to be done, one after another
	InFlight int64 // requests that decode there, or will
	Decoders int64 // of these, those that have their first token
	Held     int64 // tokens
}

// Books are what this gateway has booked on the rank, for its peers, at time now.
func (r *Rank) Books(now int64) Peers {
	booked, _, _ := r.queued(now)
	return Peers{
		Drained:  now + booked,
		InFlight: r.inFlight.Load() - int64(r.prefills.Load()),
		Decoders: r.decoders.Load(),
		Held:     r.own(),
	}
}

// SetPeers says what the others' books together are. It stands until it is set again.
func (r *Rank) SetPeers(p Peers) {
	more := p.InFlight
	r.mu.Lock()
	if old := r.peers.Swap(&p); old != nil {
		more -= old.InFlight
	}
	r.publish()
	r.mu.Unlock()
	r.model.theirs.Add(more)
}

// Others returns what SetPeers was given last.
func (r *Rank) Others() Peers {
	if p := r.peers.Load(); p != nil {
		return *p
	}
	return Peers{}
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

// Error returns the standard error of the prefill in Estimate for the work, in
// milliseconds, as far as the fit knows it.
func (r *Rank) Error(w Work) float64 {
	if w.Part == DecodePart {
		return 0
	}
	l := r.learned.Load()
	return l.Error(Prefill(float64(w.New), float64(w.Length), l.budget))
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

// growing is the number of tokens that the requests on the rank have generated so far.
func (r *Rank) growing() int64 { return r.tokens.Load() - r.ended.Load() }

// Growing returns the number of blocks of so many tokens that hold the output of
// requests on the rank so far. Each request has one that is not full.
func (r *Rank) Growing(blockTokens int64) int64 {
	return (r.growing() + (r.inFlight.Load()-int64(r.prefills.Load()))*blockTokens/2) / blockTokens
}

// Generated is the number of tokens that have ever come of it, first ones not among
// them.
func (r *Rank) Generated() int64 { return r.tokens.Load() }

// Cold reports whether too little was measured to rely on what is predicted of it.
func (r *Rank) Cold() bool { return r.learned.Load().seen < trusted }

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

// unseenHalf is the half-life of the estimate of others' work.
const unseenHalf = 5e9

func (r *Rank) others(now int64) float64 {
	u := math.Float64frombits(r.unseen.Load())
	if u == 0 {
		return 0
	}
	age := float64(max(now-r.unseenAt.Load(), 0))
	// Work that was waited for so long cannot be done in less time.
	return max(u*halved(age/unseenHalf), u-age/millisecond)
}

// Booking is a request that was handed to a rank. First is called once, and End once
// and last; both take the rank's lock briefly. Then they learn from the intervals that
// have ended, during which only others that learn about the rank wait.
type Booking struct {
	rank      *Rank
	work      Work
	at        int64
	stepped   int64   // when the step began that the engine was in by then
	left      float64 // of the prompt, to prefill
	predicted Estimate
	place     float64 // of the wait that was predicted, that for a place

	first int64
	done  Amount // on the rank by then
	all   int64  // generated on the rank by then
	ended bool
	// presumed is set if first is when it was predicted to be.
	presumed bool
	number   uint64 // for other gateways
}

// Book gives the work to the rank at time now.
func (r *Rank) Book(now int64, w Work) *Booking {
	w.Unseen = w.Unseen && w.Part != PrefillPart // whose end is that its prompt is computed
	b := &Booking{rank: r, work: w, at: now, stepped: r.stepped.Load(), left: float64(max(w.New, 1)), predicted: r.Estimate(now, w), place: r.place()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settle(now)
	if w.Part != DecodePart {
		r.queue = append(r.queue, b)
		r.pending.Add(int64(w.New))
	}
	if w.Unseen {
		r.hidden++
	}
	r.model.came(now)
	r.counts(b, 1)
	if w.Part == PrefillPart {
		r.unfilled.Add(1)
	}
	r.prompts.Add(int64(w.Length))
	r.computed.Add(int64(w.New))
	if r.common != nil {
		b.number = requests.Add(1)
		r.enter(Entry{Kind: Booked, Request: b.number, At: now, Work: w})
	}
	r.schedule(now)
	return b
}

// counts adds n to the requests on the rank, of the booking's sort.
func (r *Rank) counts(b *Booking, n int32) {
	r.inFlight.Add(int64(n))
	if b.work.Part == PrefillPart {
		r.prefills.Add(n)
	} else {
		r.model.own.Add(int64(n))
	}
}

// Rank is the rank that the work was given to.
func (b *Booking) Rank() *Rank { return b.rank }

// Predicted is what the work was estimated to cost when it was booked.
func (b *Booking) Predicted() Estimate { return b.predicted }

// Tokens reports that a request on the rank got n more tokens at time now. It does not
// access the request's booking, which would be a cache miss among thousands; End
// reports the total.
func (r *Rank) Tokens(now int64, n int) {
	r.tokens.Add(int64(n))
	if r.stepped.Load() != now {
		r.stepped.Store(now)
	}
}

// First reports that the request's first token arrived at time now. cached is the
// number of cached prompt tokens that the engine reported, or -1. began is the time at
// which the engine reported that prefill began, or 0.
func (b *Booking) First(now int64, cached int, began int64) {
	b.begins(now, cached, began)
	b.rank.learn(now)
}

func (b *Booking) begins(now int64, cached int, began int64) {
	r := b.rank
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.first != 0 || b.ended {
		return
	}
	b.first = max(now, 1)
	r.enter(Entry{Kind: Began, Request: b.number, At: now, Cached: cached, Start: began})
	if b.sane(now) {
		r.settle(now)
	}
	r.computes(b)
	if b.work.Part != PrefillPart {
		r.decoders.Add(1)
	}
	if !b.sane(now) {
		return
	}
	b.all = r.tokens.Load()
	if b.work.Part == DecodePart {
		b.done = r.done // its prompt was no work of the rank's
		r.schedule(now)
		return
	}
	r.see(b, now)
	if cached >= 0 {
		b.left = max(b.left+float64(b.work.Length-b.work.New-cached), 1)
	}
	r.join(b, now, began)
	r.schedule(now)
}

// End reports that the request ended at time now, for whatever reason. tokens is the
// number of its tokens that were reported to the rank, from the first token on.
func (b *Booking) End(now int64, tokens int) {
	b.ends(now, tokens)
	b.rank.learn(now)
}

func (b *Booking) ends(now int64, tokens int) {
	r := b.rank
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.ended {
		return
	}
	b.ended = true
	r.enter(Entry{Kind: Ended, Request: b.number, At: now, Tokens: tokens})
	if b.work.Unseen {
		r.hidden--
	}
	r.counts(b, -1)
	r.prompts.Add(-int64(b.work.Length))
	r.ended.Add(int64(tokens))
	if b.sane(now) && b.sane(b.first) {
		r.settle(now) // by which it may turn out to have begun to decode
	}
	switch {
	case b.first == 0:
		if b.work.Part != DecodePart {
			r.lost += r.learned.Load().Of(Prefill(b.left, float64(b.work.Length), DefaultBudget))
		}
		r.computes(b)
	case b.work.Part == PrefillPart: // it has decoded nothing
	default:
		tells := b.sane(now) && b.sane(b.first) && b.first > r.stood
		if tells && !b.presumed {
			r.decoded(b, now, tokens-1)
			r.lived(tokens)
		}
		r.decoders.Add(-1)
		if tells {
			ms, mean := float64(now-b.first)/millisecond, math.Float64frombits(r.lasting.Load())
			if mean == 0 {
				mean = ms
			}
			r.lasting.Store(math.Float64bits(mean + lastingShare*(ms-mean)))
		}
	}
	r.schedule(now)
}

// computes takes a booking out of those whose prompt the rank is to compute. The lock is held.
func (r *Rank) computes(b *Booking) {
	switch b.work.Part {
	case DecodePart:
		return
	case PrefillPart:
		r.unfilled.Add(-1)
	}
	r.pending.Add(-int64(b.work.New))
	r.queue = slices.DeleteFunc(r.queue, func(o *Booking) bool { return o == b })
}

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

// sane reports whether a time is plausible for the request, or the clock has jumped; 0
// is an event that has not happened.
func (b *Booking) sane(t int64) bool {
	return t == 0 || t >= b.at && t-b.at < longest*millisecond
}

// lastingShare is how much the latest request counts for how long one lasts.
const lastingShare = 0.1

// schedule predicts when the queue is done, at time now.
func (r *Rank) schedule(now int64) {
	l := r.learned.Load()
	k := float64(r.decoders.Load())
	// Only the oldest can have made progress, and no more than all of its own. Those
	// behind it share steps.
	oldest, begun := 0.0, now
	var rest Amount
	for i, b := range r.queue {
		if i == 0 {
			oldest, begun = r.remaining(b), max(b.at, r.last, r.group.at)
			continue
		}
		rest.Tokens += b.left
		rest.Pairs += b.left * (float64(b.work.Length) - b.left/2)
	}
	rest.Steps = math.Ceil(rest.Tokens / l.budget)
	behind := l.Of(rest) + l.mixed(rest, k)
	floor := int64(behind * millisecond)
	if len(r.queue) == 0 || r.queue[0].work.Unseen {
		floor = ^floor
	} else {
		r.grace.Store(int64((oldest + r.queue[0].predicted.Room) * millisecond))
	}
	r.floor.Store(floor)
	r.drained.Store(begun + int64((oldest+behind)*millisecond))
	r.publish()
}

// remaining is how long it takes to prefill what is left of a request's prompt.
func (r *Rank) remaining(b *Booking) float64 {
	l := r.learned.Load()
	a := Prefill(b.left, float64(b.work.Length), l.budget)
	return l.Of(a) + l.mixed(a, float64(r.decoders.Load()))
}

// together is how far apart first tokens of one step may come.
const together = millisecond / 2

// together is how far apart first tokens of one step may come. Several gateways see a step at
// different times, but these are closer to each other than to those of the next step, which
// decodes.
func (r *Rank) together() int64 {
	if !r.merged {
		return together
	}
	l := r.learned.Load()
	return max(together, int64(0.5*millisecond*(l.Decode+l.Decoder*float64(r.decoders.Load()))))
}

// join puts a first token into the group of its step.
func (r *Rank) join(b *Booking, now, began int64) {
	g := &r.group
	from, stamped := b.at, false
	if began > 0 && began <= now {
		r.waited(now, b, began)
		from, stamped = began, true
	}
	if len(g.members) == 0 {
		if g.before.Tokens > 0 && from < r.last {
			from = g.from // the interval before goes on
		} else {
			g.before, g.unsure = Amount{}, 0
		}
		beside := r.decoders.Load()
		if b.work.Part != PrefillPart { // it is one of them itself
			beside--
		}
		g.from, g.at, g.decoders, g.tokens, g.pairs, g.full = now, now, float64(beside), 0, 0, false
		g.unsure += r.lost
		r.lost = 0
	}
	if g.before.Tokens == 0 {
		from = max(from, r.last)
	}
	if from < g.from {
		g.from, g.stamped, g.awaited = from, stamped, false
		if !stamped && from > r.last && g.decoders > 0 && b.stepped >= r.last {
			g.from, g.awaited = b.stepped, true
		}
	}
	g.full = g.full || b.predicted.Room > 0
	g.members = append(g.members, b)
	g.tokens += b.left
	g.pairs += b.left * (float64(b.work.Length) - b.left/2)
}

// settle closes the group of first tokens when time has gone on, and notes the interval
// that ended with it.
func (r *Rank) settle(now int64) {
	r.presume(now)
	g := &r.group
	if len(g.members) == 0 || now-g.at < r.together() {
		return
	}
	l := r.learned.Load()
	full := r.full()
	a, doubtful := r.prefilled(l, full)
	before := g.before
	added := a.Minus(before)
	added.Decodes, added.Decoded = 0, 0 // which r.done does not count
	r.done, r.last = r.done.Plus(added), g.at
	for i, b := range g.members {
		b.done = r.done
		g.members[i] = nil
	}
	g.members = g.members[:0]
	a.Decodes, a.Decoded = before.Decodes, before.Decoded
	if k := g.decoders; k > 0 {
		a.Decodes, a.Decoded = a.Decodes+added.Steps, a.Decoded+added.Steps*k
		if g.awaited {
			// It came in a step that only decoded, with which the interval begins.
			a.Decodes, a.Decoded = a.Decodes+1, a.Decoded+k
		}
	}
	if before.Tokens > 0 {
		g.unsure += 0.3 * l.Step // as many steps, or one less
	}
	if g.before = (Amount{}); g.from <= r.stood || (full || g.full) && !g.stamped {
		return
	}
	if doubtful {
		g.before = a
		return
	}
	took := float64(g.at-g.from) / millisecond
	r.note(Prefilling, a, took, g.unsure, g.at)
	if !g.stamped && took <= longest && g.from > r.silent {
		r.unexplained(g.at, took-l.drifted(g.at, r.model.median.Load()).Of(a)-2*l.Error(a))
	}
}

// presume makes requests whose first token is not visible begin to decode at the
// predicted time.
func (r *Rank) presume(now int64) {
	r.queue = slices.DeleteFunc(r.queue, func(b *Booking) bool {
		due := b.at + int64(b.predicted.TTFT()*millisecond)
		if !b.work.Unseen || now < due {
			return false
		}
		b.first, b.presumed = max(due, 1), true
		r.decoders.Add(1)
		r.pending.Add(-int64(b.work.New))
		r.done = r.done.Plus(Prefill(b.left, float64(b.work.Length), r.learned.Load().budget))
		return true
	})
}

// full reports whether the rank's cache may lack room for the waiting requests and for
// the output of these and the decoding ones, for which engines reserve room.
func (r *Rank) full() bool {
	if len(r.queue) == 0 {
		return false
	}
	to := (float64(len(r.queue)) + float64(r.decoders.Load())/2) * r.queue[0].work.Output
	return float64(r.left.Load()) < to
}

// prefilled returns the amount that the engine prefilled since the interval began: for the group,
// and in the same steps for the prompts that follow. It is doubtful if these prompts cannot be
// determined; then the interval continues to the next first token, which determines them. The
// prompts of both groups may have shared a step, so steps are counted for all of them together. If
// the cache is full, the requests behind wait for room in it and not for steps.
func (r *Rank) prefilled(l *learned, full bool) (a Amount, doubtful bool) {
	g := &r.group
	room := max(l.budget-g.decoders, 1)
	a = Amount{Tokens: g.before.Tokens + g.tokens, Pairs: g.before.Pairs + g.pairs}
	a.Steps = max(math.Ceil(a.Tokens/room), g.before.Steps+1)
	if full {
		return a, false
	}
	if free := a.Steps*room - a.Tokens; free > 0 {
		since := a.Minus(g.before)
		final, unsure := float64(g.at-max(g.from, r.last)), slight
		if since.Steps > 1 || !g.stamped && g.from > r.last {
			final, unsure = final*l.share(since, room, g.decoders), doubt
		}
		var more Amount
		more, doubtful = r.fill(free, g.at-int64(final), int64(unsure*final))
		a = a.Plus(more)
	}
	return a, doubtful
}

// share is how much of the time of an amount its last step takes.
func (c *Coefficients) share(a Amount, room, k float64) float64 {
	if a.Steps <= 1 {
		return 1
	}
	last := a.Tokens - (a.Steps-1)*room
	final := Amount{Steps: 1, Tokens: last, Pairs: a.Pairs / a.Tokens * last}
	return (c.Of(final) + c.mixed(final, k)) / (c.Of(a) + c.mixed(a, k))
}

// doubt is the uncertainty of the last step's beginning, as a share of its length, and slight that
// of a step that began with the interval, where only the way to the engine is uncertain.
const doubt, slight = 0.3, 0.15

// fill uses the rest of the last step's budget for the prompts that waited when it
// began, and returns that amount. It is doubtful if it is uncertain whether a prompt
// waited.
func (r *Rank) fill(room float64, began, doubt int64) (a Amount, doubtful bool) {
	// Those that have no place were not in it.
	places := int(r.places()) - int(r.group.decoders) - len(r.group.members)
	for i, b := range r.queue {
		if room <= 0 || i >= places || b.at >= began+doubt || b.at >= r.group.at {
			break
		}
		if b.at > began-doubt {
			return a, true
		}
		n := min(room, b.left-1)
		end := float64(b.work.Length) - b.left + n
		a.Tokens += n
		a.Pairs += n * (end - n/2)
		b.left -= n
		room -= n
	}
	return a, false
}

// decoded notes the time between a request's first token and its end, in which n more
// came.
func (r *Rank) decoded(b *Booking, now int64, n int) {
	if n < fewest {
		return
	}
	a := r.done.Minus(b.done)
	// All that was generated since its first token came, which is counted after that.
	a.Decodes, a.Decoded = float64(n), float64(r.tokens.Load()-b.all-1)
	// Prompts that are prefilled at either end are in no count.
	l := r.learned.Load()
	under := 0.0
	if len(r.queue) > 0 {
		under = min(float64(now-max(r.queue[0].at, r.last))/millisecond, r.remaining(r.queue[0]))
	}
	r.note(Decoding, a, float64(now-b.first)/millisecond, under+0.5*(l.Decode+l.Decoder*float64(r.decoders.Load())), now)
}

// fewest is how many tokens make an interval of decoding.
const fewest = 4

// note keeps an interval for learn. More than the fit remembers cannot have come while
// one was fitted, but where nobody was let run.
func (r *Rank) note(sort Sort, a Amount, took, unsure float64, at int64) {
	if r.common == nil && len(r.noted) < kept {
		own := float64(max(r.inFlight.Load(), 1))
		r.noted = append(r.noted, interval{sort, a, took, unsure, own / max(float64(r.crowds()), own), at})
	}
}

// learn learns from the recorded intervals. It does not hold the lock of the books, for
// which a booking would wait. Intervals recorded while another goroutine learns are
// left for the next event.
func (r *Rank) learn(now int64) {
	if !r.fitting.TryLock() {
		return
	}
	defer r.fitting.Unlock()
	r.mu.Lock()
	r.taken, r.noted = r.noted, r.taken[:0]
	r.mu.Unlock()
	r.observe(now)
}

// observe learns from the intervals that were taken. No lock but that of the fit is held.
func (r *Rank) observe(now int64) {
	if len(r.taken) == 0 {
		return
	}
	for i := range r.taken {
		o := &r.taken[i]
		r.freshen(o.at)
		r.fit.Observe(o.sort, o.amount, o.took, o.unsure, o.ours)
		old := r.learned.Load()
		l := learned{Coefficients: r.fit.Coefficients(), sureness: r.fit.sureness, seen: r.fit.seen, filled: old.filled, budget: old.budget, at: o.at}
		if o.sort == Prefilling {
			l.filled++
		}
		r.model.fill(&l)
		r.learned.Store(l.lasts())
	}
	r.model.measured(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schedule(now)
}

// freshen makes the fit forget observations from before a long time without any.
// Otherwise the one request that a rank gets when its estimate has drifted back to the
// median would count little against the old slow ones, and the rank would get no
// further requests.
func (r *Rank) freshen(now int64) {
	if l := r.learned.Load(); now-l.at > fresh {
		r.fit.restart(l.drifted(now, r.model.median.Load()))
	}
}

// waited notes that the engine began a prefill later than the books explain.
func (r *Rank) waited(now int64, b *Booking, began int64) {
	if max(b.at, r.last) <= r.stood || b.at <= r.silent {
		return
	}
	l := r.learned.Load()
	step := l.Decode + l.Decoder*float64(r.decoders.Load()-1)
	r.unexplained(now, float64(began-max(b.at, r.last))/millisecond-step)
}

// unexplained takes a share of what an interval had beyond the books.
func (r *Rank) unexplained(now int64, ms float64) {
	if r.Cold() {
		return
	}
	u := r.others(now)
	r.unseen.Store(math.Float64bits(u + 0.3*(max(ms, 0)-u)))
	r.unseenAt.Store(now)
}
