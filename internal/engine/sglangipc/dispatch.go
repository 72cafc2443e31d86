package sglangipc

import (
	"fmt"

	"weir/internal/engine/coreclient"
	"weir/internal/engine/mux"
	"weir/internal/engine/sglang"
	"weir/internal/infer"
)

// dispatcher passes the deltas of each message to their sinks and checks the engine's
// counts. It belongs to the reader: its methods must not be called concurrently.
type dispatcher struct {
	coreclient.Dispatcher

	batch  batch
	scores infer.Logprobs // of the output at hand
	stamps infer.Stamps
	// stamped says that the stats of the message at hand were read.
	stamped bool
	ending  []ending // aborts that the engine knows of, in their order
}

// ending is a generation whose abort the engine knows, and since when.
type ending struct {
	g  *coreclient.Generation
	at int64
}

// message takes in a message. A fault is the session's.
func (d *dispatcher) message(b []byte, received int64) *mux.Fault {
	err := d.batch.decode(b)
	d.Keep(mux.Frame{Received: received, Bytes: len(b), Requests: len(d.batch.outputs), IDs: len(d.batch.ids)})
	if err != nil {
		return d.Fault(mux.FaultMalformed, err.Error())
	}
	d.Delta.Received = received
	switch d.batch.kind {
	case outputs:
		d.Received(len(d.batch.ids)) // before a stream can end by them
		d.stamped = false
		for i := range d.batch.outputs {
			d.output(&d.batch.outputs[i])
		}
		d.EndMessage()
	case echo:
		d.echoed()
		d.EndMessage()
	}
	return nil
}

// output takes in what a step brought for one request.
func (d *dispatcher) output(o *output) {
	g := d.Find(o.id)
	if g == nil {
		if o.end.how == running {
			d.Stray(o.id)
		}
		return
	}
	if o.end.how != running {
		// The engine is done with the request even if the output is wrong, and the slot is free
		// before anyone can see that the generation ended.
		d.Release(g)
	}
	if g.Over() {
		if o.to > o.from {
			g.Released() // its KV is there
		}
		d.Late()
		return
	}
	ids := d.batch.ids[o.from:o.to:o.to]
	if o.end.how == aborted && o.prompt != g.Prompt {
		// A request that the engine refuses when it looks at it runs one step with
		// a prompt that stands in for its own. Its output is nobody's.
		ids = nil
	} else if reason, detail := wrong(g, ids, o); reason != "" {
		d.Fail(g, reason, detail, partOf(g, ids, o))
		return
	}
	if o.end.how == aborted && len(ids) == 0 && !g.Aborting() && g.Handing() && g.Abandon(d.failure(&o.end)) {
		return
	}
	x := &d.Delta
	x.IDs, x.Logprobs, x.Stamps, x.Finish = ids, nil, nil, nil
	if g.Scored && len(ids) > 0 {
		if err := readScores(&o.scores, ids, g.Top, &d.scores); err != nil {
			d.Fail(g, coreclient.FaultLogprobs, "log probabilities: "+err.Error(), partOf(g, ids, o))
			return
		}
		x.Logprobs = &d.scores
	}
	g.Total += len(ids)
	g.Cached = o.cached
	if o.end.how != running {
		x.Finish = d.finish(g, &o.end)
	} else if len(ids) == 0 {
		return
	}
	first := len(ids) > 0 && g.Total == len(ids)
	if n := int64(o.retracted); n > g.Stamps.Retracted || first && d.stats(o) {
		g.Stamps.Retracted = max(n, g.Stamps.Retracted)
		o.times.stamp(&g.Stamps, g.Role)
		d.stamps = g.Stamps
		x.Stamps = &d.stamps
	}
	d.Offer(g)
	if first {
		g.Released() // its KV is there
	}
}

// stats reports whether the scheduler has stamped an output. SGLang pickles the stats of all its
// requests with each step, so they are read only in steps that bring a first id.
func (d *dispatcher) stats(o *output) bool {
	if !d.stamped && d.batch.stats != nil {
		readStats(d.batch.stats, d.batch.outputs)
	}
	d.stamped = true
	return o.times != times{}
}

// partOf returns the part of a step that concerns a request, as evidence.
func partOf(g *coreclient.Generation, ids []uint32, o *output) *mux.Part {
	part := mux.PartOf(g.Total, ids, finishWords[o.end.how], string(o.end.word))
	part.Total = o.count
	if o.end.isID {
		part.Stop = fmt.Sprint(o.end.matched)
	}
	return part
}

