package attempt

import (
	"fmt"
	"net/http"
	"time"

	"weir/internal/dialect"
	"weir/internal/engine"
	"weir/internal/fleet/admission"
	"weir/internal/fleet/judge"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// Client is what an attempt is told of who has sent its request.
type Client struct {
	Endpoint dialect.Endpoint
	Request  *http.Request     // nil: the response has left net/http
	Header   http.Header       // of the response, likewise
	Spends   *tenancy.Spending // of the caller's key
	Room     *admission.Body   // the share of its body in what bodies may take
}

// Dispatch is stage 7: it hands the request to the chosen engine and returns
// once the engine confirmed that it has it. ctx is the request's.
func (a *Attempt) Dispatch(ctx *lifetime.Context, c Client) error {
	a.escape.begin()
	if a.request.Request != nil && a.request.Request.Priority != nil {
		a.booking.Health.Priority = *a.request.Request.Priority
	}
	if !a.begun {
		a.stream.Record.FirstReceived, a.stream.Record.Pace = 0, nil
	}
	now := a.stream.Record.Enter(trace.Dispatch)
	if p := a.partner; p != nil {
		p.begin(ctx, &a.stream.Record, a.request, c.Request)
		if p.meets.first() {
			a.stream.Record.Enter(trace.Engine)
			if err := p.answer(); err != nil {
				return err
			}
			now = a.stream.Record.Enter(trace.Dispatch)
		}
	}
	m := a.of.metrics
	wait := engineWait{rec: &a.stream.Record, of: a.of, shown: shown{merged: m.Receive(a.Target.Kind).Merged(), gaps: m.Gaps(a.need.Model.Name)}, target: a.Target, booking: &a.booking, escape: &a.escape, partner: a.partner}
	if c.Spends.Counts() {
		if wait.shown.spends = c.Spends; !a.promptCharged {
			a.promptCharged = true
			c.Spends.Charge(a.request.Footprint.Length())
		}
	}
	if a.lost != nil {
		wait.resumed = a
		if p := a.stream.Record.Pace; p != nil { // the move is a gap, too
			wait.shown.last, wait.shown.flushed = p.Last, a.stream.Record.Ledger.Spent[trace.Flush]
		}
	}
	if a.Target.Relay != nil {
		wait.handOver(now, a.work, c.Request.URL.Path, a)
		return a.forward(ctx, c, wait)
	}
	wait.handOver(now, a.work, "", a)
	return a.submit(ctx, c, wait)
}

// ownDelay is the delay between a request's hand-over and its sending above which
// the delay is reported to the engine's health.
const ownDelay = 100 * time.Millisecond

// handOver records that the adapter is about to receive the request: from now on the engine
// owes progress. now is the time when the stage began, after its injected delay if any.
// work is the result of workOf, and path is for a relayed request. A decode half owes
// progress only when the prefill half has ended.
func (w *engineWait) handOver(now int64, work float64, path string, a judge.Waiting) {
	if w.rec.Injects() {
		now = trace.Now()
	}
	w.rec.Leg().Handed = now
	health, booking, probe := w.target.Health, w.booking, engine.Probe{Model: w.target.Model, Path: path}
	if w.partner == nil {
		health.HandOver(&booking.Health, now, work, w.rec.RequestID, probe, a)
		return
	}
	id := w.rec.RequestID
	w.partner.awaits(func(now int64) { health.HandOver(&booking.Health, now, work, id, probe, a) })
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
		if w.of.opts.AckWarning > 0 && ns > int64(w.of.opts.AckWarning) && (trace.AckParts[i] != "engine" || ack.Queue < 0) {
			w.of.recorder.Late(leg.Engine, w.rec.RequestID, trace.AckParts[i], time.Duration(ns))
		}
	}
}

