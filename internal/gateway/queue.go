package gateway

import (
	"context"
	"time"

	"weir/internal/dialect"
	"weir/internal/fleet/queue"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/observe/metrics"
	"weir/internal/trace"
)

// goes has a request go where it can be sent as it was prepared.
func goes(n *place.Need, to prepare.Destination) {
	n.Fleet, n.Model, n.Needs, n.NoIDs, n.BeginBy = to.Fleet, to.Model, to.Needs, to.NoIDs, to.BeginBy
}

// place is stages 5 and 6, queue and route: it waits, bounded, until an engine can take the request,
// which is booked there at once, so that the next choice takes it into account.
func (x *exchange) place() error {
	x.stream.Record.Publishing() // of another attempt, too
	now := x.stream.Record.Enter(trace.Queue)
	if x.stream.Record.Queued == 0 || !x.stream.Response.Begun {
		x.stream.Record.Queued = now
	}
	if x.need.Expires == 0 {
		x.need.Expires = x.g.room.Expires(now, x.need.BeginBy)
	}
	if err := undivided(&x.need, &x.prepared, x.stream.Record.Endpoint); err != nil {
		return err
	}
	return x.g.room.Place(&x.stream.Ctx, &x.need, x.asks(), x)
}

// asks is what the request asks for.
func (x *exchange) asks() place.Ask {
	return place.Ask{
		Caller: x.caller, Footprint: &x.prepared.Footprint, Session: x.prepared.Session, Sent: x.prepared.Sent, Bytes: x.prepared.Held(),
		Patience: x.stream.Record.Queued + int64(x.g.opts.Place.EngineTimeout), AtOnce: x.endpoint.Traits().Wants != dialect.Answer, ID: &x.stream.Record.RequestID,
	}
}

// Routes implements place.Owner.
func (x *exchange) Routes() (now int64) { return x.stream.Record.Enter(trace.Route) }

// Decides implements place.Owner.
func (x *exchange) Decides() (now int64, err error) {
	// The gateway's shutdown cuts requests off one by one. The room that the first ones
	// free must not go to one that ends next.
	for _, ctx := range [...]context.Context{x.g.base, &x.stream.Ctx} {
		if ctx.Err() != nil {
			return trace.Now(), gone(ctx)
		}
	}
	err = x.Refresh()
	if now = trace.Now(); err == nil {
		x.stream.Record.Ledger.Enter(trace.Route, now)
	}
	return now, err
}

// Waits implements place.Owner.
func (x *exchange) Waits(again bool) {
	now := trace.Now()
	if x.stream.Record.Ledger.Enter(trace.Queue, now); !again {
		x.stream.Record.Publish(trace.Queue, now)
	}
}

// Given implements place.Owner.
func (x *exchange) Given(p place.Placement) {
	if p.Waited != nil {
		p.Waited.Band, p.Waited.Tenant = dialect.Clip(p.Waited.Band, maxCaller), dialect.Clip(p.Waited.Tenant, maxCaller)
	}
	asks := x.asks()
	x.try.Given(&p, &asks)
}

// Refresh implements place.Owner. It takes the fleet as it is now.
func (x *exchange) Refresh() (err error) {
	x.need.Fleet = x.g.opts.Snapshot()
	model, err := prepare.LookUp(x.need.Fleet, x.prepared.Head.Model, x.caller)
	if model != nil { // otherwise the request keeps the model that it began with
		x.need.Model = model
	}
	if err != nil {
		return err
	}
	if err := x.g.preparer.CheckPath(x.need.Model, x.endpoint, x.stream.Record.Endpoint); err != nil {
		return err
	}
	if x.misfits() {
		return errMisfit
	}
	return nil
}

// errMisfit ends the wait of a request if no engine accepts the form in which it was prepared
// and some accept another one.
var errMisfit = infer.Errorf(infer.CodeUnavailable, "the engines of the model take requests in another form than before; try again")

// mostAnew bounds how often a request is prepared again.
const mostAnew = 3

// misfits reports whether the request lacks the form that the engines of its model need,
// because the engines have changed since it was prepared.
func (x *exchange) misfits() bool {
	if x.need.Needs.HasIDs() && x.need.Needs.HasBytes() || x.need.NoIDs != nil || x.prepared.Body == nil || x.need.Anew == mostAnew || x.need.Model.Has(x.need.Needs, x.need.Tried) {
		return false
	}
	could := x.g.preparer.Forms(x.need.Model, x.endpoint)
	if x.need.Needs.HasIDs() {
		could.IDs = infer.AnotherForm
	} else {
		could.Bytes = infer.AnotherForm
	}
	return x.need.Model.Has(could, x.need.Tried)
}

// prepareAgain prepares a request that has waited for the engines that there are now. It keeps
// its place among those that wait.
func (x *exchange) prepareAgain() (done bool, err error) {
	x.prepared.Reservation.Leave()
	x.need.Anew++
	body := x.prepared.Body
	x.prepared = prepare.Prepared{}
	return x.prepare(body)
}

// queued is what metrics show of those that wait.
func (g *Gateway) queued() map[string]metrics.QueueStats {
	all := map[string]metrics.QueueStats{}
	g.room.Look(func(q *queue.Queue, now int64) {
		for name, s := range q.Stats() {
			v := metrics.QueueStats{Stats: s, DrainSeconds: q.Drained(name, now).Seconds()}
			if since := q.Oldest(name); since != 0 {
				v.OldestSeconds = time.Duration(now - since).Seconds()
			}
			all[name] = v
		}
	})
	return all
}

// tenants are what metrics show of tenants.
func (g *Gateway) tenants() (all []queue.Tenant) {
	g.room.Look(func(q *queue.Queue, _ int64) { all = q.Tenants() })
	return all
}
