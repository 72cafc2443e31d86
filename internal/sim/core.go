// Package sim is a simulated inference engine: continuous batching in steps
// under a token budget, with chunked prefill mixed into decode steps, a waiting
// queue, a cost model, and content that verifies itself. It generates no
// knowledge, but its timing, counts and failures are those of an engine.
//
// This package is the core. It runs on virtual time: it is told of events with
// their times and says what happened and when it wants to be called next. It
// has no goroutine, clock or socket; simserver gives it those, and an offline
// run needs none.
package sim

import (
	"slices"
	"time"

	"weir/internal/content"
	"weir/internal/infer"
)

// Core is the engine's state. It belongs to one goroutine. Times are
// nanoseconds on any clock and must not go back between calls.
//
// A step begins with a fixed batch and takes as long as the cost model says;
// its results exist at its end, and the next step begins at that very moment,
// however late Advance is called: deadlines are absolute, so lateness of the
// driver does not add up. Events between begin and end wait for the next step.
type Core struct {
	opts   Options
	hazard content.Hazard

	requests []request // by Ref
	free     []Ref

	waiting queue
	prefill []Ref // admitted, prompt not complete, in the order of admission
	decode  []Ref // generating, in the order of their first id
	stalled int   // of decode, those held by a stall
	context int64 // tokens that the requests of decode have, without those held
	ended   int   // requests aborted or stopped and not yet reaped

	busy       bool // a step is under way
	start, end int64
	batch      Batch
	wake       bool // idle, but something happened at wakeAt
	wakeAt     int64

	out    Step
	counts Counts
}

type phase uint8

const (
	phaseFree phase = iota
	phaseWaiting
	phasePrefill
	phaseDecode
)

// request is the engine's state of one request.
type request struct {
	Request
	phase     phase
	ended     infer.Reason // set by Abort and Stop
	held      bool         // stalled
	prefilled int
	chunk     int // prompt tokens in the step under way
	generated int
	matched   int64 // the id that ended it, -1 when none did
	stamps    infer.Stamps
}

// tokens is the length of prompt and output so far.
func (r *request) tokens() int64 { return int64(r.prompt + r.generated) }

// New makes an idle engine.
func New(o Options) (*Core, error) {
	o, err := o.WithDefaults()
	if err != nil {
		return nil, err
	}
	return &Core{opts: o, hazard: content.MeanLength(o.MeanTokens)}, nil
}

// Options are the engine's options with defaults filled in.
func (c *Core) Options() *Options { return &c.opts }

// Submit queues a request at time now; created is when its face read it. The
// error, CodeOverloaded, says that the queue is full.
func (c *Core) Submit(now, created int64, r Request) (Ref, error) {
	c.counts.Received++
	if c.opts.MaxQueued > 0 && c.waiting.len >= c.opts.MaxQueued {
		c.counts.Rejected++
		return 0, infer.Errorf(infer.CodeOverloaded, "the engine's queue is full with %d requests waiting; try again later", c.waiting.len)
	}
	ref := c.alloc()
	c.requests[ref] = request{Request: r, phase: phaseWaiting, matched: -1, stamps: infer.Stamps{ServerCreated: created, QueueStart: now}}
	c.waiting.push(ref)
	c.rouse(now)
	return ref, nil
}

func (c *Core) alloc() Ref {
	if n := len(c.free); n > 0 {
		ref := c.free[n-1]
		c.free = c.free[:n-1]
		return ref
	}
	c.requests = append(c.requests, request{})
	return Ref(len(c.requests) - 1)
}

// Abort ends a request because nobody wants it any more. It takes effect at the
// end of the step under way: the request gets no more ids, and its Done comes
// with that step. Aborting twice is as aborting once.
func (c *Core) Abort(now int64, ref Ref) { c.conclude(now, ref, infer.ReasonAbort) }

// Stop ends a request as Abort does, because its face found a stop string in
// its text: it counts as finished.
func (c *Core) Stop(now int64, ref Ref) { c.conclude(now, ref, infer.ReasonStop) }

func (c *Core) conclude(now int64, ref Ref, reason infer.Reason) {
	r := &c.requests[ref]
	if r.phase == phaseFree || r.ended != "" {
		return
	}
	r.ended = reason
	c.ended++
	c.rouse(now)
}

