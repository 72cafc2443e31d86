// Package engine is a running simulated engine: the core on the real clock, and its legs of pairs with
// other simulated engines. Servers hand requests and aborts to it through an inbox, and take results from
// outboxes. It knows no API.
package engine

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/kvpub"
	"weir/internal/sim/simserver/conns"
	"weir/internal/trace"
)

// Options describe an engine.
type Options struct {
	Sim sim.Options
	// Role is the engine's part where prefill and decode run on two engines.
	Role infer.Role
	Legs LegsOptions
	// Aborted is what becomes of a prefill leg that is aborted while its prompt is computed.
	Aborted sim.Aborted
	// TellsAborts reports whether an aborted decode leg's prefill engine is told of it.
	TellsAborts bool
	// KVEvents, if not nil, publishes the content of the KV caches.
	KVEvents *kvpub.Publisher
	// Faults hold from the start.
	Faults []sim.Fault
	// GoTimers has the engine use Go's timers alone, for tests in virtual time.
	GoTimers bool
}

// Engine is a simulated engine.
type Engine struct {
	opts     Options
	core     *sim.Core // Run's
	o        *sim.Options
	instance atomic.Pointer[string]
	began    atomic.Int64 // when the present process began, in ns since 1970

	faultsMu sync.Mutex
	faults   *sim.Faults
	gate     conns.Gate // shut while the engine pauses
	stormAt  int64      // when all are retracted next, 0 for not; Run's
	idle     atomic.Bool
	still    bool          // some rank stands still; Run's
	fences   []fence       // that wait for the loop; Run's
	kvEvents []sim.KVEvent // Run's
	restart  restart

	inbox inbox
	done  chan struct{} // closed when Run has returned

	dieOnce sync.Once
	dead    chan struct{} // closed when a request has ended the engine
	why     error         // then

	jobs    []*Job // by ref; Run's
	legs    *legs  // Run's
	touched []*Outbox
	late    lateness
	meter   meter
	again   []int // by DP rank: requests in the queue again

	refused  atomic.Uint64 // by a server, before the core saw them
	sessions atomic.Int64  // that gateways have open

	abortsMu sync.Mutex
	aborts   []Abort // a ring
	aborted  int     // put into it

	stateMu sync.Mutex
	counts  sim.Counts
	lateNow lateness
	loads   []sim.Load // by DP rank, as the next
	waiting []int      // again's
	stood   []float64  // since when the rank stands still, in seconds since 1970; 0: it does not
}

// New makes an engine that stands still until Run.
func New(o Options) (*Engine, error) {
	core, err := sim.New(o.Sim)
	if err != nil {
		return nil, err
	}
	faults, err := sim.NewFaults(o.Faults)
	if err != nil {
		return nil, err
	}
	e := &Engine{
		opts:   o,
		core:   core,
		o:      core.Options(),
		faults: faults,
		inbox:  inbox{wake: make(chan struct{}, 1)},
		done:   make(chan struct{}),
		dead:   make(chan struct{}),
		again:  make([]int, core.Options().DPSize),
		stood:  make([]float64, core.Options().DPSize),
	}
	e.opts.Legs.setDefaults()
	e.legs = newLegs(e)
	e.rename()
	e.publish()
	return e, nil
}

// Job is a request on its way through the engine.
type Job struct {
	Box  *Outbox
	Slot uint32 // the box's name for it
	Seed int64  // of its request
	Leg  *Leg   // nil where it is whole
	// AtOnce reports whether the answer is not streamed.
	AtOnce bool

	// Run's:
	stamps infer.Stamps // from its first id on
	rank   int          // of DP, from its first id on
	queued bool         // it was sent back to the queue, and has had no id since
	ref    sim.Ref
	live   bool         // the core has it
	ended  infer.Reason // set when it ended before the core had it
}

// Run drives the engine until ctx ends, or a request has ended it. It is called once. Requests handed in
// earlier wait for it; those left when it ends are answered with an error.
func (e *Engine) Run(ctx context.Context) {
	defer close(e.done)
	defer e.legs.close()
	defer e.inbox.close()
	alarm := newAlarm(e.opts.GoTimers)
	defer alarm.close()
	var ops []op
	for {
		e.gate.Wait(ctx.Done())
		if !e.hindered(ctx) {
			return
		}
		ops = e.inbox.take(ops)
		for i := range ops {
			// Events that were due earlier happen first.
			e.advance(ops[i].at)
			e.apply(&ops[i])
		}
		clear(ops)
		now := trace.Now()
		e.storm(now)
		e.advance(now)
		if len(ops) > 0 {
			e.publish() // the step that has begun with them
		}
		e.pass(now)
		e.restarted()

		if due, ok := e.core.Due(); ok {
			alarm.set(due)
		}
		select {
		case <-ctx.Done():
			return
		case <-e.dead:
			return
		case <-e.inbox.wake:
		case <-alarm.c:
		}
	}
}

