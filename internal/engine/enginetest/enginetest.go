// Package enginetest holds the conformance suite of engine.Tokens: the behavior that
// every adapter must have, independent of its wire. An adapter's test implements the
// engine's end of the wire as a Peer and calls Run:
//
//	func TestConformance(t *testing.T) {
//		enginetest.Run(t, func(t *testing.T) enginetest.Rig { ... })
//	}
//
// The suite never sleeps. To show that something does not happen, it sends something
// else over the same wire and waits for that.
package enginetest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Patience bounds every wait of the suite; only a failing test waits so long.
const Patience = time.Minute

// Rig is an adapter not yet running and the engine that it will connect to.
type Rig struct {
	Engine Adapter
	Peer   Peer
	// Clock is set if the wire carries engine stamps.
	Clock bool
	// NoWord are the refusals that the wire has no way to say.
	NoWord []infer.Code
	// Alone is set if each request has its own connection.
	Alone bool
	// Panics is told of the adapter's.
	Panics *Panics
}

// Panics are those that an adapter has caught.
type Panics struct {
	mu  Watched
	all []*infer.Panic
}

// Tell takes one in.
func (p *Panics) Tell(x *infer.Panic) { p.mu.Update(func() { p.all = append(p.all, x) }) }

// Await waits for the nth.
func (p *Panics) Await(ctx context.Context, n int) error {
	return p.mu.Await(ctx, fmt.Sprintf("panic %d", n), func() bool { return len(p.all) >= n })
}

// All returns those told so far.
func (p *Panics) All() []*infer.Panic {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.all)
}

// Adapter is what the suite tests.
type Adapter interface {
	engine.Tokens
	engine.Adapter
}

// Out is what a step brings for one request: ids, then, when Finish is set,
// the end. ReasonError stands for a failure of the engine.
type Out struct {
	ID  string
	IDs []uint32
	// Logprobs are sent with the ids as they are, whether or not they are of as
	// many; nil sends none.
	Logprobs *infer.Logprobs
	Finish   infer.Reason
}

// Peer is the engine's end of the wire, as the suite drives it. Requests are
// confirmed at once unless Hold or Refuse says otherwise.
type Peer interface {
	// Hold leaves the requests that arrive from now on unconfirmed.
	Hold()
	// Confirm confirms a request that was held.
	Confirm(id string)
	// Refuse has the next request refused in the wire's own way for a code:
	// CodeInvalid, CodeOverloaded or CodeUnavailable.
	Refuse(code infer.Code)
	// Arrived waits until the engine has read a request.
	Arrived(ctx context.Context, id string) error
	// Aborted waits until the engine was told to stop a request. It does not
	// end the request; a Step with ReasonAbort does.
	Aborted(ctx context.Context, id string) error
	// Step sends output, in one message if the wire carries several requests in
	// one. A request may be held still.
	Step(out ...Out)
	// Miscount sends a step whose cumulative count for a request is one more
	// than its ids; on a wire without one, a step that breaks the count it has,
	// with more ids than the request's limit.
	Miscount(id string, ids ...uint32)
	// Cut breaks the connection and takes no new one until Restore.
	Cut()
	Restore()
}

// Recorder is a Sink that keeps what it is offered and notes each breach of
// the Sink's contract.
type Recorder struct {
	attempt  uint32
	offering atomic.Int32

	panics atomic.Int32 // that are still to come

	mu     Watched
	sealed bool
	ids    []uint32
	scored infer.Logprobs
	top    int // of each id's alternatives; -1: the ids have no log probabilities
	deltas int
	stamps *infer.Stamps
	finish *infer.Finish
	faults []string
}

// NewRecorder makes a Recorder for the deltas of an attempt.
func NewRecorder(attempt uint32) *Recorder {
	return &Recorder{attempt: attempt, top: -1}
}

// Scores reports that the ids come with log probabilities, and so many alternatives
// each.
func (r *Recorder) Scores(top int) { r.top = top }

// Panic has the next n Offers panic, as a defect of whoever takes output in would.
func (r *Recorder) Panic(n int32) { r.panics.Store(n) }

// Offer implements engine.Sink.
func (r *Recorder) Offer(d *infer.Delta) {
	alone := r.offering.Add(1) == 1
	defer r.offering.Add(-1)
	r.mu.Update(func() { r.take(d, alone) })
	if r.panics.Add(-1) >= 0 {
		panic("a sink's")
	}
}

