package gateway

import (
	"math/rand/v2"
	"net/http"

	"weir/internal/fleet/health"
	"weir/internal/fleet/judge"
	"weir/internal/fleet/retry"
	"weir/internal/fleet/route"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/tenancy/fair"
	"weir/internal/trace"
)

// attempt is one try of a request at one engine, or at two, from route to settle.
type attempt struct {
	leg     leg           // nil before the engine is asked, and once the attempt is settled
	answer  answer.Answer // of the latest attempt
	booking place.Booking
	escape  escape
	charged fair.Turn // that the request has taken
	work    float64   // what it was predicted to be at the target, as workOf says
	target  route.Target
	// partner is the other half of an attempt in two halves; nil: the target has it whole.
	partner *partner
}

// legs begins the record's legs of the next attempt. The last one serves the client.
func legs(rec *record.Request, target, partner *route.Target) []trace.Leg {
	all := rec.Legs()
	if partner == nil {
		return append(all, trace.Leg{Role: "full", Engine: target.Name, Kind: target.Engine.Kind, DPRank: target.Number})
	}
	return append(all,
		trace.Leg{Role: infer.RolePrefill.String(), Engine: partner.Name, Kind: partner.Engine.Kind, DPRank: partner.Number},
		trace.Leg{Role: infer.RoleDecode.String(), Engine: target.Name, Kind: target.Engine.Kind, DPRank: target.Number},
	)
}

// relayedBy is the generation of an engine that is relayed, 0 of one that is not.
func relayedBy(t *route.Target) uint64 {
	if t.Relay == nil {
		return 0
	}
	return t.Generation
}

// culprit is the engine that an attempt has failed at by e.
func (a *attempt) culprit(e *infer.Error) *route.Target {
	if a.partner.blames(e) {
		return &a.partner.target
	}
	return &a.target
}

// own is how the attempt has ended for its target, where it has ended by e.
func (a *attempt) own(e *infer.Error) *infer.Error {
	if a.partner.blames(e) {
		return errBereft
	}
	return e
}