// rouse notes that an idle engine has something to look at.
func (c *Core) rouse(now int64) {
	if !c.busy && !c.wake {
		c.wake, c.wakeAt = true, now
	}
}

// Due says when Advance must be called next, and false when nothing happens
// before the next Submit or Abort.
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
	var at int64
	switch {
	case c.busy && c.end <= now:
		at = c.end
	case c.wake && c.wakeAt <= now:
		at = c.wakeAt
	default:
		return nil
	}
	out := &c.out
	out.reset()
	out.Start, out.End = at, at
	if c.busy {
		out.Start, out.Batch = c.start, c.batch
		// Decode first: a prompt completed now joins the decode list and has had
		// its id of this step.
		c.finishDecode(out)
		c.finishPrefill(out)
		c.counts.Steps++
	} else if c.ended > 0 {
		c.reapRunning(out)
	}
	c.reapWaiting(out)

	if late := now - at; late > int64(c.opts.MaxLag) {
		c.counts.Lost += time.Duration(late)
		at = now
	}
	result := c.busy || len(out.Done) > 0
	c.wake = false
	c.begin(at)
	out.Running, out.Waiting = c.running(), c.waiting.len
	if !result {
		return nil
	}
	return out
}

func (c *Core) running() int { return len(c.prefill) + len(c.decode) }

// Counts gives the totals.
func (c *Core) Counts() Counts {
	n := c.counts
	n.Running, n.Waiting = c.running(), c.waiting.len
	return n
}

// begin composes the next step and starts it, or leaves the engine idle. The
// running requests come first: a decode takes one token of the budget, then
// prompts under way go on in their order, then waiting ones are admitted.
func (c *Core) begin(at int64) {
	b := Batch{Decode: len(c.decode) - c.stalled, Context: c.context}
	budget := min(c.opts.StepTokens-b.Decode, c.opts.ChunkedPrefill)
	for _, ref := range c.prefill {
		budget -= c.plan(ref, budget, &b)
	}
	for budget > 0 && c.waiting.len > 0 && c.running() < c.opts.MaxRunning {
		ref := c.waiting.pop()
		r := &c.requests[ref]
		r.phase = phasePrefill
		r.stamps.QueueEnd, r.stamps.PrefillStart = at, at
		c.prefill = append(c.prefill, ref)
		budget -= c.plan(ref, budget, &b)
	}
	c.busy = b.Prefill > 0 || b.Decode > 0
	if !c.busy {
		return
	}
	c.start, c.batch = at, b
	// Time must pass, or a free cost model would never end.
	c.end = at + max(1, int64(c.opts.Cost.StepTime(b)))
}

// plan gives a prompt its share of a step.
func (c *Core) plan(ref Ref, budget int, b *Batch) int {
	r := &c.requests[ref]
	r.chunk = min(r.prompt-r.prefilled, budget)
	if r.chunk > 0 {
		from, to := int64(r.prefilled), int64(r.prefilled+r.chunk)
		b.Prefill += r.chunk
		b.Chunks++
		b.Attended += to*to - from*from
	}
	return r.chunk
}

// finishDecode gives every generating request its next id. It is the one loop
// that runs for every token.
func (c *Core) finishDecode(out *Step) {
	before := c.counts.Generated
	kept := c.decode[:0]
	for _, ref := range c.decode {
		r := &c.requests[ref]
		switch {
		case r.ended != "":
			c.finish(ref, r.ended, out)
			continue
		case r.held:
		default:
			if reason := c.generate(ref, r, out); reason != "" {
				c.finish(ref, reason, out)
				continue
			}
		}
		kept = append(kept, ref)
	}
	c.decode = kept
	c.context += int64(c.counts.Generated - before)
}

