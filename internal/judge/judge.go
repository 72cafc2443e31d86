// Package judge keeps the states of health of a gateway's engines: it is the shell of
// package health, with the lock, the ticks and the probes. The gateway tells it what
// becomes of each attempt; whether an engine takes a request is an atomic load.
//
// What tokens show is read of the engine's books at each tick, so that the output path
// pays nothing for it.
//
// Goroutines: Run's, and one for each probe under way, which has ended when Run returns.
package judge

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir/internal/cost"
	"weir/internal/engine"
	"weir/internal/health"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Options are what a Judge needs to know.
type Options struct {
	Limits health.Limits
	// Changed is told of each engine that is suspected, is out, or takes requests again,
	// with the id of the latest one that it was given. It must not block; nil is fine.
	Changed func(name string, v health.View, request string)
}

// Judge judges the engines of one gateway.
type Judge struct {
	opts Options
	tick time.Duration

	mu      sync.Mutex
	fleet   *health.Fleet
	engines []*Engine
	byRank  map[*health.Rank]*Engine

	late  atomic.Int64  // of the gateway since the tick before, in nanoseconds
	carry time.Duration // of it, what is the next tick's
}

// New makes one without engines.
func New(o Options) *Judge {
	if o.Limits.Tick == 0 {
		o.Limits.Tick = 100 * time.Millisecond
	}
	return &Judge{opts: o, tick: o.Limits.Tick, fleet: health.NewFleet(o.Limits, trace.Now()), byRank: map[*health.Rank]*Engine{}}
}

// Engine is an engine's health as the gateway sees it. A nil one takes all requests.
type Engine struct {
	judge    *Judge
	name     string
	panicked func(*engine.Panic)

	takes atomic.Uint32
	rests atomic.Int64 // until when it has asked to be left alone; 0: it has not

	// Under the judge's lock.
	rank   *health.Rank
	prober engine.Prober
	books  *cost.Rank
	tokens int64 // of the books, at the tick before
	asked  engine.Probe
	latest string // the id of the latest request
	told   bool   // that it is suspected or out was told
	probes sync.WaitGroup
	end    []context.CancelFunc // of its probes
}

// Add makes an engine one of the judge's. It is absent until Is says otherwise. panicked is
// told of the panics of its probes; nil is fine.
func (j *Judge) Add(name string, panicked func(*engine.Panic)) *Engine {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := &Engine{judge: j, name: name, panicked: panicked, rank: j.fleet.Add(health.Member{Engine: name, Rank: -1}), asked: engine.Probe{Rank: -1}}
	e.takes.Store(uint32(health.Freely))
	j.engines = append(j.engines, e)
	j.byRank[e.rank] = e
	return e
}

// Presence is what an adapter says of its engine.
type Presence struct {
	Ready  bool
	Fresh  bool // it is not the process that was there before
	Serves []string
	Prober engine.Prober // nil: it has none
	Books  *cost.Rank
}

// Is says how an engine is connected.
func (e *Engine) Is(p Presence) {
	j := e.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	now := trace.Now()
	e.prober = p.Prober
	e.rank.Serves, e.rank.Generates = slices.Clone(p.Serves), p.Prober != nil && p.Prober.Generates()
	if e.books != p.Books && p.Books != nil {
		e.books = p.Books
		e.tokens = e.books.Generated()
	}
	if p.Ready {
		if p.Fresh {
			e.rests.Store(0)
		}
		e.rank.Joined(now, p.Fresh)
	} else {
		e.rank.Left(now)
	}
	j.publish(e)
}

// Takes says which requests the engine takes.
func (e *Engine) Takes() health.Takes {
	if e == nil {
		return health.Freely
	}
	if until := e.rests.Load(); until != 0 && trace.Now() < until {
		return health.Never
	}
	return health.Takes(e.takes.Load())
}

// MaxRest bounds how long an engine that asks for it is left alone.
const MaxRest = 10 * time.Second

// Rest says that the engine has asked not to be given requests for some time. It is no
// judgement: an engine that is full is well.
func (e *Engine) Rest(now int64, d time.Duration) {
	if e == nil || d <= 0 {
		return
	}
	until := now + int64(min(d, MaxRest))
	for {
		was := e.rests.Load()
		if was != 0 && was >= until || e.rests.CompareAndSwap(was, until) {
			return
		}
	}
}

// Rests gives how long the engine is still left alone because it has asked for it.
func (e *Engine) Rests(now int64) time.Duration {
	if e == nil {
		return 0
	}
	if until := e.rests.Load(); until != 0 && until > now {
		return time.Duration(until - now)
	}
	return 0
}

// View gives the engine's health as an operator sees it.
func (e *Engine) View() health.View {
	e.judge.mu.Lock()
	defer e.judge.mu.Unlock()
	return e.rank.View()
}

// Attempt is one request at one engine. The zero value is ready for HandOver.
type Attempt struct {
	of      *Engine
	request health.Request
}

// HandOver says that a request is being handed to the engine. work is the milliseconds
// that it is predicted to take until it shows anything, negative where nothing can be
// said; asked is what a probe is to be like.
func (e *Engine) HandOver(a *Attempt, now int64, work float64, request string, asked engine.Probe) {
	if e == nil {
		return
	}
	e.judge.mu.Lock()
	defer e.judge.mu.Unlock()
	a.of = e
	e.latest, e.asked = request, asked
	e.rank.HandedOver(&a.request, now, work)
	e.judge.publish(e)
}