// take is Offer with the lock held; alone says that no other Offer is under way.
func (r *Recorder) take(d *infer.Delta, alone bool) {
	switch {
	case !alone:
		r.faultf("two Offers at once")
	case r.sealed:
		r.faultf("a delta with %d ids after Generate had failed", len(d.IDs))
	case r.finish != nil:
		r.faultf("a delta with %d ids, finish %v, after the terminal one", len(d.IDs), d.Finish)
	case d.Attempt != r.attempt:
		r.faultf("attempt %d, want %d", d.Attempt, r.attempt)
	case d.Choice != 0:
		r.faultf("choice %d of one", d.Choice)
	case d.Total != len(r.ids)+len(d.IDs):
		r.faultf("total %d after %d and %d ids", d.Total, len(r.ids), len(d.IDs))
	case d.Received == 0:
		r.faultf("a delta without the time it was received")
	case r.top < 0 && d.Logprobs != nil:
		r.faultf("log probabilities that were not asked for")
	case r.top >= 0 && !d.Logprobs.Fits(len(d.IDs), r.top):
		r.faultf("log probabilities %v of %d ids, with %d alternatives each", d.Logprobs, len(d.IDs), r.top)
	case d.Logprobs != nil && d.Logprobs.Prompt != nil && len(r.ids) > 0:
		r.faultf("log probabilities of the prompt after %d ids", len(r.ids))
	}
	if d.Logprobs != nil {
		r.scored.Append(d.Logprobs)
	}
	r.deltas++
	r.ids = append(r.ids, d.IDs...)
	if d.Stamps != nil {
		s := *d.Stamps
		r.stamps = &s
	}
	if d.Finish != nil {
		f := *d.Finish
		r.finish = &f
		if (f.Reason == infer.ReasonError) != (f.Err != nil) {
			r.faultf("reason %q with error %v", f.Reason, f.Err)
		}
	}
}

func (r *Recorder) faultf(format string, args ...any) {
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// Seal reports that Generate has failed: any delta from now on is a breach.
func (r *Recorder) Seal() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sealed = true
}

// IDs returns the ids received so far.
func (r *Recorder) IDs() []uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]uint32(nil), r.ids...)
}

// Logprobs returns the log probabilities received so far.
func (r *Recorder) Logprobs() infer.Logprobs {
	r.mu.Lock()
	defer r.mu.Unlock()
	var l infer.Logprobs
	l.Append(&r.scored)
	return l
}

// Deltas counts the deltas received so far.
func (r *Recorder) Deltas() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deltas
}

// Stamps returns the engine's stamps, or nil when none came.
func (r *Recorder) Stamps() *infer.Stamps {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stamps
}

// Faults lists the breaches so far.
func (r *Recorder) Faults() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.faults...)
}

// WaitIDs waits until n ids have come.
func (r *Recorder) WaitIDs(ctx context.Context, n int) error {
	return r.wait(ctx, fmt.Sprintf("%d ids", n), func() bool { return len(r.ids) >= n })
}

// WaitFinish waits for the terminal delta.
func (r *Recorder) WaitFinish(ctx context.Context) (*infer.Finish, error) {
	err := r.wait(ctx, "the terminal delta", func() bool { return r.finish != nil })
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.finish, nil
}

func (r *Recorder) wait(ctx context.Context, what string, done func() bool) error {
	if err := r.mu.Await(ctx, what, done); err != nil {
		return fmt.Errorf("%w, have %d ids", err, len(r.IDs()))
	}
	return nil
}

// Bench is a rig whose adapter runs, with what a test needs around it.
type Bench struct {
	T    testing.TB
	Rig  Rig
	Ctx  context.Context // ends after Patience
	Rank int             // that requests are for; -1, which it begins with: none is named
	// Caller is what the engine is told of the trace that requests are part of.
	Caller *trace.Caller
	stop   context.CancelFunc
	done   chan struct{}

	mu     Watched
	states []engine.State
	next   int
	sinks  []*Recorder
}

// Start runs the rig's adapter and waits until it is ready. The test's end
// stops it and checks every sink that NewSink gave out.
func Start(t testing.TB, rig Rig) *Bench {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	b := &Bench{T: t, Rig: rig, Ctx: ctx, Rank: -1, done: make(chan struct{})}
	var run context.Context
	run, b.stop = context.WithCancel(context.Background())
	go func() {
		defer close(b.done)
		rig.Engine.Run(run, b.report)
	}()
	t.Cleanup(func() {
		b.Stop()
		cancel()
		b.mu.Lock()
		sinks := b.sinks
		b.mu.Unlock()
		for i, s := range sinks {
			for _, f := range s.Faults() {
				t.Errorf("sink %d: %s", i, f)
			}
		}
	})
	b.WaitReady(true)
	return b
}

