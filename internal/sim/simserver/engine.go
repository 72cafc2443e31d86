// Package simserver runs a simulated engine. It drives the core of package sim with the
// real clock, connects it to wires (weir's batched plane and the HTTP APIs of SGLang, vLLM
// and OpenAI), and injects faults.
//
// All HTTP answers share one path: an exchange takes the results of its request, digests
// them into its outputs, and writes all pending output through a form, which holds the
// differences between the wires. Faults take effect in the digest, and therefore on all
// wires.
//
// A request may be one leg of a pair, on two engines. Run joins legs (legs.go) by messages
// between simulated engines (link.go), over connections that have their own goroutines.
//
// Goroutines: the one of Run, which alone touches the core; and those of each server, one
// per HTTP request or gRPC call. They meet in two places. Requests and aborts go to the
// core through an inbox, with their times of arrival. Results come back through one outbox
// per connection of a client (a plane session, an HTTP answer); Run appends to it and never
// waits. All goroutines end when their context does.
package simserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/kvpub"
	"weir/internal/sim/simserver/conns"
	"weir/internal/sim/simserver/guard"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/trace"
	"weir/internal/workload/content"
)

// Software is the name and version that the engine reports.
const Software = "weir-sim 0.1"

// Options describe an engine and how it is served.
type Options struct {
	Sim sim.Options
	// Tokenizer is needed by the HTTP servers, and by faults with a marker on the
	// plane.
	Tokenizer vocab.Tokenizer
	// Placeholders are the ids that stand for an image or audio in a prompt; what
	// has none is not taken.
	Placeholders map[infer.MediaKind]uint32
	// Speaker generates tool calls, reasoning and documents. If it is nil, all output is
	// words, whatever is asked for.
	Speaker *content.Speaker
	// SGLang and VLLM shape the servers that speak like these engines.
	SGLang SGLangOptions
	VLLM   VLLMOptions
	// Role is the engine's part where prefill and decode run on two engines.
	Role infer.Role
	Legs LegsOptions
	// Access restricts who may ask. The admin listener is always open.
	Access guard.Access
	// KVEvents, if not nil, publishes the content of the KV caches. Sim.KVEvents must be
	// set, and the caller must run its Serve.
	KVEvents *kvpub.Publisher
	// Faults hold from the start; the admin call replaces them.
	Faults []sim.Fault
	// Admin serves the other paths of the admin's listener; nil: there are none.
	Admin http.Handler
	// MaxPending bounds the ids held for a gateway that does not read its
	// steps; beyond it the gateway's session is broken. Default 4 Mi ids.
	MaxPending int
}

type (
	// Access defines who may ask an engine, and with which keys and TLS settings.
	Access = guard.Access
	// Tokenizer turns text into ids and back. It is called from many goroutines.
	Tokenizer = vocab.Tokenizer
)

// Engine is a simulated engine.
type Engine struct {
	opts     Options
	core     *sim.Core // Run's
	prepare  *sim.Options
	vocab    *vocab.Vocab
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

	goTimers bool // Run's alarm is Go's, for tests in virtual time

	jobs    []*job // by ref; Run's
	legs    *legs  // Run's
	touched []*outbox
	late    lateness
	meter   meter
	again   []int // by DP rank: requests in the queue again

	refused  atomic.Uint64 // by a server, before the core saw them
	sessions sessions

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
	if o.MaxPending == 0 {
		o.MaxPending = 4 << 20
	}
	if o.SGLang.Version == "" {
		o.SGLang.Version = SGLangVersion
	}
	if o.SGLang.Grammar == "" {
		o.SGLang.Grammar = "xgrammar"
	}
	if o.SGLang.WeightVersion == "" {
		o.SGLang.WeightVersion = "default"
	}
	e := &Engine{
		opts:     o,
		core:     core,
		prepare:  core.Options(),
		vocab:    vocab.New(core.Options(), o.Tokenizer, o.Placeholders, o.Speaker),
		faults:   faults,
		inbox:    inbox{wake: make(chan struct{}, 1)},
		done:     make(chan struct{}),
		dead:     make(chan struct{}),
		again:    make([]int, core.Options().DPSize),
		stood:    make([]float64, core.Options().DPSize),
		sessions: sessions{byID: map[uint64]*session{}},
	}
	e.opts.Legs.setDefaults()
	if t := e.opts.VLLM.Transfer; t != nil {
		e.opts.VLLM.Transfer = new(*t)
		e.opts.VLLM.Transfer.Lease = cmp.Or(t.Lease, defaultLease)
	}
	e.legs = newLegs(e)
	e.rename()
	e.publish()
	return e, nil
}

