package gateway

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"weir/internal/dialect"
	"weir/internal/fleet/retry"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/trace"
)

// If an engine fails after the client has received a part of a stream, the stream
// continues at another engine. The ids so far become the new engine's prompt, and its
// output feeds the same answer, which does not notice the change. docs/continuation.md
// describes the conditions and the cost.

// Continuing configures how streams continue at other engines when theirs fail.
type Continuing struct {
	// Off disables continuations: a stream whose engine fails ends with an error.
	Off bool
	// AtOnce is the number of streams of a model that may be continuing at once; 0
	// means 32. A continuation is over with its first output.
	AtOnce int
	// Timeout bounds the total time that a stream waits for its turn and for an engine
	// with room; 0 means 30 s.
	Timeout time.Duration
	// Memory bounds the histories of all streams, in bytes; 0 means 1 GiB, and a negative
	// value is no bound. A stream without room for its history cannot continue.
	Memory int64
	// Stall is the time without output after which a stream continues at another engine; 0 if
	// it does not. The fleet's judge sees to that; here it bounds how many ids an engine may
	// collect.
	Stall time.Duration
}

const (
	// collected is how many ids engines collect of an answer that is not streamed. Seven of
	// eight events are saved.
	collected = 8
	// slowest is the time for each of these ids within which an engine is not to be taken for
	// stalled.
	slowest = time.Second
)

// portion returns how many ids of an answer the engine may collect. The client of a stream waits
// for each id. Behind a stop string, which weir finds, the engine would generate for nobody. idle and
// stall are the times without output after which the engine is given up.
func portion(r *dialect.Request, idle, stall time.Duration) int {
	const least = collected * slowest
	if r.Stream || len(r.Stop) > 0 || idle < least || stall > 0 && stall < least {
		return 0
	}
	return collected
}

func (c *Continuing) defaults() {
	if c.AtOnce == 0 {
		c.AtOnce = 32
	}
	if c.Timeout == 0 {
		c.Timeout = 30 * time.Second
	}
	if c.Memory == 0 {
		c.Memory = 1 << 30
	}
	if c.Memory < 0 {
		c.Memory = 1<<63 - 1
	}
}

// continuing is the state of a stream that it needs to continue at another engine.
type continuing struct {
	bar       prepare.Bar
	continued int32        // number of continuations
	lost      *infer.Error // the failure that it is to continue after; nil if none, or if it has continued
	failedAt  int64        // when lost was set
	slot      place.Turn   // held until its first output
	history   history
}

// remember decides whether the stream can continue elsewhere, and if so begins its history.
// It is called when an engine has the request and is already computing, so it does not
// delay the request. After the first attempt it only restarts the history.
func (x *exchange) remember() {
	if x.history.of != nil || x.bar != prepare.GoesOn {
		x.history.restart()
		return
	}
	if x.bar = x.prepared.Bar(maxPacked + 1); x.g.opts.Place.Continue.Off {
		x.bar = prepare.BarOff
	}
	if x.bar == prepare.GoesOn && !x.history.keep(x.prepared.IDs, &x.g.kept, x.g.opts.Place.Continue.Memory) {
		x.bar = prepare.BarMemory
	}
}

// ends reports whether the ids so far are the whole answer, although the engine has not sent
// its end, and the finish reason.
func (x *exchange) ends() (reason infer.Reason, ok bool) {
	came := x.history.came()
	if came >= x.prepared.Request.MaxTokens {
		return infer.ReasonLength, true
	}
	last, some := x.history.last()
	stops := some && came > x.prepared.Request.MinTokens && (slices.Contains(x.prepared.Request.StopIDs, last) || !x.prepared.Request.IgnoreEOS && slices.Contains(x.prepared.Folder.EOS, last))
	return infer.ReasonStop, stops
}

// goesElsewhere is like again, for a stream of which the client has received a part.
func (x *exchange) goesElsewhere(e *infer.Error) bool {
	if !place.Continuable(e) {
		return false
	}
	switch {
	case x.bar == prepare.BarOff, x.bar == prepare.BarRelay && !x.need.Elsewhere(*x.culprit(e)):
		return false
	case x.bar != prepare.GoesOn:
		x.g.opts.Metrics.ContinuationRefused(x.need.Model.Name, x.bar.String())
		x.err = notContinued(e, x.bar.Why())
		return false
	}
	if x.lost == nil {
		x.lost, x.failedAt = e, trace.Now()
		x.need.Needs.Bytes |= infer.AnotherForm
		x.need.Expires, x.need.BeginBy = x.failedAt+int64(x.g.opts.Place.Continue.Timeout), 0
	}
	if reason, whole := x.ends(); whole {
		x.conclude(reason)
		return false
	}
	if why := x.renew(); why != "" {
		return x.staysBroken(e, "model", why)
	}
	failed := *x.culprit(e)
	came := x.history.came()
	if came-x.prepared.Sent >= retry.Proven {
		x.need.Begun, x.need.Tried = 0, nil
	}
	f := x.failure(e)
	wait, why := time.Duration(0), retry.Granted
	if x.need.Elsewhere(failed) {
		if wait, why = x.need.Model.Retries.Decide(trace.Now(), &f, rand.Float64()); why != retry.Granted {
			return x.staysBroken(e, why.String(), continuationRefusals[why])
		}
	} else {
		return x.staysBroken(e, "no_engine", "no other engine of the model is there that could take it")
	}
	x.need.Failed(&f, failed, x.partner.besides(e))
	x.g.opts.Log.Info("a stream goes on at another engine", "request_id", x.rec.RequestID, "engine", failed.Label, "tokens", came, "wait", wait, "error", e.Error(), "bound", e.Bound())
	attempt := &x.rec.Attempts[len(x.rec.Attempts)-1]
	attempt.Continued, attempt.Given = true, int32(came-x.prepared.Sent)
	x.rec.Publishing()
	x.rec.Enter(trace.Queue)
	if cached := x.booking.Cached(); cached >= 0 && x.continued == 0 {
		x.generated().Found(0, cached)
	}
	err := x.g.room.Pause(&x.ctx, &x.need, x, wait)
	if err == nil {
		err = x.takeTurn()
	}
	if err == nil {
		if why := x.renew(); why != "" {
			return x.staysBroken(e, "model", why)
		}
	}
	if err != nil {
		x.err = infer.AsError(err)
		return false
	}
	if x.abortable.asked.Load() { // the caller wants the output so far
		x.generated().Abort()
		x.conclude(infer.ReasonAbort)
		return false
	}
	x.g.opts.Metrics.Continued(failed.Name, continuedWhy(e))
	x.continued++
	x.err, x.ending = nil, false
	x.recall()
	return true
}

