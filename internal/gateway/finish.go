package gateway

import (
	"math"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"weir/internal/dialect"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/front"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Finish is stage 14: it reports an error to the client, releases the resources of the
// request, and closes its record. It also runs after a panic. A panic in a part of
// finish affects that part only, so that every request ends exactly once. It implements drive.Owner.
func (x *exchange) Finish() {
	left := x.stream.Response.Detached()
	if left {
		defer x.g.driver.Done()
	}
	x.guarded(func() { x.stream.Record.Publishing(); x.stream.Record.Enter(trace.Finish) })
	x.release()
	if left && x.g.driver.Crowded() {
		// When thousands hang up at once, the engine's requests end before the records
		// of any are written. A stream that ends alone needs no other's turn.
		runtime.Gosched()
	}
	if x.expiry != nil {
		x.expiry.Stop()
	}
	x.stream.Response.Unbind()
	broken := x.stream.Err != nil && !x.stream.Told
	if broken {
		x.guarded(func() { broken = x.fail() }) // behind what is kept of a stream
	}
	x.stream.Response.Release()
	x.stream.Ctx.End(nil)
	x.record()
	end := func() {
		x.stream.Response.End(!broken, broken && x.stream.Err.Code != infer.CodeCancelled && x.stream.Err.Code != infer.CodeSlowClient)
	}
	if left {
		x.guarded(end)
	} else {
		end() // in the handler, where net/http breaks the connection for a panic
	}
}

// guarded does a part of the request's end. A panic in it is logged and ends nothing
// else.
func (x *exchange) guarded(part func()) {
	defer func() {
		if p := recover(); p != nil {
			e := x.g.recorder.Panic(x.stream.Record.RequestID, p)
			if x.stream.Err == nil {
				x.stream.Err = e
			}
		}
	}()
	part()
}

// release gives back what the request holds: what is weir's own first, the
// engine's last, so that a panic in an adapter costs nothing but its request.
func (x *exchange) release() {
	var v drive.Verdict
	defer x.stream.Caught(&v)
	x.stream.Stop()
	x.try.Drop()
	x.g.rids.leave(x)
	if x.prepared.Reservation != nil {
		x.prepared.Reservation.Leave()
	}
	x.room.Leave()
	x.spends.Leave()
	if x.uncount != nil {
		x.uncount()
	}
	x.settled(x.try.End(x.stream.Err))
}

// fail sends the error to the client if that is still possible. It reports whether the
// connection must be broken.
func (x *exchange) fail() (broken bool) {
	r := &x.stream.Response
	gone := x.stream.Err.Code == infer.CodeCancelled && x.stream.Err != attempt.ErrAborted
	if !r.Begun {
		if !gone {
			x.stream.Record.Status = int32(x.endpoint.Status(x.stream.Err))
			r.ExtendDeadline(trace.Now(), x.patience())
			if r.Unread {
				front.DropBody(&r.Served.Controller)
			}
			x.stream.Record.PutTiming(r.Served.Writer.Header())
			if a := x.try.Said(x.stream.Err); a != nil {
				x.stream.Record.Status = int32(a.Status)
				x.stream.Record.BytesOut += int64(a.Write(r.Served.Writer))
			} else {
				x.stream.Record.BytesOut += int64(writeError(r.Served.Writer, x.endpoint, x.stream.Err))
			}
		}
		return gone
	}
	if r.Events && !gone && x.stream.Err.Code != infer.CodeSlowClient {
		x.stream.SendError(x.stream.Err, x.patience())
	}
	return true
}

// patience bounds the wait for the client to take an error. A shutdown waits for that.
func (x *exchange) patience() time.Duration {
	if x.stream.Ctx.Err() != nil {
		return min(front.LastWords, x.g.opts.Front.WriteTimeout)
	}
	return x.g.opts.Front.WriteTimeout
}

// record closes the request's record, which those who keep it then have.
func (x *exchange) record() {
	defer x.g.recorder.Leave(x) // last: who waits for the live ones to end may then close the views
	defer x.stream.Response.Done()
	rec := &x.stream.Record
	used := false
	x.guarded(func() {
		if x.stream.Answer == nil {
			return
		}
		if u, ok := x.stream.Answer.Usage(); ok {
			if used, rec.Used.Clipped = true, u.Clipped; u.Clipped {
				x.g.recorder.Clipped(x.try.Target.Name, rec.RequestID, u)
			}
			rec.PromptTokens, rec.CompletionTokens, rec.CachedTokens = u.PromptTokens, u.CompletionTokens, tokens(max(u.CachedTokens, 0))
		}
	})
	rec.Outcome = x.stream.Err.Outcome()
	x.guarded(func() { x.settleUsage(used) })
	if e := x.stream.Err; e != nil && rec.Leg() != nil && (e.Code == infer.CodeEngine || e.Code == infer.CodeDeadline || e.Code == infer.CodeExpired || e.Code == infer.CodeUnavailable) {
		x.g.recorder.Failed(x.try.Culprit(e).Name, rec.RequestID, e)
	}
	x.g.recorder.Close(rec, x.stream.Err, x.caller != prepare.Unknown)
}

// settleUsage records what the request used, and corrects what was charged to the caller's key to
// that: the usage log and the budget have the same number. stated says that the record has the
// answer's tokens; otherwise they are those that came, and none if no engine answered.
func (x *exchange) settleUsage(stated bool) {
	rec := &x.stream.Record
	if rec.FirstReceived != 0 || rec.Outcome == infer.Finished {
		if stated {
			rec.Used.Prompt, rec.Used.Cached, rec.Used.Completion = tokens(rec.PromptTokens), rec.CachedTokens, tokens(rec.CompletionTokens)
		}
		if relayed, ok := x.stream.Answer.(*answer.Relayed); ok {
			x.estimate(relayed, stated)
		}
	}
	x.spends.Settle(int(rec.Used.Prompt) + int(rec.Used.Completion))
}

// estimate counts a relayed answer whose engine has not stated its final counts, by its events, or
// by its size if it is whole.
func (x *exchange) estimate(r *answer.Relayed, stated bool) {
	u := &x.stream.Record.Used
	var n int
	switch events, size := r.Came(); {
	case r.Refused() && !stated:
		return // an error in place of an answer
	case stated && (x.stream.Record.Outcome == infer.Finished || events <= int(u.Completion)):
		return
	case events > 0:
		n = events
	case !x.prepared.Footprint.Computed:
		n = x.need.Model.Ratio.Tokens(size)
	}
	b := r.Bounds()
	u.Completion, u.Estimated = tokens(min(n, b.Completion)), true
	if u.Prompt == 0 {
		u.Prompt = tokens(min(x.prepared.Footprint.Length(), b.Prompt))
	}
}

// tokens is a number of tokens in a record. An engine may state any.
func tokens(n int) int32 { return int32(min(n, math.MaxInt32)) }

// challenge is how a caller that is not known may name itself (RFC 6750). A reason is which
// check a token has failed.
func challenge(err *infer.Error) string {
	if err.Reason == "" {
		return "Bearer"
	}
	return `Bearer error="invalid_token", error_description="` + err.Reason + `"`
}

// reasonHeader names why a request was refused for load, or why a token was.
const reasonHeader = "X-Refusal-Reason"

// writeError answers with an error in the endpoint's shape and gives the size of
// the body.
func writeError(w http.ResponseWriter, e dialect.Endpoint, err *infer.Error) int {
	body := e.AppendError(nil, err)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	status := e.Status(err)
	if err.Reason != "" {
		h.Set(reasonHeader, err.Reason)
	}
	if err.Code == infer.CodeUnauthorized {
		h.Set("WWW-Authenticate", challenge(err)) // RFC 9110 wants one with each 401
	}
	switch {
	case err.RetryAfter == 0 && err.Reason != "":
		// It is not known when to ask again.
	case err.RetryAfter > 0:
		h.Set("Retry-After", strconv.Itoa(int(max(1, math.Ceil(err.RetryAfter.Seconds())))))
	case err.Code == infer.CodeOverloaded, status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "1") // whoever refused has no better idea
	}
	w.WriteHeader(status)
	n, _ := w.Write(body) // no client is left to report it to
	return n
}
