package vllmcore

import (
	"fmt"
	"sync"

	"weir/internal/infer"
)

// table knows the generations of a session by the ids of their requests.
type table struct {
	mu     sync.Mutex
	all    map[string]*generation
	closed bool
}

// seat enters a generation; false when the session has ended, or the id is taken.
func (t *table) seat(g *generation) (ok, taken bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, false
	}
	if _, taken := t.all[g.id]; taken {
		return false, true
	}
	t.all[g.id] = g
	return true, false
}

func (t *table) get(id []byte) *generation {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[string(id)]
}

func (t *table) release(g *generation) {
	g.over.Store(true)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[g.id] == g {
		delete(t.all, g.id)
	}
}

func (t *table) live() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all)
}

// close lets nobody in any more and gives those who are.
func (t *table) close() []*generation {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	all := make([]*generation, 0, len(t.all))
	for _, g := range t.all {
		all = append(all, g)
	}
	return all
}

// dispatcher hands the deltas of each message to their sinks and checks that what
// the engine says adds up. It belongs to whoever reads: no method may be called
// concurrently.
type dispatcher struct {
	engine  string
	rank    int
	context int // max_model_len
	table   *table
	out     *outbox
	meters  *meters

	batch    batch
	evidence evidence
	oneClock bool           // the engine reads the clock that we read
	delta    infer.Delta    // the one that is offered, reused
	logprobs infer.Logprobs // those of its ids
	aux      [][]byte       // the message's frames after the first
	stamps   infer.Stamps
	last     *generation // of the output before
	strays   []string
}

// message takes in a message: its first frame, and the frames of large arrays. A
// fault is the session's.
func (d *dispatcher) message(b []byte, aux [][]byte, received int64) *Fault {
	d.aux = aux
	if err := d.batch.decode(b); err != nil {
		d.note(b, received)
		return d.fault(FaultMalformed, err.Error())
	}
	d.note(b, received)
	if d.batch.rank != d.rank {
		return d.fault(FaultRank, fmt.Sprintf("engine %d on the connection of engine %d", d.batch.rank, d.rank))
	}
	d.delta.Received = received
	for i := range d.batch.outputs {
		d.output(&d.batch.outputs[i])
	}
	d.last = nil
	if len(d.strays) > 0 {
		d.out.abortStrays(d.strays)
		d.strays = nil
	}
	d.meters.message(&d.batch)
	return nil
}

func (d *dispatcher) note(b []byte, received int64) {
	d.evidence.add(MessageSummary{Timestamp: d.batch.timestamp, Received: received, Bytes: len(b),
		Outputs: len(d.batch.outputs), IDs: len(d.batch.ids)})
}

// find gives the generation of a request. An engine lists its running requests in
// the same order step after step, so what followed last time is tried first, for
// the price of a comparison.
func (d *dispatcher) find(id []byte) *generation {
	if d.last != nil {
		if g := d.last.next; g != nil && g.id == string(id) && !g.over.Load() {
			return g
		}
	}
	return d.table.get(id)
}

// output takes in what one message says of one request.
func (d *dispatcher) output(o *output) {
	g := d.find(o.id)
	if g == nil {
		d.meters.late.Add(1)
		if o.finish < 0 {
			d.strays = append(d.strays, string(o.id))
		}
		return
	}
	if d.last != nil {
		d.last.next = g
	}
	d.last = g
	if o.finish >= 0 {
		// Whatever is wrong with the output, the engine is done with the request;
		// and it is so before anyone can see that the generation ended.
		d.table.release(g)
	}
	if g.ended || phase(g.phase.Load()) == abandoned {
		d.meters.late.Add(1)
		return
	}
	ids := d.batch.ids[o.from:o.to:o.to]
	if reason, detail := d.wrong(g, ids, o); reason != "" {
		d.fail(g, reason, detail, partOf(g.total, ids, o))
		return
	}
	if o.finish >= 0 && d.refused(g, o) {
		return
	}
	x := &d.delta
	x.Attempt, x.IDs, x.Logprobs, x.Stamps, x.Finish = g.attempt, ids, nil, nil, nil
	if g.scored && len(ids) > 0 {
		if err := readLogprobs(o.logprobs, d.aux, ids, g.top, &d.logprobs); err != nil {
			d.fail(g, FaultLogprobs, "log probabilities: "+err.Error(), partOf(g.total, ids, o))
			return
		}
		x.Logprobs = &d.logprobs
	}
	d.learn(g, o, len(ids) > 0)
	g.total += len(ids)
	x.Total = g.total
	if o.finish >= 0 {
		x.Finish = d.finish(g, o)
	}
	if x.Stamps == nil && x.Finish == nil && len(ids) == 0 {
		return
	}
	if !g.deliver(x) {
		d.meters.late.Add(1)
	}
}

