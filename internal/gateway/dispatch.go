package gateway

import (
	"fmt"
	"net/http"
	"time"

	"weir/internal/engine"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/trace"
)

// dispatch is stage 7: it hands the request to the chosen engine and returns
// once the engine confirmed that it has it.
func (x *exchange) dispatch() error {
	x.escape.begin(x)
	if x.prepared.Request != nil && x.prepared.Request.Priority != nil {
		x.booking.Health.Priority = *x.prepared.Request.Priority
	}
	if x.answering = false; !x.response.Begun {
		x.rec.FirstReceived, x.rec.Pace = 0, nil
	}
	now := x.rec.Enter(trace.Dispatch)
	if p := x.partner; p != nil {
		p.begin(x)
		if p.meets.first() {
			x.rec.Enter(trace.Engine)
			if err := p.answer(&x.ctx); err != nil {
				return err
			}
			now = x.rec.Enter(trace.Dispatch)
		}
	}
	m := x.g.opts.Metrics
	wait := engineWait{rec: &x.rec, g: x.g, shown: shown{merged: m.Receive(x.target.Kind).Merged(), gaps: m.Gaps(x.need.Model.Name)}, target: x.target, booking: &x.booking, escape: &x.escape, partner: x.partner}
	if x.spends.account != nil {
		x.spends.chargePrompt(x.prepared.Footprint.Length())
		wait.shown.spends = &x.spends
	}
	if x.lost != nil {
		wait.resumed = x
		if p := x.rec.Pace; p != nil { // the move is a gap, too
			wait.shown.last, wait.shown.flushed = p.Last, x.rec.Ledger.Spent[trace.Flush]
		}
	}
	if x.target.Relay != nil {
		wait.handOver(now, x.work, x.response.Served.Request.URL.Path)
		return x.forward(wait)
	}
	wait.handOver(now, x.work, "")
	return x.submit(wait)
}

// ownDelay is the delay between a request's hand-over and its sending above which
// the delay is reported to the engine's health.
const ownDelay = 100 * time.Millisecond

// handOver records that the adapter is about to receive the request: from now on the engine
// owes progress. now is the time when the stage began, after its injected delay if any.
// work is the result of workOf, and path is for a relayed request. A decode half owes
// progress only when the prefill half has ended.
func (w *engineWait) handOver(now int64, work float64, path string) {
	if w.rec.Injects() {
		now = trace.Now()
	}
	w.rec.Leg().Handed = now
	health, booking, escape, probe := w.target.Health, w.booking, w.escape, engine.Probe{Model: w.target.Model, Path: path}
	if w.partner == nil {
		health.HandOver(&booking.Health, now, work, w.rec.RequestID, probe, escape)
		return
	}
	id := w.rec.RequestID
	w.partner.awaits(func(now int64) { health.HandOver(&booking.Health, now, work, id, probe, escape) })
}

// acknowledged examines where the time of the acknowledgement went. A relay has no
// acknowledgement other than its answer.
func (w *engineWait) acknowledged() {
	leg := w.rec.Leg()
	leg.Known = trace.Now()
	ack, ok := leg.Ack()
	if !ok {
		return
	}
	if ack.Send > int64(ownDelay) && w.partner == nil {
		w.booking.Health.Sent(leg.Known, leg.ToServer)
	}
	for i, ns := range ack.Parts() {
		if w.g.opts.Attempt.AckWarning > 0 && ns > int64(w.g.opts.Attempt.AckWarning) && (trace.AckParts[i] != "engine" || ack.Queue < 0) {
			w.g.recorder.Late(leg.Engine, w.rec.RequestID, trace.AckParts[i], time.Duration(ns))
		}
	}
}

// submit hands the request to a token engine.
func (x *exchange) submit(wait engineWait) error {
	if x.mailbox == nil {
		x.shard = x.g.outputs.assign()
		x.mailbox = stream.New(x.prepared.Count(), x.prepared.Longest(), x.prepared.Request.Logprobs, &x.shard.pending)
	}
	if !x.abortable.ready(x.mailbox) {
		return errAborted
	}
	if l := x.prepared.LeftOut; l != nil && x.need.Needs.HasBytes() && !x.response.Begun {
		l.Tell(x.response.Served.Writer.Header(), x.g.opts.Metrics)
	}
	if !x.need.Needs.HasBytes() { // otherwise it may be relayed yet
		if x.prepared.Forget(); !x.prepared.HasMedia { // which are part of the body
			x.room.Leave()
		}
	}
	a, resumes := x.answer.(*answer.Tokens)
	if resumes = resumes && x.lost != nil; !resumes {
		a = x.newAnswer()
	}
	l := &tokenLeg{engineWait: wait, answer: a, streams: x.prepared.Request.Stream, abort: &x.abortable, mailbox: x.mailbox, stamped: -1}
	l.generations = l.only[:]
	if n := x.prepared.Count(); n > 1 {
		l.generations = make([]engine.Generation, n)
	}
	x.leg, x.answer = l, a
	if err := x.submits(l); err != nil {
		if left := x.escape.left(); left != nil {
			return left
		}
		return err
	}
	l.acknowledged()
	if !resumes {
		x.remember()
	}
	if x.bar == prepare.GoesOn {
		l.history = &x.history
	}
	l.watch(&x.ctx)
	x.escape.by(nil, nil, x.mailbox)
	return nil
}

