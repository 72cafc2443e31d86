// Package sim is a simulated inference engine: continuous batching in steps under a token
// budget, with chunked prefill mixed into decode steps, a waiting queue, a paged KV cache
// with a prefix tree, a cost model, and content that verifies itself. It generates no
// knowledge, but its timing, counts and failures are those of an engine.
//
// This package is the core. It runs on virtual time: the caller passes events with their
// times, and the core returns what happened and when it must be called next. It has no
// goroutine, clock or socket. Package simserver adds them; an offline run needs none.
//
// The generated ids depend only on the prompt and the seed. Batching, caching, retraction,
// speculation, ranks and roles change when an id is generated, but not which id it is.
package sim

import (
	"math"
	"slices"
	"time"

	"weir/internal/infer"
	"weir/internal/workload/content"
)

// Core is the engine's state. It belongs to one goroutine. Times are nanoseconds on any
// clock and must not go back between calls.
//
// A step begins with a fixed batch and takes as long as the cost model says. Its results
// exist at its end, and the next step begins at the same time, however late Advance is
// called: deadlines are absolute, so that delays of the driver do not add up. Events
// between the begin and the end of a step wait for the next one.
type Core struct {
	opts   Options
	hazard content.Hazard
	accept acceptance

	requests []request // by Ref
	details  []details // by Ref
	free     []Ref
	ranks    []rank

	hindrance Hindrance

	ended int // requests aborted or stopped and not yet reaped
	storm int // requests to retract before the next step

	lastOwed int // see owe

	busy       bool // a step is under way
	start, end int64
	wake       bool // idle, but there is something to do at wakeAt
	wakeAt     int64

	out    Step
	counts Counts
}

// New makes an idle engine.
func New(o Options) (*Core, error) {
	o, err := o.WithDefaults()
	if err != nil {
		return nil, err
	}
	c := &Core{opts: o, hazard: content.MeanLength(o.MeanTokens), accept: newAcceptance(o.Speculation), ranks: make([]rank, o.DPSize)}
	for i := range c.ranks {
		c.ranks[i].share = c.share(initialShare)
		c.ranks[i].soon, c.ranks[i].link = forever, math.MinInt64
		if o.KVTokens > 0 {
			c.ranks[i].kv = newKV(o.KVTokens, o.PageSize)
			c.ranks[i].kv.notes = o.KVEvents
		}
	}
	return c, nil
}

// Options are the engine's options with defaults filled in.
func (c *Core) Options() *Options { return &c.opts }

// Submit queues a request at time now; created is the time when its server read it. It
// fails with CodeOverloaded if the queue is full.
func (c *Core) Submit(now, created int64, r Request) (Ref, error) {
	c.counts.Received++
	at := c.place(r.rank)
	k := &c.ranks[at]
	if !r.await && c.opts.MaxQueued > 0 && k.waiting.len()-k.displaced >= c.opts.MaxQueued && !c.displace(k, r.priority, now) {
		c.counts.Rejected++
		return 0, infer.Errorf(infer.CodeOverloaded, "the engine's queue is full with %d requests waiting; try again later", k.waiting.len()-k.displaced)
	}
	ref := c.alloc()
	c.set(ref, &r, at, created, now)
	if r.await {
		c.await(k, ref, now)
	} else {
		k.waiting.push(ref, r.priority)
		k.queued += int64(r.prompt)
	}
	c.rouse(now)
	return ref, nil
}

// Abort ends a request that is no longer wanted. It takes effect at the end of the step
// under way: the request gets no more ids, and its Done comes with that step. Aborting a
// request twice has no further effect.
func (c *Core) Abort(now int64, ref Ref) { c.conclude(now, ref, endAborted) }

// Aborted is how a prefill engine treats an aborted leg whose prompt it computes.
type Aborted uint8

// The treatments.
const (
	AbortedDropped  Aborted = iota // it ends after the step, and its KV is dropped
	AbortedLast                    // the same, unless the step computes the last of its prompt: then it has no effect
	AbortedFinished                // it has no effect
)

// AbortPrefill is Abort of a prefill leg that does not depend on its partner's server, as
// SGLang's scheduler does it: a leg that waits for its partner, or whose KV is kept, fails
// by why.
func (c *Core) AbortPrefill(now int64, ref Ref, how Aborted, why *infer.Error) {
	r, d := &c.requests[ref], &c.details[ref]
	switch last := int(r.prefilled)+d.chunk >= r.length(); {
	case r.phase == phaseAwait, r.phase == phaseKept:
		c.Break(now, ref, why)
	case r.phase == phasePrefill && (how == AbortedFinished || how == AbortedLast && last):
	default:
		c.Abort(now, ref)
	}
}

// Stop ends a request as Abort does, because its server found a stop string in
// its text: it counts as finished.
func (c *Core) Stop(now int64, ref Ref) { c.conclude(now, ref, endStopped) }

func (c *Core) conclude(now int64, ref Ref, how ending) {
	r := &c.requests[ref]
	if r.phase == phaseFree || r.ended != notEnded {
		return
	}
	r.ended = how
	c.ended++
	c.rouse(now)
}

// rouse notes that an idle engine has something to look at.
func (c *Core) rouse(now int64) {
	if !c.busy && (!c.wake || now < c.wakeAt) {
		c.wake, c.wakeAt = true, now
	}
}