// renew reads the current snapshot of the fleet. It returns the reason why no engine in it
// can continue the stream, or "" if one might.
func (x *exchange) renew() (why string) {
	if err := x.Refresh(); err != nil {
		return infer.AsError(err).Message
	}
	if x.g.preparer.Folder(x.need.Model) != x.prepared.Folder {
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

// staysBroken records why a stream does not continue.
func (x *exchange) staysBroken(e *infer.Error, word, why string) bool {
	x.g.opts.Metrics.ContinuationRefused(x.need.Model.Name, word)
	x.err = notContinued(e, why)
	return false
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

// recall prepares the request for the next engine: the ids so far become the prompt.
func (x *exchange) recall() {
	x.prepared.Recall(x.history.all(), x.history.came())
}

// generated returns the answer of a stream that can continue.
func (x *exchange) generated() *answer.Tokens { return x.answer.(*answer.Tokens) }

// conclude ends an answer that is whole although its engine failed before it sent the
// end.
func (x *exchange) conclude(reason infer.Reason) {
	w := x.g.worker()
	defer x.g.workers.Put(w)
	defer w.trim()
	w.in.Cells = []stream.Cell{{Finish: &infer.Finish{Reason: reason, PromptTokens: -1, CachedTokens: -1}}}
	part := x.answer.Next(&w.in, &w.scratch, &x.rec)
	x.lost = nil
	x.ending, x.told, x.err = true, part.Last, infer.AsError(part.Err)
	if x.rec.Timed {
		part.Out = x.rec.WithTiming(part.Out, part.Last)
	}
	switch v, err := x.send(w, part.Out, part.Last); {
	case err != nil:
		x.err, x.told = infer.AsError(err), false
	case v == blocked:
		x.sendRest()
	}
}

// takeTurn waits until the stream may continue, at most until its timeout.
func (x *exchange) takeTurn() (err error) {
	n, m := &x.need, x.g.opts.Metrics
	if n.Before = nil; x.slot.Taken() {
		return nil // kept from the previous attempt, which had no output
	}
	m.ContinuationsWaiting(1)
	defer m.ContinuationsWaiting(-1)
	n.Before, err = x.g.turns.Take(&x.ctx, &x.slot, n.Model.Name, time.Duration(n.Expires-trace.Now()))
	switch {
	case err == place.ErrNoTurn:
		m.ContinuationRefused(n.Model.Name, "timeout")
		return notContinued(x.lost, "others had their turn for "+x.g.opts.Place.Continue.Timeout.String()+" (--continuation-timeout)")
	case err != nil:
		return infer.AsError(err)
	}
	n.Spare = x.g.turns.Most
	m.ContinuationsUnderWay(1)
	return nil
}

// leaveTurn lets another stream continue; first says that this one has had its first output.
func (x *exchange) leaveTurn(first bool) {
	if !x.slot.Taken() {
		return
	}
	x.slot.Ends(first)
	x.need.Before = nil
	x.g.opts.Metrics.ContinuationsUnderWay(-1)
}

// resumes records the first output of a continued stream.
func (x *exchange) resumes() {
	x.leaveTurn(true)
	x.g.opts.Metrics.ContinuationGap(trace.Now() - x.failedAt)
	x.lost = nil
	x.prepared.ForgetAsking()
}

// continuedNote begins a comment in a stream, which replaces a header field because the
// head has been sent. Proxies and clients ignore the comment; it is for people who read
// the bytes.
const continuedNote = ": x-weir-continued "

// withNote prepends the comment to the first output of a continued stream.
func (x *exchange) withNote(out []byte) []byte {
	note := strconv.AppendInt([]byte(continuedNote), int64(x.continued), 10)
	return slices.Concat(note, []byte("\n\n"), out)
}

// broken returns the error for a stream that was to continue when an attempt did not
// reach an engine.
func (x *exchange) broken(e *infer.Error) *infer.Error {
	if x.lost == nil || e == nil || x.ctx.Err() != nil {
		return e
	}
	x.g.opts.Metrics.ContinuationRefused(x.need.Model.Name, "no_engine")
	return notContinued(x.lost, e.Message)
}
