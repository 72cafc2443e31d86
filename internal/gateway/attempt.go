package gateway

import (
	"weir/internal/gateway/answer"
	"weir/internal/infer"
	"weir/internal/route"
)

// attempt is one try of a request at one engine, from route to settle.
type attempt struct {
	leg    leg           // nil before the engine is asked, and once the attempt is settled
	answer answer.Answer // of the latest attempt
	booked booked
	target route.Target
}

// settle closes an attempt: it is aborted unless it ended by itself, and its
// outcome goes into its leg.
func (x *exchange) settle(e *infer.Error) {
	record := x.rec.Leg()
	x.unbook(e)
	stream, _ := x.leg.(*relayLeg)
	if l := x.leg; l != nil {
		x.leg = nil
		l.close()
	}
	if e == nil {
		record.Outcome = infer.Finished.String()
		if stream != nil && stream.events {
			ok, why := stream.verified()
			x.g.opts.Metrics.RelayStream(x.target.Name, ok, why)
		}
		return
	}
	record.Outcome = e.Code.String()
	if e.Engine != "" {
		x.g.opts.Metrics.EngineFault(e.Engine, e.Code)
		x.g.opts.Integrity.Add(x.target.Engine.Kind, e.Engine, x.rec.RequestID, e)
	}
}

// couldRetry says that the request can go to another engine: only while nothing has
// reached the client.
func (x *exchange) couldRetry() bool {
	return !x.response.begun && x.ctx.Err() == nil && x.routing.couldRetry(x.target.Engine)
}

// again says whether the request goes to another engine: only after a failure that
// another engine may not share, and once.
func (x *exchange) again(e *infer.Error) bool {
	if e == nil || !e.Retryable || !x.couldRetry() {
		return false
	}
	x.tried = append(x.tried, x.target.Engine)
	x.err, x.ending = nil, false
	x.g.opts.Metrics.Retry(x.target.Name)
	x.g.opts.Log.Info("retrying on another engine", "request_id", x.rec.RequestID, "engine", x.target.Name, "error", e.Error())
	return true
}
