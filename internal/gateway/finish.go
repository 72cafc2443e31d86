package gateway

import (
	"net/http"
	"strconv"

	"weir/internal/api"
	"weir/internal/infer"
	"weir/internal/trace"
)

// finish is stage 14: it tells the client about an error, gives back what the
// request held, and closes its one record. It also runs after a panic.
func (x *exchange) finish() {
	x.enter(trace.Finish)
	x.release()
	if x.stopBreaking != nil {
		x.stopBreaking()
		x.bounded = false // the context's end may have moved it
	}
	broken := x.err != nil && !x.relayedError && x.fail()
	if x.stopFollowing != nil {
		x.stopFollowing()
	}
	x.cancel(nil)
	x.record()
	x.client.end(!broken, broken && x.err.Code != infer.CodeCancelled && x.err.Code != infer.CodeSlowClient)
}

// release gives back what the request holds: what is weir's own first, the
// engine's last, so that a panic in an adapter costs nothing but its request.
func (x *exchange) release() {
	defer func() {
		if p := recover(); p != nil {
			x.panicked(p)
		}
	}()
	x.stopWaiting()
	if x.holding != nil {
		x.holding.Stop()
	}
	x.g.rids.leave(x)
	if x.mailbox != nil {
		x.mailbox.Close()
	}
	if x.reservation != nil {
		x.reservation.Leave()
	}
	if x.submitted() || x.response != nil {
		x.settle(x.err)
	}
}

// fail tells the client what went wrong, as far as it can still be told. It
// reports whether the connection must be broken.
func (x *exchange) fail() (broken bool) {
	if !x.committed {
		if x.err.Code != infer.CodeCancelled || x.err == errAborted {
			x.rec.Status = x.endpoint.Status(x.err)
			x.extendDeadline(trace.Now())
			x.rec.BytesOut += int64(writeError(x.w, x.endpoint, x.err))
		}
		return x.err.Code == infer.CodeCancelled && x.err != errAborted
	}
	inside := x.pull != nil && x.pull.open // an event that is half sent
	if x.carriesSSE && !inside && x.err.Code != infer.CodeCancelled && x.err.Code != infer.CodeSlowClient {
		if x.enc != nil {
			x.out = x.enc.AppendError(x.out, x.err)
		} else {
			x.out = x.endpoint.AppendErrorEvent(x.out, x.err)
		}
		_ = x.write(x.out, false) // the client may be gone by now, which changes nothing
	}
	return true
}

// record closes the request's record and hands it to the views.
func (x *exchange) record() {
	rec := x.rec
	if x.pull != nil {
		x.pull.recordUsage()
	}
	rec.Outcome = x.err.Outcome()
	if x.err != nil {
		rec.Code, rec.Message = x.err.Code.String(), x.err.Message
		if x.err.Code == infer.CodeInternal || x.err.Code == infer.CodeIntegrity {
			x.g.opts.Log.Error("request failed", "request_id", rec.RequestID, "error", x.err.Error())
		}
		if !x.relayed && rec.CompletionTokens == 0 {
			rec.CompletionTokens = x.consumed()
		}
	}
	rec.Finished = trace.Now()
	rec.Ledger.Enter(trace.Finish, rec.Finished)
	x.g.opts.Metrics.Ended(rec)
	if x.g.opts.Timeline != nil {
		x.g.opts.Timeline.Add(rec)
	}
	x.conn.rearm()
	x.g.live.Add(-1) // last: who waits for the live ones to end may then close the views
}

// writeError answers with an error in the endpoint's shape and gives the size of
// the body.
func writeError(w http.ResponseWriter, e api.Endpoint, err *infer.Error) int {
	body := e.AppendError(nil, err)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	status := e.Status(err)
	switch {
	case err.RetryAfter > 0:
		h.Set("Retry-After", strconv.Itoa(int(max(1, err.RetryAfter.Round(1e9).Seconds()))))
	case err.Code == infer.CodeOverloaded, status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "1") // whoever refused has no better idea
	}
	w.WriteHeader(status)
	n, _ := w.Write(body) // nobody is left to be told
	return n
}
