package attempt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"weir/internal/fleet/retry"
	"weir/internal/fleet/route"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/trace"
)

// failure is what is known of the attempt, which has failed by e.
func (a *Attempt) failure(e *infer.Error) retry.Failure {
	return a.need.Failure(e, place.Progress{
		Begun: a.begun, Goes: a.bar == prepare.GoesOn, Attempts: len(a.stream.Record.Attempts), Continued: int(a.continued),
		Effects: a.Target.Relay != nil && a.of.preparer.Effects(a.stream.Record.Endpoint),
	})
}

// couldRetry reports whether the request can go to another engine, at once, after a failure.
func (a *Attempt) couldRetry(e *infer.Error) bool {
	return a.need.CouldRetry(a.Target, a.failure(e), trace.Now())
}

// Next is what follows a failed attempt: another one, or the end of the answer that is whole
// although its engine failed before it sent the end.
type Next struct {
	Again bool
	Whole infer.Reason // "": it is not whole
}

// Again decides whether the request goes to another engine after a failure by e, and waits for its
// turn to do so. A request does so only after a failure that another engine may not share, and only
// while the client has received nothing or if another engine can continue the stream. If it does not,
// the error is how the request ends.
func (a *Attempt) Again(ctx context.Context, e *infer.Error, o place.Owner) (Next, *infer.Error) {
	switch {
	case e == nil || ctx.Err() != nil:
		return Next{}, e
	case a.begun:
		return a.goesElsewhere(ctx, e, o)
	case !e.Retryable:
		return Next{}, e
	}
	failed := *a.Culprit(e)
	if !a.need.Elsewhere(failed) {
		return Next{}, e
	}
	f := a.failure(e)
	wait, spent := a.escape.granted()
	if !spent {
		var why retry.Refusal
		if wait, why = a.need.Model.Retries.Decide(trace.Now(), &f, rand.Float64()); why != retry.Granted {
			a.of.metrics.RetryRefused(a.need.Model.Name, why.String())
			return Next{}, e
		}
	}
	a.need.Failed(&f, failed, a.partner.besides(e))
	a.of.metrics.Retry(failed.Name, !e.NotRun)
	a.of.log.Info("retrying on another engine", "request_id", a.stream.Record.RequestID, "engine", failed.Label, "wait", wait, "error", e.Error(), "bound", e.Bound())
	attempt := &a.stream.Record.Attempts[len(a.stream.Record.Attempts)-1]
	attempt.Repeated, attempt.MayHaveRun = true, !e.NotRun
	a.stream.Record.Enter(trace.Queue)
	if err := a.of.room.Pause(ctx, a.need, o, wait); err != nil {
		return Next{}, infer.AsError(err)
	}
	return Next{Again: true}, nil
}

// Down implements judge.Waiting. It runs in the judge's goroutine, while the attempt is the
// request's latest and its response has not begun, so that what it reads of the request
// stands still.
func (a *Attempt) Down(why string) { a.leave(&a.Target, isDown+why) }

// Stalled implements judge.Waiting: the engine goes on with others, and its part of this
// attempt stands still.
func (a *Attempt) Stalled(d time.Duration) {
	a.leave(&a.Target, fmt.Sprintf("the engine sent nothing for %v while it went on with other requests (--stall-timeout)", d.Round(time.Second)))
}

// Had implements judge.Waiting. A relayed answer's tokens are not counted.
func (a *Attempt) Had() (tokens int, ok bool) { return a.escape.had() }

// leave ends the attempt at one of its engines for a reason, if it may end. It implements whole.
func (a *Attempt) leave(at *route.Target, why string) {
	s := &a.escape
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state > answers || s.state == answers && (at != &a.Target || a.bar != prepare.GoesOn) {
		return
	}
	e := &infer.Error{Code: infer.CodeDeadline, Engine: at.Name, Retryable: true, Message: why}
	var f retry.Failure
	if s.state == answers { // where what the response is about to say is not looked at
		f = retry.Failure{Goes: true, Silent: true, Continued: int(a.continued)}
	} else {
		f = a.failure(e)
	}
	if f.Allow() != retry.Granted || !f.Goes && !a.need.Elsewhere(*at) || f.Goes && !a.need.Continues(*at) {
		return
	}
	if f.Goes {
		if f.Continued == 0 || a.need.Model.Retries.Left(trace.Now()) >= 1 {
			s.leave(moves, e, 0)
		}
		return
	}
	if wait, refused := a.need.Model.Retries.Decide(trace.Now(), &f, rand.Float64()); refused == retry.Granted {
		s.leave(leaves, e, wait)
	}
}
