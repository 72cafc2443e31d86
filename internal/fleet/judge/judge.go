// Package judge tracks the health of a gateway's engine ranks. It is the shell around
// package health and owns the lock, the ticks and the probes. The gateway reports the
// outcome of each attempt. Asking whether a rank accepts requests is an atomic load.
//
// The progress of streams is read from the rank's books at each tick, so the output path
// pays nothing for it.
//
// Goroutines: Run's, and one for each probe under way, which has ended when Run returns.
package judge

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Options are what a Judge needs to know.
type Options struct {
	Limits health.Limits
	// NoGeneration has no engine asked to generate for weir's own sake: where a probe would
	// be a generation it only finds out whether the engine is there.
	NoGeneration bool
	// Stall is for how long a stream may stand still while its rank goes on with others
	// (package health says when that counts); 0 is for ever.
	Stall time.Duration
	// OwnLateness is how late the gateway itself must be within a tick for that time to count for no
	// engine; 0 means nine tenths of a tick.
	OwnLateness time.Duration
	// Changed is called when a rank becomes suspect or down, or takes requests again,
	// with the id of its latest request. It must not block, and may be nil.
	Changed func(m health.Member, v health.View, request string)
}

// Judge judges the engine ranks of one gateway.
type Judge struct {
	opts Options
	tick time.Duration

	looks int // ticks at which the progress of some ranks' streams was compared; Run's

	mu    sync.Mutex
	fleet *health.Fleet
	ranks []*Rank
	byOwn map[*health.Rank]*Rank

	asking sync.WaitGroup // probes

	late  atomic.Int64  // of the gateway since the tick before, in nanoseconds
	carry time.Duration // of it, what is the next tick's
}

// New makes one without ranks.
func New(o Options) *Judge {
	if o.Limits.Tick == 0 {
		o.Limits.Tick = 100 * time.Millisecond
	}
	return &Judge{opts: o, tick: o.Limits.Tick, fleet: health.NewFleet(o.Limits, trace.Now()), byOwn: map[*health.Rank]*Rank{}}
}

// Rank is the health of an engine's data-parallel rank as the gateway sees it; of an engine
// whose wire names no ranks, that of the whole. A nil one takes all requests.
type Rank struct {
	judge    *Judge
	panicked func(*infer.Panic)

	takes atomic.Uint32
	rests atomic.Int64 // until when it has asked to be left alone; 0: it has not

	// Under the judge's lock.
	own     *health.Rank
	probes  probes
	books   *cost.Rank
	several bool  // it is several ranks that its wire does not name
	tokens  int64 // of the books, at the tick before
	asked   engine.Probe
	open    *Attempt
	visits  visiting // of those that are open
	latest  string   // the id of the latest request
	told    bool     // that it is suspected or out was told
}

// Add adds an engine's rank to the judge; rank -1 is an engine without ranks. The rank
// is absent until a call of Is. panicked is called when a probe panics, and may be nil.
func (j *Judge) Add(name string, rank int, panicked func(*infer.Panic)) *Rank {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := &Rank{judge: j, panicked: panicked, own: j.fleet.Add(health.Member{Engine: name, Rank: rank}), asked: engine.Probe{Rank: rank}}
	r.takes.Store(uint32(health.Freely))
	j.ranks = append(j.ranks, r)
	j.byOwn[r.own] = r
	return r
}

// Remove removes a rank that its engine no longer has. Requests at the rank may still
// end.
func (r *Rank) Remove() {
	j := r.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fleet.Remove(r.own)
	j.ranks = slices.DeleteFunc(j.ranks, func(x *Rank) bool { return x == r })
	r.probes.give(nil)
	r.probes.giveSamples(nil)
	j.publish(r)
	delete(j.byOwn, r.own)
}

// Drain stops new requests to a rank, whatever its health. Its present requests may end.
func (r *Rank) Drain(why string) {
	r.judge.mu.Lock()
	defer r.judge.mu.Unlock()
	r.own.Drain(trace.Now(), why)
	r.judge.publish(r)
}

// Undrain has it be given requests again.
func (r *Rank) Undrain(why string) {
	r.judge.mu.Lock()
	defer r.judge.mu.Unlock()
	r.own.Undrain(trace.Now(), why)
	r.judge.publish(r)
}

// Presence is what an adapter reports about a rank of its engine.
type Presence struct {
	Ready  bool
	Fresh  bool // it is not the process that was there before
	Serves []string
	Prober engine.Prober // nil: it has none
	Tokens engine.Tokens // nil: it takes no ids, or is not there
	Books  *cost.Rank
	// Several is set of an engine whose data-parallel ranks have no names on its wire: the
	// progress of one of its streams shows nothing of those at another rank.
	Several bool
}