// Due returns when Advance must be called next, and false if nothing happens before the
// next Submit or Abort.
func (c *Core) Due() (int64, bool) {
	switch {
	case c.busy:
		return c.end, true
	case c.wake:
		return c.wakeAt, true
	}
	return 0, false
}

// Advance ends the step that is due at now, if one is, begins the next, and
// returns the result, or nil when there is none. Call it until it returns nil.
func (c *Core) Advance(now int64) *Step {
	for {
		at, ok := c.Due()
		if !ok || at > now {
			return nil
		}
		if s := c.turn(at, now); s != nil {
			return s
		}
		// A step that had nothing before it began, and may be over by now.
	}
}

// turn is Advance for the single moment that is due.
func (c *Core) turn(at, now int64) *Step {
	out, stepped, settled := &c.out, c.busy, false
	out.reset()
	out.Start, out.End = at, at
	if stepped {
		out.Start = c.start
		c.counts.Steps++
	}
	for i := range c.ranks {
		k := &c.ranks[i]
		if k.still {
			continue
		}
		if stepped {
			out.Batch.add(k.batch)
			// Decode first: a prompt completed now joins the decode list and has
			// had its id of this step.
			c.finishDecode(k, out)
			c.finishPrefill(k, out)
		}
		settled = c.settle(k, at) || settled
		c.expire(k, at)
		if c.ended > 0 {
			c.reap(k, out)
		}
	}
	if late := now - at; late > int64(c.opts.MaxLag) {
		c.counts.Lost += time.Duration(late)
		at = now
	}
	c.wake = false
	c.begin(at, out)
	n := c.Counts()
	out.Running, out.Waiting = n.Running, n.Waiting
	if !stepped && !settled && len(out.Done) == 0 && len(out.Retracted) == 0 && len(out.Reserved) == 0 && len(out.Fetched) == 0 {
		return nil
	}
	return out
}

// Counts returns the totals.
func (c *Core) Counts() Counts {
	n := c.counts
	for i := range c.ranks {
		k := &c.ranks[i]
		n.Running += len(k.prefill) + len(k.decode)
		n.Waiting += len(k.await) + k.waiting.len() + len(k.transfer)
		n.Kept += len(k.kept)
		n.Owed += len(k.owed)
		if k.kv != nil {
			n.Evicted += k.kv.evicted * uint64(k.kv.pageSize)
		}
	}
	return n
}

// reap ends requests that were aborted before they were in a step, and those
// that are stalled.
func (c *Core) reap(k *rank, out *Step) {
	done := func(ref Ref) bool {
		if how := c.requests[ref].ended; how != notEnded {
			c.finish(k, ref, how.reason(), out)
			return true
		}
		return false
	}
	k.waiting.keep(func(ref Ref) bool { return !done(ref) })
	k.await = slices.DeleteFunc(k.await, done)
	k.kept = slices.DeleteFunc(k.kept, done)
	k.transfer = slices.DeleteFunc(k.transfer, done)
	k.prefill = slices.DeleteFunc(k.prefill, done) // where no prompt is computed
	k.decode = slices.DeleteFunc(k.decode, done)
}

// finish books the end of a request and frees its ref. The KV of a prefill leg
// that has all its ids is kept first.
func (c *Core) finish(k *rank, ref Ref, reason infer.Reason, out *Step) {
	r, d := &c.requests[ref], &c.details[ref]
	if len(d.unsent) > 0 {
		c.send(ref, r, d, out)
	}
	if d.leg == LegPrefill && r.ended == notEnded {
		c.keepKV(k, ref, reason, out)
		return
	}
	done := Done{
		Ref: ref, Reason: reason, PromptTokens: int(r.prompt), Completion: int(r.generated),
		Cached: d.cached, Matched: int(d.matched), Retractions: d.retractions, DPRank: int(r.rank),
		Prefilled: r.phase == phasePrefill && int(r.prefilled)+d.chunk >= r.length(),
	}
	switch {
	case r.ended == endDisplaced:
		done.Err = infer.Errorf(infer.CodeOverloaded, "aborted by a higher priority request, as the engine's queue is full; try again later")
	case r.ended == endBroken:
		done.Err, done.Stage = d.failure, stageOf(r.phase)
	case r.phase == phaseKept && reason != infer.ReasonAbort:
		done.Reason, done.Expired = d.reason, r.ended == endExpired
		reason = d.reason
	}
	out.Done = append(out.Done, done)
	switch {
	case r.ended == endDisplaced:
		c.counts.Rejected++
		k.displaced--
	case reason == infer.ReasonAbort:
		c.counts.Aborted++
	default:
		c.counts.Finished++
	}
	if r.ended != notEnded {
		c.ended--
	}
	switch {
	case r.held:
		k.stalled--
	case r.phase == phaseDecode:
		k.context -= int64(r.length())
	case r.phase == phaseWaiting:
		k.queued -= int64(r.length())
	}
	if r.phase == phaseTransfer && r.ended == endAborted {
		c.leavePages(k, r, d, out)
	}
	if k.kv != nil {
		k.kv.leave(d)
	}
	r.phase = phaseFree
	d.stop, d.script, d.keys, d.failure, d.ids = nil, nil, nil, nil, nil
	c.free = append(c.free, ref)
}