// Options returns the options of the core, with its defaults. Nobody may change them.
func (e *Engine) Options() *sim.Options { return e.o }

// Role is the engine's part where prefill and decode run on two engines.
func (e *Engine) Role() infer.Role { return e.opts.Role }

// Legs returns how the engine takes part in pairs. Nobody may change it.
func (e *Engine) Legs() *LegsOptions { return &e.opts.Legs }

// KVEvents publishes the content of the KV caches; nil: nobody does.
func (e *Engine) KVEvents() *kvpub.Publisher { return e.opts.KVEvents }

// Done returns a channel that is closed when Run has returned.
func (e *Engine) Done() <-chan struct{} { return e.done }

// Instance is the name of the present process.
func (e *Engine) Instance() string { return *e.instance.Load() }

// Began is when the present process began, in nanoseconds since 1970.
func (e *Engine) Began() int64 { return e.began.Load() }

// Refused counts a request that a server refused before the engine saw it.
func (e *Engine) Refused() { e.refused.Add(1) }

// Sessions counts sessions that gateways opened, or closed if it is negative.
func (e *Engine) Sessions(opened int64) { e.sessions.Add(opened) }

// rename gives the engine the name of a new process.
func (e *Engine) rename() {
	var id [8]byte
	rand.Read(id[:]) // it never fails
	e.instance.Store(new(hex.EncodeToString(id[:])))
	e.began.Store(time.Now().UnixNano())
}

// storm has all that generate retracted when a fault wants it.
func (e *Engine) storm(now int64) {
	e.faultsMu.Lock()
	defer e.faultsMu.Unlock()
	every := int64(e.faults.Storm())
	switch {
	case every == 0:
		e.stormAt = 0
	case e.stormAt == 0:
		e.stormAt = now + every
	case now >= e.stormAt:
		e.stormAt = now + every
		if e.core.Counts().Running > 0 {
			e.core.Retract(math.MaxInt)
			e.faults.Stormed()
		}
	}
}

func (e *Engine) apply(o *op) {
	j := o.job
	switch {
	case o.call != nil:
		o.call()
	case o.reply == nil && !j.live:
		// The abort came before the submission or after the end, which makes no difference.
		j.ended = o.reason
	case o.reply == nil && o.reason == infer.ReasonStop:
		e.core.Stop(o.at, j.ref)
	case o.reply == nil:
		e.abortNow(j, o.at)
	default:
		ref, err := e.core.Submit(o.at, o.created, o.request)
		if err == nil {
			j.ref, j.live = ref, true
			for int(ref) >= len(e.jobs) {
				e.jobs = append(e.jobs, nil)
			}
			e.jobs[ref] = j
			if j.Leg != nil {
				e.legs.opened(j, o.request, o.at)
			}
			if j.ended != "" {
				e.abortNow(j, o.at)
			}
		}
		e.publish()
		o.reply <- err
	}
}

// abortNow aborts a request that the core has.
func (e *Engine) abortNow(j *Job, at int64) {
	if g := j.Leg; g == nil || g.Key == "" || g.leased() || g.struck(sim.Abort) {
		e.core.Abort(at, j.ref)
		return
	}
	j.Leg.aborted = true
	e.core.AbortPrefill(at, j.ref, e.opts.Aborted, errDropped())
}

func (e *Engine) advance(now int64) {
	for s := e.core.Advance(now); s != nil; s = e.core.Advance(now) {
		e.late.add(time.Duration(now - s.End))
		// Before it is delivered: a client that has its end finds it counted.
		e.publish()
		e.tellKV()
		e.deliver(s)
	}
}

// tellKV publishes what has changed of the KV caches.
func (e *Engine) tellKV() {
	if e.opts.KVEvents == nil {
		return
	}
	for i := range e.o.DPSize {
		e.kvEvents = e.core.KVEvents(i, e.kvEvents[:0])
		e.opts.KVEvents.Publish(time.Now(), i, e.kvEvents)
	}
}

