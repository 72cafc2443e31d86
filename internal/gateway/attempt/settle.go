package attempt

import (
	"cmp"
	"net/http"

	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/trace"
)

// own is how the attempt has ended for its target, where it has ended by e.
func (a *Attempt) own(e *infer.Error) *infer.Error {
	if a.partner.blames(e) {
		return errBereft
	}
	return e
}

// ended returns how the attempt ended for the engine. A relay's refusal or failure is
// passed on as an answer. Halves that failed between them say nothing of either engine.
func (a *Attempt) ended(e *infer.Error) health.End {
	if e != nil && e.Handover {
		return health.GaveUp
	}
	if l, ok := a.stream.Leg.(*relayLeg); ok && e == nil && l.response != nil {
		switch status := l.response.Status; {
		case status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable:
			return health.Overload
		case status >= 500 && a.partner != nil:
			return health.GaveUp
		case status >= 500:
			return health.Fault
		case status >= 400:
			return health.Rejected
		}
	}
	return judge.Of(e)
}

// usage is the answer's, if it has one.
func (a *Attempt) usage() (u infer.Usage, known bool) {
	if a.stream.Answer == nil {
		return infer.Usage{CachedTokens: -1}, false
	}
	return a.stream.Answer.Usage()
}

// guarded does a part of the attempt's end. A panic in it is logged, and ends nothing else.
func (a *Attempt) guarded(part func()) (failed *infer.Error) {
	defer func() {
		if p := recover(); p != nil {
			failed = a.of.recorder.Panic(a.stream.Record.RequestID, p)
		}
	}()
	part()
	return nil
}

// unbook ends what the attempt has in the books, once, however it has ended: e is nil
// where it is whole. It returns the error of a panic.
func (a *Attempt) unbook(e *infer.Error) *infer.Error {
	if a.booking.Books == nil {
		return nil
	}
	own := a.own(e)
	how := a.ended(own)
	partner := a.guarded(func() {
		if a.partner != nil && (how == health.Refused || how == health.Cut || how == health.Fault) {
			a.partner.owes(trace.Now()) // a decode engine fails although its half owed nothing yet
		}
		a.partner.close(e)
	})
	books := a.of.room.Close(&a.booking, trace.Now(), how, own == nil)
	settled := a.guarded(func() {
		if a.charged.Tenant() != nil {
			u, known := a.usage()
			a.of.room.Settle(&a.charged, a.booking.Charge(books.Rank, how, u, known))
		}
	})
	learned := a.guarded(func() { a.learn(books, own) })
	return cmp.Or(partner, settled, learned)
}

// learn learns from the outcome of the attempt.
func (a *Attempt) learn(books *route.Books, e *infer.Error) {
	u, known := a.usage()
	switch {
	case e != nil || !known:
		u, known = infer.Usage{CachedTokens: -1}, false
	case a.request.Sent > 0: // the answer's is its first engine's
		u.PromptTokens, u.CachedTokens = a.booking.Of.Length(), a.booking.Cached()
	}
	if a.partner == nil {
		a.booking.Reported(books, u)
	} else {
		u.CachedTokens = a.partner.learn(u)
	}
	if u.CachedTokens >= 0 {
		a.stream.Record.Attempts[len(a.stream.Record.Attempts)-1].Choice.Cached = int32(u.CachedTokens)
	}
	if text := a.booking.Of.Text; known && text > 0 {
		a.need.Model.Ratio.Add(text, u.PromptTokens)
	}
	if e == nil {
		a.booking.Learn(a.need.Model, u, known, a.request.Sent)
	}
}

// Drop releases what is kept for other attempts, and closes the mailbox.
func (a *Attempt) Drop() {
	a.leaveTurn(false)
	a.history.drop()
	if box := a.Mailbox(); box != nil {
		box.Close()
	}
}

// End settles the attempt of a request that has ended by e, unless it was settled before. It returns
// the error of a panic.
func (a *Attempt) End(e *infer.Error) (failed *infer.Error) {
	if failed = a.unbook(e); a.stream.Leg != nil {
		failed = cmp.Or(failed, a.Settle(e))
	}
	return failed
}

// Settle closes an attempt: it is aborted unless it ended by itself, and its
// outcome goes into its leg. It returns the error of a panic.
func (a *Attempt) Settle(e *infer.Error) (failed *infer.Error) {
	record, at, outlives := a.stream.Record.Leg(), a.Culprit(e), a.partner.outlives()
	if !outlives {
		failed = a.unbook(e)
	}
	stream, _ := a.stream.Leg.(*relayLeg)
	if l := a.stream.Leg; l != nil {
		a.stream.Leg = nil
		l.Close()
	}
	if outlives { // when the decode engine has been told
		failed = a.unbook(e)
	}
	if e == nil {
		record.Outcome = infer.Finished.String()
		if stream != nil && stream.events {
			ok, why := stream.verified()
			a.of.metrics.RelayStream(a.Target.Name, ok, why)
			for _, word := range stream.answer.Odd().Words() {
				a.of.metrics.Odd(a.Target.Name, word)
			}
		}
		return failed
	}
	record.Outcome = a.own(e).Code.String()
	if e.Engine != "" {
		if e.Code == infer.CodeOverloaded {
			at.Health.Rest(trace.Now(), e.RetryAfter)
		}
		a.of.metrics.EngineFault(e.Engine, e.Code)
		a.of.opts.Integrity.Add(at.Engine.Kind, e.Engine, a.stream.Record.RequestID, e)
	}
	return failed
}