// submit hands the request to a token engine.
func (a *Attempt) submit(ctx *lifetime.Context, c Client, wait engineWait) error {
	box := a.Mailbox()
	if box == nil {
		box = stream.New(a.request.Count(), a.request.Longest(), a.request.Request.Logprobs, a.stream.Waiting())
	}
	if !a.abort.ready(box) {
		return ErrAborted
	}
	if l := a.request.LeftOut; l != nil && a.need.Needs.HasBytes() && !a.begun {
		l.Tell(c.Header, a.of.metrics)
	}
	if !a.need.Needs.HasBytes() { // otherwise it may be relayed yet
		if a.request.Forget(); !a.request.HasMedia { // which are part of the body
			c.Room.Leave()
		}
	}
	own, resumes := a.stream.Answer.(*answer.Tokens)
	if resumes = resumes && a.lost != nil; !resumes {
		own = a.newAnswer()
	}
	l := &tokenLeg{engineWait: wait, answer: own, streams: a.request.Request.Stream, abort: &a.abort, mailbox: box, stamped: -1}
	l.generations = l.only[:]
	if n := a.request.Count(); n > 1 {
		l.generations = make([]engine.Generation, n)
	}
	a.stream.Leg, a.stream.Answer = l, own
	if err := a.submits(ctx, l); err != nil {
		if left := a.escape.left(); left != nil {
			return left
		}
		return err
	}
	l.acknowledged()
	if !resumes {
		a.remember()
	}
	if a.bar == prepare.GoesOn {
		l.history = &a.history
	}
	l.watch(ctx)
	a.escape.by(nil, nil, box)
	return nil
}

// submits hands the choices of a leg over, within a bound.
func (a *Attempt) submits(ctx *lifetime.Context, l *tokenLeg) error {
	h := a.hands(ctx, a.of.opts.SubmitTimeout)
	defer a.handed(h)
	return l.submit(h, a.request)
}

// forward hands the request to a relay engine.
func (a *Attempt) forward(ctx *lifetime.Context, c Client, wait engineWait) error {
	a.bar = prepare.BarRelay
	if err := a.request.CheckSalt(a.need.Model, a.Target.Engine, c.Request.URL.Path); err != nil {
		return err // it is another engine than when the request was checked
	}
	id := relayID(a.stream.Record.ID, len(a.stream.Record.Attempts))
	a.stream.Record.Leg().RequestID = id
	if a.request.LeftOut != nil {
		c.Header.Del(prepare.IgnoredHeader) // of an attempt before: this engine is given all
	}
	l := &relayLeg{engineWait: wait, request: ctx}
	l.ctx.Of(ctx)
	a.escape.by(nil, &l.ctx, nil)
	a.stream.Leg = l
	a.stream.Record.Publish(trace.Engine, trace.Now()) // nothing tells when all is sent
	leg := a.stream.Record.Leg()
	body := l.ask(c.Endpoint, a.request, c.Request.URL.Path)
	var req *engine.RelayRequest
	if p := a.partner; p != nil {
		req = p.wire.(*relayPrefill).other(body)
	} else {
		req = relayed(c.Request, id, body)
	}
	if a.partner.defers() && !a.Target.Meets.HoldsPages {
		l.waits = new(engine.Deferral)
		req.Waits = l.waits
		l.expect() // the wait for the head is to end by no bound of the adapter's, which hangs up
		l.silence.begin(trace.Now())
	}
	resp, err := a.Target.Relay.Forward(&l.ctx, req, leg)
	if l.silence != nil {
		l.silence.pause()
	}
	splitWait(&a.stream.Record.Ledger, leg, leg.Acked)
	if err != nil {
		if left := a.escape.left(); left != nil {
			return left
		}
		return inTime(err, "did not begin its answer", a.of.opts.FirstTimeout, "--first-timeout")
	}
	l.response = resp
	a.stream.Answer = l.open(c.Endpoint, a.request.Head)
	switch resp.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
	case http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		// Another engine may do better; the last one's answer is passed on as it is.
		failed := &infer.Error{Code: infer.CodeEngine, Engine: a.Target.Name, Retryable: true, Message: "the engine failed",
			Cause: fmt.Errorf("status %d", resp.Status), Handover: a.partner != nil}
		if e := a.partner.word(failed); e != failed {
			return e
		}
		if ctx.Err() == nil && a.couldRetry(failed) {
			return failed
		}
		return nil
	default:
		return nil
	}
	busy := &infer.Error{Code: infer.CodeOverloaded, Engine: a.Target.Name, Retryable: true, NotRun: true, RetryAfter: resp.RetryAfter, Message: "the engine is overloaded"}
	if ctx.Err() == nil && a.couldRetry(busy) {
		return busy
	}
	// The refusal is passed on as the engine wrote it.
	a.Target.Health.Rest(trace.Now(), resp.RetryAfter)
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