// learn keeps what an output says besides ids, and puts the engine's stamps into
// the delta when they are new.
func (d *dispatcher) learn(g *generation, o *output, hasIDs bool) {
	if o.cachedTokens >= 0 && g.cached < 0 {
		g.cached = o.cachedTokens
	}
	first := hasIDs && g.total == 0
	if !d.oneClock || o.queued == 0 && o.scheduled == 0 && !first {
		return
	}
	if o.queued != 0 && g.stamps.QueueStart == 0 {
		g.stamps.QueueStart = o.queued
	}
	if o.scheduled != 0 && g.stamps.QueueEnd == 0 {
		// The step that it is first placed in is the one that prefills it.
		g.stamps.QueueEnd, g.stamps.PrefillStart = o.scheduled, o.scheduled
	}
	if first {
		g.stamps.FirstToken, g.stamps.FirstOutput = d.batch.timestamp, d.batch.timestamp
	}
	d.stamps = g.stamps
	d.delta.Stamps = &d.stamps
}

// wrong names what does not add up in an output; an empty reason is none.
func (d *dispatcher) wrong(g *generation, ids []uint32, o *output) (FaultReason, string) {
	total := g.total + len(ids)
	if total > g.limit {
		return FaultLimit, fmt.Sprintf("%d ids of at most %d", total, g.limit)
	}
	if o.promptTokens >= 0 && g.total == 0 && o.promptTokens != g.prompt {
		return FaultPrompt, fmt.Sprintf("the engine prefilled %d ids of a prompt of %d", o.promptTokens, g.prompt)
	}
	switch o.finish {
	case finishLength:
		if total != g.limit && g.prompt+total < d.context {
			return FaultLength, fmt.Sprintf("the engine ended for its length with %d ids of %d, and a context of %d is not full", total, g.limit, d.context)
		}
	case finishStop:
		if total == 0 {
			return FaultStop, "the engine ended by an end id, and none came"
		}
		if len(ids) == 0 {
			return "", "" // the id that ended it came with an earlier message
		}
		return d.wrongStop(g, ids[len(ids)-1], o)
	case finishRepetition:
		return FaultReasonWord, "the engine ended for a repetition, which it was not asked to look for"
	}
	return "", ""
}

// wrongStop checks that the id that ended a generation is its last: the engine
// sends it like any other, and names it unless it is the first end id.
func (d *dispatcher) wrongStop(g *generation, last uint32, o *output) (FaultReason, string) {
	switch {
	case o.stop.isID && o.stop.id != int64(last):
		return FaultStop, fmt.Sprintf("the engine stopped at id %d, and the last one received is %d", o.stop.id, last)
	case !contains(g.end, last) && !contains(g.stop, last):
		return FaultStop, fmt.Sprintf("the engine stopped, and the last id received, %d, is no end id", last)
	}
	return "", ""
}

// refused deals with an end that comes before any id and before the request was
// acknowledged: that is how this wire refuses.
func (d *dispatcher) refused(g *generation, o *output) bool {
	if phase(g.phase.Load()) != handing || g.total > 0 || o.to > o.from {
		return false
	}
	switch o.finish {
	case finishError, finishAbort:
		return g.abandon(d.failure(g, o))
	}
	return false
}