// Late says that the gateway stood still for d, as whatever measures it has seen. It is
// held against nobody. It may be called by anyone.
func (j *Judge) Late(d time.Duration) { j.late.Add(int64(d)) }

// Missed is for how long the gateway was late so far, for which no engine answers.
func (j *Judge) Missed() time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.fleet.Missed()
}

// Sent says that the attempt was sent no earlier than sent: what it waited until then was
// the gateway's doing.
func (a *Attempt) Sent(now, sent int64) {
	if a.of == nil {
		return
	}
	a.of.judge.mu.Lock()
	defer a.of.judge.mu.Unlock()
	a.request.Sent(now, sent)
	a.of.judge.publish(a.of)
}

// Start says that the attempt has had its first token.
func (a *Attempt) Start(now int64) {
	if a.of == nil {
		return
	}
	a.of.judge.mu.Lock()
	defer a.of.judge.mu.Unlock()
	a.request.Started(now)
	a.of.judge.publish(a.of)
}

// End says how the attempt ended. Afterwards nothing of it counts.
func (a *Attempt) End(now int64, how health.End) {
	if a.of == nil {
		return
	}
	j := a.of.judge
	j.mu.Lock()
	defer j.mu.Unlock()
	a.request.Ended(now, how)
	e := a.of
	a.of = nil
	j.publish(e)
}

// Of says how an attempt ended that ended with an error.
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

// publish makes what has changed known, of an engine and of those whose state has. The
// lock is held.
func (j *Judge) publish(e *Engine) {
	e.publish()
	for _, c := range j.fleet.Changes() {
		e := j.byRank[c.Rank]
		e.publish()
		if c.From == health.Probing || c.To == health.Up {
			e.give()
		}
		if (c.From == health.Down || c.To == health.Down) && e.books != nil {
			e.books.Stood(trace.Now())
		}
		if c.To == health.Soft {
			continue // it is only avoided
		}
		if out := c.To != health.Up; out != e.told || c.To == health.Down {
			e.told = out
			if j.opts.Changed != nil {
				j.opts.Changed(e.name, e.rank.View(), e.latest)
			}
		}
	}
}

func (e *Engine) publish() {
	if takes := uint32(e.rank.Takes()); takes != e.takes.Load() {
		e.takes.Store(takes)
	}
}

// give gives up the probes that are under way.
func (e *Engine) give() {
	for _, end := range e.end {
		end()
	}
	e.end = e.end[:0]
}

// Run judges until ctx ends.
func (j *Judge) Run(ctx context.Context) {
	tick := time.NewTicker(j.tick)
	defer tick.Stop()
	defer func() {
		for _, e := range j.engines {
			e.probes.Wait()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			j.look(ctx)
		}
	}
}

// look is one tick.
func (j *Judge) look(ctx context.Context) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := trace.Now()
	for _, e := range j.engines {
		if e.books == nil {
			continue
		}
		if n := e.books.Generated(); n != e.tokens {
			e.rank.Progressed(now, int(n-e.tokens), e.left(now))
			e.tokens = n
		}
	}
	for _, p := range j.fleet.Tick(now, j.own()) {
		j.byRank[p.Rank].probe(ctx, p)
	}
	for _, e := range j.engines {
		j.publish(e)
	}
}

// own gives how late the gateway was since the tick before. What is told a little after
// it was is the next tick's; more than that a tick that was late itself has seen. Where
// it was in time for a part of the tick it has read what had come by then, and the rest
// hides nothing: on a machine that has no core free such moments add up to half of the
// time, and an engine that hangs would be down as much later.
func (j *Judge) own() time.Duration {
	late := j.carry + time.Duration(j.late.Swap(0))
	if j.carry == 0 && late < j.tick*9/10 {
		return 0
	}
	j.carry = min(max(late-j.tick, 0), j.tick)
	return late
}

// left is the predicted work that is still to be done, in milliseconds; negative where
// too little was measured to predict any.
func (e *Engine) left(now int64) float64 {
	if e.books.Cold() {
		return -1
	}
	return e.books.Wait(now)
}

// probe sends a probe. The lock is held.
func (e *Engine) probe(ctx context.Context, p health.Probe) {
	if e.prober == nil {
		e.rank.Probed(trace.Now(), health.Busy, "")
		return
	}
	ctx, end := context.WithTimeout(ctx, p.Patience)
	e.end = append(e.end, end)
	prober, asked := e.prober, e.asked
	e.probes.Go(func() {
		defer end()
		err := e.ask(ctx, prober, asked)
		if ctx.Err() != nil && err != nil {
			return // its silence the rank has noticed
		}
		result, why := health.Answered, ""
		if err != nil {
			why = err.Error()
			switch {
			case errors.Is(err, engine.ErrBusy) || errors.Is(err, engine.ErrNoProbe):
				result = health.Busy
			case errors.Is(err, syscall.ECONNREFUSED):
				result = health.Nobody
			default:
				result = health.Failed
			}
		}
		e.judge.mu.Lock()
		defer e.judge.mu.Unlock()
		e.rank.Probed(trace.Now(), result, why)
		e.judge.publish(e)
	})
}

// ask probes. A panic is a probe of which nothing is known.
func (e *Engine) ask(ctx context.Context, prober engine.Prober, asked engine.Probe) (err error) {
	defer func() {
		if p := engine.Caught(recover(), e.panicked); p != nil {
			err = engine.ErrNoProbe
		}
	}()
	return prober.Probe(ctx, asked)
}