// deliver hands a step's results to their boxes: columns first, then one
// flush per box.
func (e *Engine) deliver(s *sim.Step) {
	e.meter.step(s, e.jobs)
	e.legs.step(s)
	for i, ref := range s.Ref {
		j := e.jobs[ref]
		e.touch(j.Box)
		if j.queued {
			e.requeued(j, false)
		}
		j.Box.building.Add(j.Slot, s.ID[i], s.Total[i])
	}
	for _, f := range s.First {
		j := e.jobs[f.Ref]
		j.Box.building.First = append(j.Box.building.First, First{Slot: j.Slot, First: f})
	}
	for _, k := range s.Kept {
		j := e.jobs[k.Ref]
		e.touch(j.Box)
		j.Box.building.Kept = append(j.Box.building.Kept, Kept{Slot: j.Slot, End: s.End, Kept: k})
	}
	for _, d := range s.Done {
		j := e.jobs[d.Ref]
		e.touch(j.Box)
		j.Box.building.Done = append(j.Box.building.Done, Done{Slot: j.Slot, End: s.End, Queued: j.queued, Done: d})
		if j.queued {
			e.requeued(j, false)
		}
		j.live = false
		e.jobs[d.Ref] = nil
	}
	for _, ref := range s.Retracted {
		// The cause is reported with the next result.
		j := e.jobs[ref]
		e.requeued(j, true)
		j.Box.building.Retracted = append(j.Box.building.Retracted, j.Slot)
	}
	for i, b := range e.touched {
		b.flush(s.End, s.Running, s.Waiting)
		e.touched[i] = nil
	}
	e.touched = e.touched[:0]
}

// requeued notes that a request was sent back to the queue, or left it again.
func (e *Engine) requeued(j *Job, queued bool) {
	if j.queued = queued; queued {
		e.again[j.rank]++
	} else {
		e.again[j.rank]--
	}
}

func (e *Engine) touch(b *Outbox) {
	if !b.touched {
		b.touched = true
		e.touched = append(e.touched, b)
	}
}

// Submit hands a request to the core and reports whether it was queued. If it returns an
// error of ctx, the request is aborted.
func (e *Engine) Submit(ctx context.Context, j *Job, created int64, r sim.Request) error {
	reply := make(chan error, 1)
	if !e.inbox.put(op{job: j, created: created, request: r, reply: reply}) {
		return ErrStopped()
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		e.End(j, infer.ReasonAbort)
		return ctx.Err()
	}
}

// Abort is a request that its gateway gave up.
type Abort struct {
	Seed int64 `json:"seed"` // the request's
	Time int64 `json:"time"` // when the engine knew, ns on CLOCK_MONOTONIC
}

// keepAborts is how many are kept.
const keepAborts = 8192

// Abort ends a request that nobody wants any more, and notes when.
func (e *Engine) Abort(j *Job) {
	a := Abort{j.Seed, trace.Now()}
	e.End(j, infer.ReasonAbort)
	e.abortsMu.Lock()
	defer e.abortsMu.Unlock()
	if len(e.aborts) < keepAborts {
		e.aborts = append(e.aborts, a)
	} else {
		e.aborts[e.aborted%keepAborts] = a
	}
	e.aborted++
}

// Aborts returns the latest aborts, in no order.
func (e *Engine) Aborts() []Abort {
	e.abortsMu.Lock()
	defer e.abortsMu.Unlock()
	return slices.Clone(e.aborts)
}

// End aborts or stops a request; it does not wait.
func (e *Engine) End(j *Job, reason infer.Reason) {
	e.inbox.put(op{job: j, reason: reason})
}

// do makes Run call f, and waits for it.
func (e *Engine) do(ctx context.Context, f func()) error {
	return e.called(ctx, func(over func()) { f(); over() })
}

// called makes Run call f, and waits until over is called, then or later. It returns an
// error if ctx or the engine ends first.
func (e *Engine) called(ctx context.Context, f func(over func())) error {
	done := make(chan struct{})
	if !e.inbox.put(op{call: func() { f(func() { close(done) }) }}) {
		return ErrStopped()
	}
	select {
	case <-done:
		return nil
	case <-e.done:
		return ErrStopped()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// ErrStopped is the error of what the engine does not do any more.
func ErrStopped() error {
	return infer.Errorf(infer.CodeUnavailable, "the engine is shutting down")
}

// Fault draws the fault that strikes the next request, if one does.
func (e *Engine) Fault(id string, prompt func() []byte) (sim.Fault, bool) {
	e.faultsMu.Lock()
	defer e.faultsMu.Unlock()
	return e.faults.Request(sim.Target{ID: id, Prompt: prompt})
}
