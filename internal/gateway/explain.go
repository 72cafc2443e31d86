package gateway

import (
	"context"
	"net/http"

	"weir/internal/fleet/route"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/front"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// Explain returns where a request to path would go now, and why, without sending it to an engine.
// The record is the one that the request would have, with an attempt that is not made. Explain
// runs the stages up to route. It does not count the request, and it does not advance any policy.
// The description of the wait is nil if the queue is off. An error is the one that the caller
// would receive.
func (g *Gateway) Explain(ctx context.Context, path string, header http.Header, body []byte) (*trace.Record, *place.Waiting, error) {
	if _, err := g.preparer.Check(path, http.MethodPost, header); err != nil {
		return nil, nil, err
	}
	if int64(len(body)) > g.opts.Front.MaxBody {
		return nil, nil, front.TooLarge(g.opts.Front.MaxBody)
	}
	now := trace.Now()
	rec := &record.Request{Record: &trace.Record{RequestID: g.ids.request(), Endpoint: path, Arrival: now, Received: now, BytesIn: int64(len(body))}}
	rec.Ledger.Start(trace.Read, now)
	in := prepare.Input{Caller: tenancy.Anyone, Endpoint: g.preparer.Endpoint(path), Path: path, Header: header, Body: body, Record: rec, Dry: true}
	q := new(prepare.Prepared)
	to, _, err := g.preparer.Prepare(ctx, q, in)
	if q.Reservation != nil {
		defer q.Reservation.Leave()
	}
	if err != nil {
		return nil, nil, err
	}
	waiting, err := g.foresee(to, q, &in)
	return rec.Record, waiting, err
}

// foresee makes the choice for a request, and its record.
func (g *Gateway) foresee(to prepare.Destination, q *prepare.Prepared, in *prepare.Input) (*place.Waiting, error) {
	rec := in.Record
	now, n := rec.Enter(trace.Route), new(place.Need)
	goes(n, to)
	if err := undivided(n, q, in.Path); err != nil {
		return nil, err
	}
	c := new(route.Choice)
	c.Request.Dry = true
	target, partner, waiting, err := g.room.Foresee(n, &place.Ask{Caller: in.Caller, Footprint: &q.Footprint, Session: q.Session, Bytes: q.Held()}, c, now)
	if err != nil {
		return nil, err
	}
	rec.Model, rec.PromptTokens, rec.Routed = to.Model.Name, q.Footprint.Length(), now
	made := place.Chosen(c, to.Model)
	made.Legs = attempt.Legs(rec, &target, partner)
	rec.Attempts = []trace.Attempt{made}
	return waiting, nil
}