// submits hands the choices of a leg over, within a bound.
func (x *exchange) submits(l *tokenLeg) error {
	h := x.hands(x.g.opts.Attempt.SubmitTimeout)
	defer x.handed(h)
	return l.submit(h, &x.prepared)
}

// forward hands the request to a relay engine.
func (x *exchange) forward(wait engineWait) error {
	x.bar = prepare.BarRelay
	if err := x.prepared.CheckSalt(x.need.Model, x.target.Engine, x.response.Served.Request.URL.Path); err != nil {
		return err // it is another engine than when the request was checked
	}
	id := relayID(x.rec.ID, len(x.rec.Attempts))
	x.rec.Leg().RequestID = id
	if x.prepared.LeftOut != nil {
		x.response.Served.Writer.Header().Del(prepare.IgnoredHeader) // of an attempt before: this engine is given all
	}
	l := &relayLeg{engineWait: wait, request: &x.ctx}
	l.ctx.Of(&x.ctx)
	x.escape.by(nil, &l.ctx, nil)
	x.leg = l
	x.rec.Publish(trace.Engine, trace.Now()) // nothing tells when all is sent
	leg := x.rec.Leg()
	body := l.ask(x.endpoint, &x.prepared, x.response.Served.Request.URL.Path)
	var req *engine.RelayRequest
	if p := x.partner; p != nil {
		req = p.wire.(*relayPrefill).other(body)
	} else {
		req = relayed(x.response.Served.Request, id, body)
	}
	if x.partner.defers() && !x.target.Meets.HoldsPages {
		l.waits = new(engine.Deferral)
		req.Waits = l.waits
		l.expect() // the wait for the head is to end by no bound of the adapter's, which hangs up
		l.silence.begin(trace.Now())
	}
	resp, err := x.target.Relay.Forward(&l.ctx, req, leg)
	if l.silence != nil {
		l.silence.pause()
	}
	splitWait(&x.rec.Ledger, leg, leg.Acked)
	if err != nil {
		if left := x.escape.left(); left != nil {
			return left
		}
		return inTime(err, "did not begin its answer", x.g.opts.Attempt.FirstTimeout, "--first-timeout")
	}
	l.response = resp
	x.answer = l.open(x.endpoint, x.prepared.Head)
	switch resp.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		// Another engine may do better; the last one's answer is passed on as it is.
		failed := &infer.Error{Code: infer.CodeEngine, Engine: x.target.Name, Retryable: true, Message: "the engine failed",
			Cause: fmt.Errorf("status %d", resp.Status), Handover: x.partner != nil}
		if e := x.partner.word(&x.ctx, failed); e != failed {
			return e
		}
		if x.ctx.Err() == nil && x.need.CouldRetry(x.target, x.failure(failed), trace.Now()) {
			return failed
		}
		return nil
	default:
		return nil
	}
	busy := &infer.Error{Code: infer.CodeOverloaded, Engine: x.target.Name, Retryable: true, NotRun: true, RetryAfter: resp.RetryAfter, Message: "the engine is overloaded"}
	if x.ctx.Err() == nil && x.need.CouldRetry(x.target, x.failure(busy), trace.Now()) {
		return busy
	}
	// The refusal is passed on as the engine wrote it.
	x.target.Health.Rest(trace.Now(), resp.RetryAfter)
	return nil
}

// splitWait divides the hand-over to a relay engine. Unlike a token engine it confirms
// nothing before it answers, and of an answer that is not streamed the head comes when
// all is generated: from the request's last byte to the answer's first the time is the
// engine's.
func splitWait(ledger *trace.Ledger, leg *trace.Leg, answered int64) {
	now := trace.Now()
	if answered == 0 {
		answered = now // it failed
	}
	written := leg.ToServer
	if written == 0 {
		written = answered // it had not read all before it answered
	}
	ledger.Split(written, trace.Engine, answered)
	ledger.Split(answered, trace.Receive, now)
}