// Is reports the presence of a rank.
func (r *Rank) Is(p Presence) {
	j := r.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	now := trace.Now()
	r.own.Serves, r.several = slices.Clone(p.Serves), p.Several
	r.own.Generates, r.own.Samples = r.probes.by(&p, j.opts.NoGeneration)
	if r.books != p.Books && p.Books != nil {
		r.books = p.Books
		r.tokens = r.books.Generated()
	}
	if p.Ready {
		if p.Fresh {
			r.rests.Store(0)
		}
		r.own.Joined(now, p.Fresh)
	} else {
		r.own.Left(now)
	}
	j.publish(r)
}

// Takes returns which requests the rank takes.
func (r *Rank) Takes() health.Takes {
	if r == nil {
		return health.Freely
	}
	if until := r.rests.Load(); until != 0 && trace.Now() < until {
		return health.Never
	}
	return health.Takes(r.takes.Load())
}

// MaxRest bounds how long a rank that asks for it is left alone.
const MaxRest = 10 * time.Second

// Rest reports that the rank has asked to get no requests for some time. This is not a
// judgement: a full rank is healthy.
func (r *Rank) Rest(now int64, d time.Duration) {
	if r == nil || d <= 0 {
		return
	}
	until := now + int64(min(d, MaxRest))
	for {
		was := r.rests.Load()
		if was != 0 && was >= until || r.rests.CompareAndSwap(was, until) {
			return
		}
	}
}

// Rests returns how long the rank is still left alone because it has asked for it.
func (r *Rank) Rests(now int64) time.Duration {
	if r == nil {
		return 0
	}
	if until := r.rests.Load(); until != 0 && until > now {
		return time.Duration(until - now)
	}
	return 0
}

// View returns the rank's health as an operator sees it.
func (r *Rank) View() health.View {
	r.judge.mu.Lock()
	defer r.judge.mu.Unlock()
	return r.own.View()
}

// Attempt is one request at one rank. The zero value is ready for HandOver.
type Attempt struct {
	// Priority is what the request has in the engine's queue. It is set before HandOver.
	Priority int64

	of      *Rank
	request health.Request
	waiting Waiting
	// Those open at the same rank.
	prev, next *Attempt
}

// Waiting is the owner of an open attempt. Its methods are called under the judge's lock:
// they must not block, nor call the judge.
type Waiting interface {
	// Down reports that the rank goes down, with the reason.
	Down(why string)
	// Had returns how many tokens the attempt has had. ok is false if that is not known, or if
	// the engine owes it nothing more.
	Had() (tokens int, ok bool)
	// Stalled reports that the attempt has had no token for so long while its rank went on
	// with others. It is called again after as long.
	Stalled(d time.Duration)
}

// HandOver reports that a request is being handed to the rank. work is the predicted time
// in milliseconds until it shows progress, negative if unknown. asked is the model for a
// probe, except for its rank. w, which may be nil, is notified of what happens to the attempt
// before its End.
func (r *Rank) HandOver(a *Attempt, now int64, work float64, request string, asked engine.Probe, w Waiting) {
	if r == nil {
		return
	}
	r.judge.mu.Lock()
	defer r.judge.mu.Unlock()
	a.of, a.waiting, a.prev, a.next = r, w, nil, r.open
	if r.open != nil {
		r.open.prev = a
	}
	r.open = a
	asked.Rank = r.own.Member.Rank
	r.latest, r.asked = request, asked
	r.own.HandedOver(&a.request, now, work)
	a.request.Prioritized(a.Priority)
	r.judge.publish(r)
}

// Late reports that the gateway itself stood still for d. No rank is blamed for that
// time. It may be called from any goroutine.
func (j *Judge) Late(d time.Duration) { j.late.Add(int64(d)) }

// Missed is for how long the gateway was late so far, for which no engine answers.
func (j *Judge) Missed() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.fleet.Missed()
}

// Sent reports that the attempt was sent no earlier than sent. Its wait until then was
// caused by the gateway.
func (a *Attempt) Sent(now, sent int64) {
	if a.of == nil {
		return
	}
	a.of.judge.mu.Lock()
	defer a.of.judge.mu.Unlock()
	a.request.Sent(now, sent)
	a.of.judge.publish(a.of)
}

// Start reports that the attempt has had its first token.
func (a *Attempt) Start(now int64) {
	if a.of == nil {
		return
	}
	a.of.judge.mu.Lock()
	defer a.of.judge.mu.Unlock()
	a.request.Started(now)
	a.of.judge.publish(a.of)
}

// End reports how the attempt ended. Later reports have no effect.
func (a *Attempt) End(now int64, how health.End) {
	if a.of == nil {
		return
	}
	j := a.of.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	a.leave()
	a.request.Ended(now, how)
	r := a.of
	a.of = nil
	j.publish(r)
}