// ended returns how the attempt ended for the engine. A relay's refusal or failure is
// passed on as an answer. Halves that failed between them say nothing of either engine.
func (a *attempt) ended(e *infer.Error) health.End {
	if e != nil && e.Handover {
		return health.GaveUp
	}
	if l, ok := a.leg.(*relayLeg); ok && e == nil && l.response != nil {
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
func (a *attempt) usage() (u infer.Usage, known bool) {
	if a.answer == nil {
		return infer.Usage{CachedTokens: -1}, false
	}
	return a.answer.Usage()
}

// unbook ends what the attempt has in the books, once, however it has ended: e is nil
// where it is whole.
func (x *exchange) unbook(e *infer.Error) {
	if x.booking.Books == nil {
		return
	}
	own := x.own(e)
	how := x.ended(own)
	x.guarded(func() {
		if x.partner != nil && (how == health.Refused || how == health.Cut || how == health.Fault) {
			x.partner.owes(trace.Now()) // a decode engine fails although its half owed nothing yet
		}
		x.partner.close(e)
	})
	books := x.g.room.Close(&x.booking, trace.Now(), how, own == nil)
	x.guarded(func() {
		if x.charged.Tenant() != nil {
			u, known := x.usage()
			x.g.room.Settle(&x.charged, x.booking.Charge(books.Rank, how, u, known))
		}
	})
	x.guarded(func() {
		x.learn(x.need.Model, books, &x.rec.Attempts[len(x.rec.Attempts)-1], x.prepared.Sent, own)
	})
}

// learn learns from the outcome of an attempt. record is the attempt's record, and sent
// the number of ids of the answer from attempts before it.
func (a *attempt) learn(m *route.Model, books *route.Books, record *trace.Attempt, sent int, e *infer.Error) {
	u, known := a.usage()
	switch {
	case e != nil || !known:
		u, known = infer.Usage{CachedTokens: -1}, false
	case sent > 0: // the answer's is its first engine's
		u.PromptTokens, u.CachedTokens = a.booking.Of.Length(), a.booking.Cached()
	}
	if a.partner == nil {
		a.booking.Reported(books, u)
	} else {
		u.CachedTokens = a.partner.learn(u)
	}
	if u.CachedTokens >= 0 {
		record.Choice.Cached = int32(u.CachedTokens)
	}
	if text := a.booking.Of.Text; known && text > 0 {
		m.Ratio.Add(text, u.PromptTokens)
	}
	if e == nil {
		a.booking.Learn(m, u, known, sent)
	}
}

// settle closes an attempt: it is aborted unless it ended by itself, and its
// outcome goes into its leg.
func (x *exchange) settle(e *infer.Error) {
	record, at, outlives := x.rec.Leg(), x.culprit(e), x.partner.outlives()
	if !outlives {
		x.unbook(e)
	}
	stream, _ := x.leg.(*relayLeg)
	if l := x.leg; l != nil {
		x.leg = nil
		l.close()
	}
	if outlives { // when the decode engine has been told
		x.unbook(e)
	}
	if e == nil {
		record.Outcome = infer.Finished.String()
		if stream != nil && stream.events {
			ok, why := stream.verified()
			x.g.opts.Metrics.RelayStream(x.target.Name, ok, why)
			for _, word := range stream.answer.Odd().Words() {
				x.g.opts.Metrics.Odd(x.target.Name, word)
			}
		}
		return
	}
	record.Outcome = x.own(e).Code.String()
	if e.Engine != "" {
		if e.Code == infer.CodeOverloaded {
			at.Health.Rest(trace.Now(), e.RetryAfter)
		}
		x.g.opts.Metrics.EngineFault(e.Engine, e.Code)
		x.g.opts.Attempt.Integrity.Add(at.Engine.Kind, e.Engine, x.rec.RequestID, e)
	}
}

// failure is what is known of the attempt at hand, which has failed.
func (x *exchange) failure(e *infer.Error) retry.Failure {
	return x.need.Failure(e, place.Progress{
		Begun: x.response.Begun, Goes: x.bar == prepare.GoesOn, Attempts: len(x.rec.Attempts), Continued: int(x.continued),
		Effects: x.target.Relay != nil && x.g.opts.Prepare.Allow.Paths.Added(x.rec.Endpoint),
	})
}

// again decides whether the request goes to another engine, and waits for its turn to do
// so. A request does so only after a failure that another engine may not share, and only
// while the client has received nothing or if another engine can continue the stream.
func (x *exchange) again(e *infer.Error) bool {
	switch {
	case e == nil || x.ctx.Err() != nil:
		return false
	case x.response.Begun:
		return x.goesElsewhere(e)
	case !e.Retryable:
		return false
	}
	failed := *x.culprit(e)
	if !x.need.Elsewhere(failed) {
		return false
	}
	f := x.failure(e)
	wait, spent := x.escape.granted()
	if !spent {
		var why retry.Refusal
		if wait, why = x.need.Model.Retries.Decide(trace.Now(), &f, rand.Float64()); why != retry.Granted {
			x.g.opts.Metrics.RetryRefused(x.need.Model.Name, why.String())
			return false
		}
	}
	x.need.Failed(&f, failed, x.partner.besides(e))
	x.err, x.ending = nil, false
	x.g.opts.Metrics.Retry(failed.Name, !e.NotRun)
	x.g.opts.Log.Info("retrying on another engine", "request_id", x.rec.RequestID, "engine", failed.Label, "wait", wait, "error", e.Error(), "bound", e.Bound())
	attempt := &x.rec.Attempts[len(x.rec.Attempts)-1]
	attempt.Repeated, attempt.MayHaveRun = true, !e.NotRun
	x.rec.Enter(trace.Queue)
	if err := x.g.room.Pause(&x.ctx, &x.need, x, wait); err != nil {
		x.err = infer.AsError(err)
		return false
	}
	return true
}
