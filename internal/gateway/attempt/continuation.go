package attempt

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"weir/internal/fleet/retry"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/trace"
)

// If an engine fails after the client has received a part of a stream, the stream
// continues at another engine. The ids so far become the new engine's prompt, and its
// output feeds the same answer, which does not notice the change. docs/continuation.md
// describes the conditions and the cost.

// remember decides whether the stream can continue elsewhere, and if so begins its history.
// It is called when an engine has the request and is already computing, so it does not
// delay the request. After the first attempt it only restarts the history.
func (a *Attempt) remember() {
	if a.history.of != nil || a.bar != prepare.GoesOn {
		a.history.restart()
		return
	}
	if a.bar = a.request.Bar(maxPacked + 1); a.of.opts.Continue.Off {
		a.bar = prepare.BarOff
	}
	if a.bar == prepare.GoesOn && !a.history.keep(a.request.IDs, &a.of.Kept, a.of.opts.Continue.Memory) {
		a.bar = prepare.BarMemory
	}
}

// ends reports whether the ids so far are the whole answer, although the engine has not sent
// its end, and the finish reason.
func (a *Attempt) ends() (reason infer.Reason, ok bool) {
	came := a.history.came()
	if came >= a.request.Request.MaxTokens {
		return infer.ReasonLength, true
	}
	last, some := a.history.last()
	stops := some && came > a.request.Request.MinTokens && (slices.Contains(a.request.Request.StopIDs, last) || !a.request.Request.IgnoreEOS && slices.Contains(a.request.Folder.EOS, last))
	return infer.ReasonStop, stops
}

// goesElsewhere is like Again, for a stream of which the client has received a part.
func (a *Attempt) goesElsewhere(ctx context.Context, e *infer.Error, o place.Owner) (Next, *infer.Error) {
	if !place.Continuable(e) {
		return Next{}, e
	}
	switch {
	case a.bar == prepare.BarOff, a.bar == prepare.BarRelay && !a.need.Elsewhere(*a.Culprit(e)):
		return Next{}, e
	case a.bar != prepare.GoesOn:
		return a.staysBroken(e, a.bar.String(), a.bar.Why())
	}
	if a.lost == nil {
		a.lost = e
		a.need.Needs.Bytes |= infer.AnotherForm
		a.need.Expires, a.need.BeginBy = trace.Now()+int64(a.of.opts.Continue.Timeout), 0
	}
	if reason, whole := a.ends(); whole {
		return a.concludes(reason)
	}
	if why := a.renew(o); why != "" {
		return a.staysBroken(e, "model", why)
	}
	failed := *a.Culprit(e)
	came := a.history.came()
	if came-a.request.Sent >= retry.Proven {
		a.need.Begun, a.need.Tried = 0, nil
	}
	f := a.failure(e)
	if !a.need.Elsewhere(failed) {
		return a.staysBroken(e, "no_engine", "no other engine of the model is there that could take it")
	}
	wait, why := a.need.Model.Retries.Decide(trace.Now(), &f, rand.Float64())
	if why != retry.Granted {
		return a.staysBroken(e, why.String(), continuationRefusals[why])
	}
	a.need.Failed(&f, failed, a.partner.besides(e))
	a.of.log.Info("a stream goes on at another engine", "request_id", a.stream.Record.RequestID, "engine", failed.Label, "tokens", came, "wait", wait, "error", e.Error(), "bound", e.Bound())
	attempt := &a.stream.Record.Attempts[len(a.stream.Record.Attempts)-1]
	attempt.Continued, attempt.Given = true, int32(came-a.request.Sent)
	a.stream.Record.Publishing()
	a.stream.Record.Enter(trace.Queue)
	if cached := a.booking.Cached(); cached >= 0 && a.continued == 0 {
		a.generated().Found(0, cached)
	}
	err := a.of.room.Pause(ctx, a.need, o, wait)
	if err == nil {
		err = a.takeTurn(ctx)
	}
	if err != nil {
		return Next{}, infer.AsError(err)
	}
	if why := a.renew(o); why != "" {
		return a.staysBroken(e, "model", why)
	}
	if a.abort.asked.Load() { // the caller wants the output so far
		a.generated().Abort()
		return a.concludes(infer.ReasonAbort)
	}
	a.of.metrics.Continued(failed.Name, continuedWhy(e))
	a.continued++
	a.request.Recall(a.history.all(), a.history.came())
	return Next{Again: true}, nil
}