// job is a request on its way through the engine.
type job struct {
	box  *outbox
	slot uint32 // the box's name for it
	seed int64  // of its request
	leg  *leg   // nil where it is whole
	// atOnce reports whether the answer is not streamed.
	atOnce bool

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
	alarm := newAlarm(e.goTimers)
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
			if j.leg != nil {
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
func (e *Engine) abortNow(j *job, at int64) {
	if g := j.leg; g == nil || g.key == "" || g.leased() || g.struck(sim.Abort) {
		e.core.Abort(at, j.ref)
		return
	}
	j.leg.aborted = true
	e.core.AbortPrefill(at, j.ref, e.opts.SGLang.aborted(), errDropped())
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
	for i := range e.prepare.DPSize {
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
		e.touch(j.box)
		if j.queued {
			e.requeued(j, false)
		}
		j.box.building.add(j.slot, s.ID[i], s.Total[i])
	}
	for _, f := range s.First {
		j := e.jobs[f.Ref]
		j.box.building.first = append(j.box.building.first, first{slot: j.slot, First: f})
	}
	for _, k := range s.Kept {
		j := e.jobs[k.Ref]
		e.touch(j.box)
		j.box.building.kept = append(j.box.building.kept, kept{slot: j.slot, end: s.End, Kept: k})
	}
	for _, d := range s.Done {
		j := e.jobs[d.Ref]
		e.touch(j.box)
		j.box.building.done = append(j.box.building.done, done{slot: j.slot, end: s.End, queued: j.queued, Done: d})
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
		j.box.building.retracted = append(j.box.building.retracted, j.slot)
	}
	for i, b := range e.touched {
		b.flush(s.End, s.Running, s.Waiting)
		e.touched[i] = nil
	}
	e.touched = e.touched[:0]
}

// requeued notes that a request was sent back to the queue, or left it again.
func (e *Engine) requeued(j *job, queued bool) {
	if j.queued = queued; queued {
		e.again[j.rank]++
	} else {
		e.again[j.rank]--
	}
}

func (e *Engine) touch(b *outbox) {
	if !b.touched {
		b.touched = true
		e.touched = append(e.touched, b)
	}
}

// submit hands a request to the core and reports whether it was queued. If it returns an
// error of ctx, the request is aborted.
func (e *Engine) submit(ctx context.Context, j *job, created int64, r sim.Request) error {
	reply := make(chan error, 1)
	if !e.inbox.put(op{job: j, created: created, request: r, reply: reply}) {
		return errStopped()
	}
	select {
	case err := <-reply:
		return err
	case <-ctx.Done():
		e.end(j, infer.ReasonAbort)
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

// abort ends a request that nobody wants any more, and notes when.
func (e *Engine) abort(j *job) {
	a := Abort{j.seed, trace.Now()}
	e.end(j, infer.ReasonAbort)
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

// end aborts or stops a request; it does not wait.
func (e *Engine) end(j *job, reason infer.Reason) {
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
		return errStopped()
	}
	select {
	case <-done:
		return nil
	case <-e.done:
		return errStopped()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func errStopped() error {
	return infer.Errorf(infer.CodeUnavailable, "the engine is shutting down")
}

// fault draws the fault that strikes the next request, if one does.
func (e *Engine) fault(id string, prompt func() []byte) (sim.Fault, bool) {
	e.faultsMu.Lock()
	defer e.faultsMu.Unlock()
	return e.faults.Request(sim.Target{ID: id, Prompt: prompt})
}