// wrong names what does not add up in an output; an empty reason is none.
func wrong(g *coreclient.Generation, ids []uint32, o *output) (mux.FaultReason, string) {
	total := g.Total + len(ids)
	switch {
	case o.count != total:
		return coreclient.FaultCount, fmt.Sprintf("%d ids received, and the engine counts %d", total, o.count)
	case total > g.Limit:
		return mux.FaultLimit, fmt.Sprintf("%d ids of at most %d", total, g.Limit)
	case o.prompt != g.Prompt:
		return coreclient.FaultPrompt, fmt.Sprintf("the engine has %d ids of a prompt of %d", o.prompt, g.Prompt)
	case g.Role == infer.RolePrefill && total > 1:
		return mux.FaultLimit, fmt.Sprintf("%d ids of a prefill half", total)
	case o.end.how == full && o.end.length != total && !(g.Role == infer.RolePrefill && o.end.length == 0): // which says 0 and has drawn one
		return coreclient.FaultLength, fmt.Sprintf("the engine ended for its length of %d with %d ids", o.end.length, total)
	case o.end.how == stopped && !o.end.isID:
		// Also how an engine says that its numbers overflowed.
		return mux.FaultReasonWord, fmt.Sprintf("the engine ended at the text %q, which it was not asked to look for", o.end.word)
	case o.end.how == stopped && total == 0:
		return coreclient.FaultStop, fmt.Sprintf("the engine stopped at id %d, and no id came", o.end.matched)
	case o.end.how == stopped && len(ids) > 0 && int64(ids[len(ids)-1]) != o.end.matched:
		return coreclient.FaultStop, fmt.Sprintf("the engine stopped at id %d, and the last one received is %d", o.end.matched, ids[len(ids)-1])
	}
	return "", ""
}

func (d *dispatcher) finish(g *coreclient.Generation, end *finish) *infer.Finish {
	f := &infer.Finish{PromptTokens: g.Prompt, CachedTokens: g.Cached}
	switch {
	case end.how == stopped:
		f.Reason = infer.ReasonStop
	case end.how == full:
		f.Reason = infer.ReasonLength
	case g.Aborting():
		f.Reason, f.Unbegun = infer.ReasonAbort, g.Role == infer.RolePrefill && sglang.Unbegun(string(end.message))
	default:
		f.Reason, f.Err = infer.ReasonError, d.failure(end)
	}
	return f
}

// failure is an end that nobody here asked for.
func (d *dispatcher) failure(end *finish) *infer.Error {
	if end.status == 0 {
		return &infer.Error{Code: infer.CodeEngine, Engine: d.Engine, Retryable: true,
			Message: "the engine aborted the request; send it again", Cause: fmt.Errorf("engine's words: %q", end.message)}
	}
	return sglang.Failure(d.Engine, end.status, string(end.message))
}

// echoed takes in the end of a request that was not in a batch: one that was
// aborted, by us or by the engine, while it waited.
func (d *dispatcher) echoed() {
	g := d.Find(d.batch.id)
	if g == nil {
		return
	}
	d.Release(g)
	switch {
	case g.Over():
		d.Late()
	case g.Aborting():
		d.Finish(g, &infer.Finish{Reason: infer.ReasonAbort, PromptTokens: g.Prompt, CachedTokens: g.Cached}) // a prefill half, perhaps, between two of its chunks
	default:
		why := d.failure(&d.batch.end)
		if !g.Abandon(why) {
			d.Finish(g, &infer.Finish{Reason: infer.ReasonError, PromptTokens: g.Prompt, CachedTokens: g.Cached, Err: why})
		}
	}
}

// aborted takes in that the engine knows of aborts. Those generations end with a
// step, or an echo; the engine need not be believed for ever.
func (d *dispatcher) aborted(all []*coreclient.Generation, received int64) {
	for _, g := range all {
		d.ending = append(d.ending, ending{g, received})
	}
}

// overdue ends the generations that the engine has known to be aborted since before
// a moment, and did not end.
func (d *dispatcher) overdue(before, now int64) {
	n := 0
	for n < len(d.ending) && d.ending[n].at < before {
		d.Aborted(d.ending[n].g, now)
		n++
	}
	d.ending = append(d.ending[:0], d.ending[n:]...)
}
