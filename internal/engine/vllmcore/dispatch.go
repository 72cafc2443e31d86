package vllmcore

import (
	"fmt"

	"weir/internal/engine/coreclient"
	"weir/internal/engine/mux"
	"weir/internal/infer"
)

// dispatcher passes the deltas of each message to their sinks and checks the engine's
// output. It belongs to the reader: its methods must not be called concurrently.
type dispatcher struct {
	coreclient.Dispatcher

	index    int // of the engine
	context  int // max_model_len
	batch    batch
	oneClock bool           // the engine reads the clock that we read
	logprobs infer.Logprobs // of the output at hand
	aux      [][]byte       // the message's frames after the first
	meeting  meeting
	stamps   infer.Stamps
}

// message takes in a message: its first frame, and the frames of large arrays. A
// fault is the session's.
func (d *dispatcher) message(b []byte, aux [][]byte, received int64) *mux.Fault {
	d.aux = aux
	if err := d.batch.decode(b); err != nil {
		d.note(b, received)
		return d.Fault(mux.FaultMalformed, err.Error())
	}
	d.note(b, received)
	if d.batch.rank != d.index {
		return d.Fault(coreclient.FaultRank, fmt.Sprintf("engine %d on the connection of engine %d", d.batch.rank, d.index))
	}
	d.Delta.Received = received
	d.Received(len(d.batch.ids)) // before a stream can end by them
	for i := range d.batch.outputs {
		d.output(&d.batch.outputs[i])
	}
	d.EndMessage()
	return nil
}

func (d *dispatcher) note(b []byte, received int64) {
	d.Keep(mux.Frame{Sent: d.batch.timestamp, Received: received, Bytes: len(b),
		Requests: len(d.batch.outputs), IDs: len(d.batch.ids)})
}

// output processes the part of a message for one request.
func (d *dispatcher) output(o *output) {
	g := d.Find(o.id)
	if g == nil {
		switch {
		case d.meeting.asked(o.id):
			d.meeting.take(d.batch.params(o), o.finish)
		case o.finish < 0:
			d.Stray(o.id)
		}
		return
	}
	if o.finish >= 0 {
		// The engine is done with the request even if the output is wrong, and the slot is free
		// before anyone can see that the generation ended.
		d.Release(g)
	}
	if g.Over() {
		d.Late()
		return
	}
	ids := d.batch.ids[o.from:o.to:o.to]
	if reason, detail := d.wrong(g, ids, o); reason != "" {
		d.Fail(g, reason, detail, partOf(g.Total, ids, o))
		return
	}
	if o.finish >= 0 && d.refused(g, o) {
		return
	}
	x := &d.Delta
	x.IDs, x.Logprobs, x.Stamps, x.Finish = ids, nil, nil, nil
	if g.Scored && len(ids) > 0 {
		if err := readLogprobs(d.batch.logprobs(o), d.aux, ids, g.Top, &d.logprobs); err != nil {
			d.Fail(g, coreclient.FaultLogprobs, "log probabilities: "+err.Error(), partOf(g.Total, ids, o))
			return
		}
		x.Logprobs = &d.logprobs
	}
	d.learn(g, o, len(ids) > 0)
	g.Total += len(ids)
	if o.finish >= 0 {
		x.Finish = d.finish(g, o)
	}
	if x.Stamps == nil && x.Finish == nil && len(ids) == 0 {
		return
	}
	d.Offer(g)
}

// learn keeps what an output says besides ids, and puts the engine's stamps into
// the delta when they are new.
func (d *dispatcher) learn(g *coreclient.Generation, o *output, hasIDs bool) {
	if o.cachedTokens >= 0 && g.Cached < 0 {
		g.Cached = o.cachedTokens
	}
	first := hasIDs && g.Total == 0
	if g.Stamps.Retracted += int64(o.preempted); !d.oneClock {
		if o.preempted > 0 {
			d.stamps = g.Stamps
			d.Delta.Stamps = &d.stamps
		}
		return
	}
	if o.queued == 0 && o.scheduled == 0 && o.preempted == 0 && !first {
		return
	}
	if o.queued != 0 && g.Stamps.QueueStart == 0 {
		g.Stamps.QueueStart = o.queued
	}
	if o.scheduled != 0 && g.Stamps.QueueEnd == 0 {
		// The step that it is first placed in is the one that prefills it.
		g.Stamps.QueueEnd, g.Stamps.PrefillStart = o.scheduled, o.scheduled
		if g.Role == infer.RoleDecode { // which waits for its KV until then
			g.Stamps.WaitingToRunning = o.scheduled
		}
	}
	if first {
		g.Stamps.FirstToken, g.Stamps.FirstOutput = d.batch.timestamp, d.batch.timestamp
	}
	d.stamps = g.Stamps
	d.Delta.Stamps = &d.stamps
}