// finishPrefill books the chunks of the step; a completed prompt gets its
// first id with it.
func (c *Core) finishPrefill(out *Step) {
	kept := c.prefill[:0]
	for _, ref := range c.prefill {
		r := &c.requests[ref]
		if r.ended != "" {
			c.finish(ref, r.ended, out)
			continue
		}
		r.prefilled += r.chunk
		c.counts.Prefilled += uint64(r.chunk)
		if r.prefilled < r.prompt {
			kept = append(kept, ref)
			continue
		}
		r.stamps.PrefillEnd = out.End
		if reason := c.generate(ref, r, out); reason != "" {
			c.finish(ref, reason, out)
			continue
		}
		r.phase = phaseDecode
		c.decode = append(c.decode, ref)
		if !r.held {
			c.context += r.tokens()
		}
	}
	c.prefill = kept
}

// generate appends the request's next id to the step and says whether it was
// the last.
func (c *Core) generate(ref Ref, r *request, out *Step) infer.Reason {
	if r.stall && r.generated >= r.stallAfter {
		r.held = true
		c.stalled++
		if r.phase == phaseDecode {
			c.context -= r.tokens()
		}
		return ""
	}
	var reason infer.Reason
	var id uint32
	mayEnd := r.generated >= r.min
	switch {
	case r.scripted:
		id, reason = c.recite(r, mayEnd)
	case mayEnd && !r.endless && r.stream.Ends(c.hazard):
		id, reason = c.endID(r), infer.ReasonStop
	default:
		id = c.opts.Words.Next(&r.stream)
	}
	c.opts.Words.Push(&r.stream, id)
	r.generated++
	c.counts.Generated++
	out.Ref = append(out.Ref, ref)
	out.ID = append(out.ID, id)
	out.Total = append(out.Total, uint32(r.generated))
	if r.generated == 1 {
		r.stamps.FirstToken = out.End
		out.First = append(out.First, First{Ref: ref, Stamps: r.stamps})
	}
	switch {
	case reason != "":
	case mayEnd && len(r.stop) > 0 && slices.Contains(r.stop, id):
		r.matched = int64(id)
		reason = infer.ReasonStop
	case r.generated >= r.max:
		reason = infer.ReasonLength
	}
	return reason
}

// endID gives an end id and notes that it ended the output.
func (c *Core) endID(r *request) uint32 {
	id := c.opts.EOS[r.stream.Pick(len(c.opts.EOS))]
	r.matched = int64(id)
	return id
}

// recite gives what comes next of a request with a script.
func (c *Core) recite(r *request, mayEnd bool) (uint32, infer.Reason) {
	said := r.generated
	switch {
	case said < len(r.script):
		if last := said+1 == len(r.script) && said+1 >= r.min; last && !r.ignoreEOS && len(c.opts.EOS) == 0 {
			return r.script[said], infer.ReasonStop
		}
		return r.script[said], ""
	case mayEnd && !r.ignoreEOS && len(c.opts.EOS) > 0:
		return c.endID(r), infer.ReasonStop
	}
	return c.opts.Words.Next(&r.stream), ""
}

// finish books the end of a request and frees its ref.
func (c *Core) finish(ref Ref, reason infer.Reason, out *Step) {
	r := &c.requests[ref]
	out.Done = append(out.Done, Done{Ref: ref, Reason: reason, PromptTokens: r.prompt, Completion: r.generated, Matched: int(r.matched)})
	if reason == infer.ReasonAbort {
		c.counts.Aborted++
	} else {
		c.counts.Finished++
	}
	if r.ended != "" {
		c.ended--
	}
	switch {
	case r.held:
		c.stalled--
	case r.phase == phaseDecode:
		c.context -= r.tokens()
	}
	*r = request{}
	c.free = append(c.free, ref)
}

// reapRunning ends requests that were aborted in an engine that has no step under way,
// because all that runs is stalled.
func (c *Core) reapRunning(out *Step) {
	c.decode = slices.DeleteFunc(c.decode, func(ref Ref) bool {
		reason := c.requests[ref].ended
		if reason == "" {
			return false
		}
		c.finish(ref, reason, out)
		return true
	})
}

// reapWaiting ends requests that were aborted before they were admitted.
func (c *Core) reapWaiting(out *Step) {
	if c.ended == 0 {
		return
	}
	c.waiting.keep(func(ref Ref) bool {
		reason := c.requests[ref].ended
		if reason == "" {
			return true
		}
		c.finish(ref, reason, out)
		return false
	})
}