// failure is an end that the engine did not reach as it should.
func (d *dispatcher) failure(g *generation, o *output) *infer.Error {
	e := &infer.Error{Code: infer.CodeEngine, Engine: d.engine, Retryable: g.total == 0 && o.to == o.from,
		Message: "the engine failed while it worked on the request; send it again"}
	if len(o.errorCode) > 0 {
		e.Cause = fmt.Errorf("engine's words: %s: %q", o.errorCode, o.errorText)
	}
	switch {
	case o.finish == finishAbort:
		e.Code, e.Message = infer.CodeUnavailable, "the engine is shutting down or paused; send the request again"
	case string(o.errorCode) == "validation_error":
		e.Code, e.Retryable, e.Message = infer.CodeInvalid, false, "the engine refused the request: "+string(o.errorText)
	case string(o.errorCode) == "engine_paused":
		e.Code, e.Message = infer.CodeUnavailable, "the engine is paused; send the request again later"
	}
	return e
}

func (d *dispatcher) finish(g *generation, o *output) *infer.Finish {
	f := &infer.Finish{PromptTokens: g.prompt, CachedTokens: g.cached}
	switch {
	case o.finish == finishStop:
		f.Reason = infer.ReasonStop
	case o.finish == finishLength:
		f.Reason = infer.ReasonLength
	case o.finish == finishAbort && g.aborting.Load():
		f.Reason = infer.ReasonAbort
	default:
		f.Reason, f.Err = infer.ReasonError, d.failure(g, o)
	}
	return f
}

// answered takes in the answer to the fence: what is behind it is known now.
func (d *dispatcher) answered(f fence, received int64) {
	for _, g := range f.adds {
		g.accept(received)
	}
	for _, g := range f.aborts {
		d.table.release(g)
		d.aborted(g, received)
	}
}

// aborted gives a generation that the engine has dropped, and will not mention
// again, its terminal delta.
func (d *dispatcher) aborted(g *generation, received int64) {
	if g.ended || phase(g.phase.Load()) == abandoned {
		return
	}
	x := &d.delta
	x.Attempt, x.IDs, x.Logprobs, x.Total, x.Stamps, x.Received = g.attempt, nil, nil, g.total, nil, received
	x.Finish = &infer.Finish{Reason: infer.ReasonAbort, PromptTokens: g.prompt, CachedTokens: g.cached}
	g.deliver(x)
}

// fail ends one generation with an integrity error of its own.
func (d *dispatcher) fail(g *generation, reason FaultReason, detail string, part *Part) {
	d.meters.broken.Add(1)
	fault := d.fault(reason, detail)
	fault.RequestID, fault.Part = g.id, part
	err := &infer.Error{
		Code:      infer.CodeIntegrity,
		Message:   "what the engine sent does not add up, so the output ends here; send the request again",
		Engine:    d.engine,
		Retryable: g.total == 0,
		Cause:     fault,
	}
	g.Abort() // nothing, if the engine is done with it
	if !g.abandon(err) {
		d.end(g, err)
	}
}

// end offers the terminal delta of a generation that the engine did not finish
// itself.
func (d *dispatcher) end(g *generation, err *infer.Error) {
	x := &d.delta
	x.Attempt, x.IDs, x.Logprobs, x.Total, x.Stamps = g.attempt, nil, nil, g.total, nil
	x.Finish = &infer.Finish{Reason: infer.ReasonError, PromptTokens: -1, CachedTokens: g.cached, Err: err}
	g.deliver(x)
}

// close ends every generation of the session. Those that had no output yet are
// told that another engine may do better.
func (d *dispatcher) close(err *infer.Error, now int64) (lost []string) {
	d.delta.Received = now
	early := *err
	early.Retryable = true
	for _, g := range d.table.close() {
		lost = append(lost, g.id)
		d.table.release(g)
		why := err
		if g.total == 0 {
			why = &early
		}
		if !g.abandon(why) && !g.ended {
			d.end(g, why)
		}
	}
	return lost
}

func (d *dispatcher) fault(reason FaultReason, detail string) *Fault {
	return &Fault{Reason: reason, Detail: detail, Rank: d.rank, Messages: d.evidence.last()}
}
