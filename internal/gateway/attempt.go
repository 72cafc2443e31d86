package gateway

import (
	"context"

	"weir/internal/api"
	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/route"
)

// attempt is one try of a request at one engine, from route to settle. What it
// leaves behind says how far the last one came.
type attempt struct {
	target  route.Target
	silence *silence // bounds the wait for the engine; nil before it has the request
	// stopAwaiting ends the watch of a context over the stream, which wakes it.
	stopAwaiting func() bool

	// Of a token engine.
	choices []choice
	only    [1]choice   // is choices, for most requests
	left    int         // of choices, those whose end is not encoded
	stamped int         // the choice whose stamps the record has, the first that brought some; -1: none
	enc     api.Encoder // nil before the first output

	// Of a relay engine.
	ctx      context.Context // ends with the request's, and by abandon
	abandon  context.CancelCauseFunc
	response *engine.RelayResponse
	pull     *pull // moves the response
}

// stopWaiting ends what bounds and wakes the wait for the engine.
func (a *attempt) stopWaiting() {
	if a.stopAwaiting != nil {
		a.stopAwaiting()
		a.stopAwaiting = nil
	}
	if a.silence != nil {
		a.silence.end()
		a.silence = nil
	}
}

// settle closes an attempt: it is aborted unless it ended by itself, and its
// outcome goes into its leg.
func (x *exchange) settle(e *infer.Error) {
	leg := x.leg()
	x.leave()
	if x.pull != nil && x.pull.stopPoll != nil {
		x.pull.stopPoll()
		x.pull.stopPoll = nil
	}
	if x.response != nil {
		x.response.Body.Close()
		x.response = nil
	}
	if x.abandon != nil {
		x.abandon(nil)
	}
	x.stopWaiting()
	if e == nil {
		leg.Outcome = infer.Finished.String()
		return
	}
	leg.Outcome = e.Code.String()
	if e.Engine != "" {
		x.g.opts.Metrics.EngineFault(e.Engine, e.Code)
		x.g.opts.Integrity.Add(x.target.Engine.Kind, e.Engine, x.rec.RequestID, e)
	}
}

// couldRetry says whether there is another engine to go to, and nothing has
// reached the client yet.
func (x *exchange) couldRetry() bool {
	if x.committed || x.ctx.Err() != nil || len(x.rec.Attempts) >= maxAttempts {
		return false
	}
	return x.model.Has(append(x.tried[:len(x.tried):len(x.tried)], x.target.Engine))
}

// again says whether the request goes to another engine: only while nothing
// reached the client, only after a failure that another engine may not share,
// and once.
func (x *exchange) again(e *infer.Error) bool {
	if e == nil || !e.Retryable || !x.couldRetry() {
		return false
	}
	x.tried = append(x.tried, x.target.Engine)
	x.g.opts.Metrics.Retry(x.target.Name)
	x.g.opts.Log.Info("retrying on another engine", "request_id", x.rec.RequestID, "engine", x.target.Name, "error", e.Error())
	return true
}