// wrong names what does not add up in an output; an empty reason is none.
func (d *dispatcher) wrong(g *coreclient.Generation, ids []uint32, o *output) (mux.FaultReason, string) {
	total := g.Total + len(ids)
	if total > g.Limit {
		return mux.FaultLimit, fmt.Sprintf("%d ids of at most %d", total, g.Limit)
	}
	if o.promptTokens >= 0 && g.Total == 0 && o.promptTokens != g.Prompt && !(g.Role == infer.RolePrefill && o.promptTokens < g.Prompt) {
		return coreclient.FaultPrompt, fmt.Sprintf("the engine prefilled %d ids of a prompt of %d", o.promptTokens, g.Prompt)
	}
	switch o.finish {
	case finishLength:
		if total != g.Limit && g.Prompt+total < d.context {
			return coreclient.FaultLength, fmt.Sprintf("the engine ended for its length with %d ids of %d, and a context of %d is not full", total, g.Limit, d.context)
		}
	case finishStop:
		if total == 0 {
			return coreclient.FaultStop, "the engine ended by an end id, and none came"
		}
		if len(ids) == 0 {
			return "", "" // the id that ended it came with an earlier message
		}
		return d.wrongStop(g, ids[len(ids)-1], o)
	case finishRepetition:
		return mux.FaultReasonWord, "the engine ended for a repetition, which it was not asked to look for"
	}
	return "", ""
}

// wrongStop checks that the id that ended a generation is its last: the engine
// sends it like any other, and names it unless it is the first end id.
func (d *dispatcher) wrongStop(g *coreclient.Generation, last uint32, o *output) (mux.FaultReason, string) {
	switch {
	case o.stop.isID && o.stop.id != int64(last):
		return coreclient.FaultStop, fmt.Sprintf("the engine stopped at id %d, and the last one received is %d", o.stop.id, last)
	case !contains(g.End, last) && !contains(g.Stop, last):
		return coreclient.FaultStop, fmt.Sprintf("the engine stopped, and the last id received, %d, is no end id", last)
	}
	return "", ""
}

// refused deals with an end that comes before any id and before the request was
// acknowledged: that is how this wire refuses.
func (d *dispatcher) refused(g *coreclient.Generation, o *output) bool {
	if !g.Handing() || g.Total > 0 || o.to > o.from {
		return false
	}
	switch o.finish {
	case finishError, finishAbort:
		return g.Abandon(d.failure(o))
	}
	return false
}

// failure is an end that the engine did not reach as it should.
func (d *dispatcher) failure(o *output) *infer.Error {
	e := &infer.Error{Code: infer.CodeEngine, Engine: d.Engine, Retryable: true,
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

func (d *dispatcher) finish(g *coreclient.Generation, o *output) *infer.Finish {
	f := &infer.Finish{PromptTokens: g.Prompt, CachedTokens: g.Cached, Params: paramsJSON(d.batch.params(o))}
	switch {
	case o.finish == finishStop && g.Guided && g.Total == 1:
		// Its only id is the one that ended it (wrongStop).
		f.Reason, f.Err = infer.ReasonError, &infer.Error{Code: infer.CodeInvalid, Engine: d.Engine,
			Message: "the engine cannot hold its output to this schema or guide, and ended the answer before its first token; its log says what it does not take"}
	case o.finish == finishStop:
		f.Reason = infer.ReasonStop
	case o.finish == finishLength:
		f.Reason = infer.ReasonLength
	case o.finish == finishAbort && g.Aborting():
		f.Reason = infer.ReasonAbort
	default:
		f.Reason, f.Err = infer.ReasonError, d.failure(o)
	}
	return f
}

var finishWords = [...]string{"stop", "length", "abort", "error", "repetition"}

// partOf returns the part of a message that concerns a request, as evidence.
func partOf(before int, ids []uint32, o *output) *mux.Part {
	finish, stop := "", string(o.stop.word)
	if o.finish >= 0 {
		finish = finishWords[o.finish]
	}
	if o.stop.isID {
		stop = fmt.Sprint(o.stop.id)
	}
	return mux.PartOf(before, ids, finish, stop)
}