func (b *Bench) report(s engine.State) {
	b.mu.Update(func() { b.states = append(b.states, s) })
}

// Stop ends Run and waits for it.
func (b *Bench) Stop() {
	b.stop()
	select {
	case <-b.done:
	case <-time.After(Patience):
		b.T.Error("Run did not return after its context ended")
	}
}

// WaitReady waits until the adapter's last report is ready, or is not, and
// returns it.
func (b *Bench) WaitReady(ready bool) engine.State {
	b.T.Helper()
	var last engine.State
	err := b.mu.Await(b.Ctx, fmt.Sprintf("ready=%v", ready), func() bool {
		n := len(b.states)
		if n > 0 {
			last = b.states[n-1]
		}
		return n > 0 && last.Ready == ready
	})
	if err != nil {
		b.T.Fatalf("%v; the last report: %+v", err, last)
	}
	return last
}

// Request makes a request with an id of its own.
func (b *Bench) Request(maxTokens int) *infer.Request {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	return &infer.Request{
		ID:        fmt.Sprintf("conformance-%08d", b.next),
		Model:     "test",
		Prompt:    []uint32{1, 2, 3},
		MaxTokens: maxTokens,
	}
}

// NewSink makes a Recorder whose faults fail the test.
func (b *Bench) NewSink(attempt uint32) *Recorder {
	r := NewRecorder(attempt)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sinks = append(b.sinks, r)
	return r
}

// Call is one Generate and what came of it.
type Call struct {
	Request *infer.Request
	Sink    *Recorder
	Leg     trace.Leg
	Gen     engine.Generation
	Err     error
	done    chan struct{}
}

// Go starts a Generate without waiting for it.
func (b *Bench) Go(ctx context.Context, maxTokens int) *Call {
	return b.GoWith(ctx, b.Request(maxTokens))
}

// GoWith is Go with a request of the test's own.
func (b *Bench) GoWith(ctx context.Context, req *infer.Request) *Call {
	c := &Call{Request: req, Sink: b.NewSink(1), Leg: trace.Leg{DPRank: b.Rank, Caller: b.Caller}, done: make(chan struct{})}
	if req.Logprobs != nil {
		c.Sink.Scores(*req.Logprobs)
	}
	go func() {
		defer close(c.done)
		c.Gen, c.Err = b.Rig.Engine.Generate(ctx, c.Request, 1, c.Sink, &c.Leg)
		if c.Err != nil {
			c.Sink.Seal()
		}
	}()
	return c
}

// Wait waits for the Generate of c to return.
func (b *Bench) Wait(c *Call) {
	b.T.Helper()
	select {
	case <-c.done:
	case <-b.Ctx.Done():
		b.T.Fatal("Generate did not return")
	}
}

// Accept is a Generate that must succeed.
func (b *Bench) Accept(maxTokens int) *Call {
	b.T.Helper()
	c := b.Go(b.Ctx, maxTokens)
	b.Wait(c)
	if c.Err != nil {
		b.T.Fatalf("Generate: %v", c.Err)
	}
	return c
}

// Barrier shows that everything the peer has sent before was dispatched: it
// passes another request through after it.
func (b *Bench) Barrier() {
	b.T.Helper()
	c := b.Accept(1)
	b.Rig.Peer.Step(Out{ID: c.Request.ID, IDs: []uint32{7}, Finish: infer.ReasonStop})
	b.WantFinish(c, infer.ReasonStop)
}

// WantFinish waits for the end of c and checks its reason.
func (b *Bench) WantFinish(c *Call, want infer.Reason) *infer.Finish {
	b.T.Helper()
	f, err := c.Sink.WaitFinish(b.Ctx)
	if err != nil {
		b.T.Fatal(err)
	}
	if f.Reason != want {
		b.T.Fatalf("finished with %v, want %s", f, want)
	}
	return f
}

// Must fails the test when a wait of the peer's failed.
func (b *Bench) Must(err error) {
	b.T.Helper()
	if err != nil {
		b.T.Fatal(err)
	}
}