// concludes ends a stream whose answer is whole.
func (a *Attempt) concludes(reason infer.Reason) (Next, *infer.Error) {
	a.lost = nil
	return Next{Whole: reason}, nil
}

// renew takes the fleet as it is now. It returns the reason why no engine in it can continue the
// stream, or "" if one might.
func (a *Attempt) renew(o place.Owner) (why string) {
	if err := o.Refresh(); err != nil {
		return infer.AsError(err).Message
	}
	if a.of.preparer.Folder(a.need.Model) != a.request.Folder {
		return "the model has changed meanwhile"
	}
	return ""
}

// continuationRefusals are the messages for streams that the rules of retries do not
// allow to continue.
var continuationRefusals = [...]string{
	retry.Exhausted: "it has failed at two engines in a row, or was continued eight times", retry.Spent: "the model's retries are spent (--retry-share, --retry-floor)",
	retry.Final: "it could not succeed", retry.Seen: "", retry.Effects: "",
}

// staysBroken records why a stream does not continue, and returns the error for its client.
func (a *Attempt) staysBroken(e *infer.Error, word, why string) (Next, *infer.Error) {
	a.of.metrics.ContinuationRefused(a.need.Model.Name, word)
	return Next{}, notContinued(e, why)
}

// continuedWhy is the label in metrics for the failure after which a stream continues.
func continuedWhy(e *infer.Error) string {
	switch e.Code {
	case infer.CodeIntegrity:
		return "integrity"
	case infer.CodeDeadline:
		return "silence"
	}
	return "lost"
}

// notContinued returns a copy of e whose message adds why the stream did not continue.
func notContinued(e *infer.Error, why string) *infer.Error {
	with := *e // e may be shared
	with.Message += "; the stream could not go on at another engine: " + why
	return &with
}

// generated returns the answer of a stream that can continue.
func (a *Attempt) generated() *answer.Tokens { return a.stream.Answer.(*answer.Tokens) }

// takeTurn waits until the stream may continue, at most until its timeout.
func (a *Attempt) takeTurn(ctx context.Context) (err error) {
	n, m := a.need, a.of.metrics
	if n.Before = nil; a.slot.Taken() {
		return nil // kept from the previous attempt, which had no output
	}
	m.ContinuationsWaiting(1)
	defer m.ContinuationsWaiting(-1)
	n.Before, err = a.of.Turns.Take(ctx, &a.slot, n.Model.Name, time.Duration(n.Expires-trace.Now()))
	switch {
	case err == place.ErrNoTurn:
		m.ContinuationRefused(n.Model.Name, "timeout")
		return notContinued(a.lost, "others had their turn for "+a.of.opts.Continue.Timeout.String()+" (--continuation-timeout)")
	case err != nil:
		return infer.AsError(err)
	}
	n.Spare = a.of.Turns.Most
	m.ContinuationsUnderWay(1)
	return nil
}

// leaveTurn lets another stream continue; first says that this one has had its first output.
func (a *Attempt) leaveTurn(first bool) {
	if !a.slot.Taken() {
		return
	}
	a.slot.Ends(first)
	a.need.Before = nil
	a.of.metrics.ContinuationsUnderWay(-1)
}

// resumes records the first output of a continued stream.
func (a *Attempt) resumes() {
	a.leaveTurn(true)
	a.of.metrics.ContinuationGap(trace.Now() - a.need.Expires + int64(a.of.opts.Continue.Timeout))
	a.lost = nil
	a.request.ForgetAsking()
}

// continuedNote begins a comment in a stream, which replaces a header field because the
// head has been sent. Proxies and clients ignore the comment; it is for people who read
// the bytes.
const continuedNote = ": x-weir-continued "

// withNote prepends the comment to the first output of a continued stream.
func (a *Attempt) withNote(out []byte) []byte {
	note := strconv.AppendInt([]byte(continuedNote), int64(a.continued), 10)
	return slices.Concat(note, []byte("\n\n"), out)
}

// Broken returns the error for a stream that was to continue when an attempt did not
// reach an engine.
func (a *Attempt) Broken(ctx context.Context, e *infer.Error) *infer.Error {
	if a.lost == nil || e == nil || ctx.Err() != nil {
		return e
	}
	a.of.metrics.ContinuationRefused(a.need.Model.Name, "no_engine")
	return notContinued(a.lost, e.Message)
}