// leave takes it out of those that are open at its rank. The lock is held.
func (a *Attempt) leave() {
	if v := &a.of.visits; v.next == a {
		v.next = a.next
	}
	if a.prev == nil {
		a.of.open = a.next
	} else {
		a.prev.next = a.next
	}
	if a.next != nil {
		a.next.prev = a.prev
	}
	a.prev, a.next, a.waiting = nil, nil, nil
}

// Of classifies the error of an attempt.
func Of(e *infer.Error) health.End {
	if e == nil {
		return health.Done
	}
	switch e.Code {
	case infer.CodeOverloaded:
		return health.Overload
	case infer.CodeUnavailable, infer.CodeEngine, infer.CodeIntegrity:
	case infer.CodeInvalid, infer.CodeUnsupported, infer.CodeContext, infer.CodeNotFound, infer.CodeTooLarge:
		return health.Rejected
	default:
		return health.GaveUp
	}
	switch {
	case e.Engine == "":
		return health.GaveUp
	case errors.Is(e.Cause, syscall.ECONNREFUSED):
		return health.Refused
	case e.Code == infer.CodeUnavailable || broken(e.Cause):
		return health.Cut
	}
	return health.Fault
}

// publish makes what has changed known, of a rank and of those whose state has. The lock
// is held.
func (j *Judge) publish(r *Rank) {
	r.publish()
	for _, c := range j.fleet.Changes() {
		r := j.byOwn[c.Rank]
		if r == nil {
			continue // it is no part of its engine any more
		}
		r.publish()
		var silent error
		if c.To == health.Down {
			silent = errSilent
		}
		if c.From == health.Probing || c.To == health.Up {
			r.probes.give(silent)
		}
		if c.To == health.Down || c.To == health.Up {
			r.probes.giveSamples(silent)
		}
		if c.To == health.Up {
			r.probes.fenced = false // what it computes then is not only others'
		}
		if (c.From == health.Down || c.To == health.Down) && r.books != nil {
			r.books.Stood(trace.Now())
		}
		if c.To == health.Soft && r.books != nil {
			r.books.Silent(trace.Now()) // or one standstill would keep requests away for half a minute
		}
		if c.To == health.Soft || c.To == health.Draining {
			continue // it is only avoided, or an operator's doing
		}
		if c.To == health.Down {
			for a := r.open; a != nil; a = a.next {
				if a.waiting != nil {
					a.waiting.Down(c.Why)
				}
			}
		}
		if out := c.To != health.Up; out != r.told || c.To == health.Down {
			if r.told = out; r.books != nil {
				r.books.Silent(trace.Now())
			}
			if j.opts.Changed != nil {
				j.opts.Changed(r.own.Member, r.own.View(), r.latest)
			}
		}
	}
}

func (r *Rank) publish() {
	if takes := uint32(r.own.Takes()); takes != r.takes.Load() {
		r.takes.Store(takes)
	}
}

// Run judges until ctx ends.
func (j *Judge) Run(ctx context.Context) {
	tick := time.NewTicker(j.tick)
	defer tick.Stop()
	defer j.asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now := trace.Now()
			j.look(ctx, now)
			j.compare(now)
		}
	}
}

// look is one tick.
func (j *Judge) look(ctx context.Context, now int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, r := range j.ranks {
		if r.books == nil {
			continue
		}
		if n := r.books.Generated(); n != r.tokens {
			r.own.Progressed(now, int(n-r.tokens), r.left(now))
			r.tokens = n
		}
		next, _ := r.books.Next(now)
		r.own.Ahead(now, next)
	}
	for _, p := range j.fleet.Tick(now, j.own()) {
		j.byOwn[p.Rank].probe(ctx, p)
	}
	for _, r := range j.ranks {
		j.publish(r)
	}
}

// own returns the time by which the gateway was late since the previous tick. Lateness
// that is reported a little after its tick counts for the next tick; any more has
// already delayed the tick itself. Short lateness within a tick counts as none, because
// for the rest of the tick the gateway has read all output that had arrived. On a
// machine without a free core such moments add up to half of the time, and a hung
// engine would go down that much later.
func (j *Judge) own() time.Duration {
	late := j.carry + time.Duration(j.late.Swap(0))
	if j.carry == 0 && late < cmp.Or(j.opts.OwnLateness, j.tick*9/10) {
		return 0
	}
	j.carry = min(max(late-j.tick, 0), j.tick)
	return late
}

// left is the predicted work that is still to be done, in milliseconds; negative where
// too little was measured to predict any.
func (r *Rank) left(now int64) float64 {
	if r.books.Cold() {
		return -1
	}
	return r.books.Wait(now)
}
