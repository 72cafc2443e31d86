package gateway

import (
	"context"
	"math/rand/v2"
	"net/http"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/queue"
	"weir/internal/fleet/route"
	"weir/internal/gateway/front"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// Waiting describes how a hypothetical request would wait in the queue.
type Waiting struct {
	Waits bool `json:"waits"`
	// For is the engine that it would wait for; empty: any engine with room. Behind is how
	// many requests wait for the same before it.
	For    string `json:"for,omitempty"`
	Behind int    `json:"behind"`
	// Drain is the time until the requests of its model that wait now have left, in
	// nanoseconds; 0 if unknown.
	Drain int64 `json:"drain,omitempty"`
}

// Explain returns where a request to path would go now, and why, without sending it to an engine.
// The record is the one that the request would have, with an attempt that is not made. Explain
// runs the stages up to route. It does not count the request, and it does not advance any policy.
// The description of the wait is nil if the queue is off. An error is the one that the caller
// would receive.
func (g *Gateway) Explain(ctx context.Context, path string, header http.Header, body []byte) (*trace.Record, *Waiting, error) {
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
	waiting, err := g.held.explain(&routing{to: to}, q, &in)
	return rec.Record, waiting, err
}

// explain makes the choice for a request, and its record.
func (h *holding) explain(r *routing, q *prepare.Prepared, in *prepare.Input) (*Waiting, error) {
	now, m := in.Record.Enter(trace.Route), r.to.Model
	if err := r.undivided(q, in.Path); err != nil {
		return nil, err
	}
	c := new(route.Choice)
	c.Request.Dry = true
	asks := queue.Request{Model: m.Name, Pool: m.Base, Caller: in.Caller, Class: uint64(m.Class(r.to.Needs)) << 1, Answers: q.Footprint.Answers(), Bytes: q.Held(), Expires: h.expires(now, r.to.BeginBy)}
	need := r.need(q)
	pick := func() (route.Target, *route.Target, bool) {
		return need.Pick(c, now, rand.Uint64())
	}
	patient := balance.Patient(m.Policy)
	pushed := h.pushes(m)
	if !pushed {
		c.Request.Answers, c.Request.Claims, c.Roomy = asks.Answers, h.waiting.Load() > 0, !patient
	}
	target, partner, ok := pick()
	if !ok && c.Roomy { // none has room: where it would go if all had
		c.Roomy = false
		target, partner, ok = pick()
	}
	if !ok {
		return nil, r.noEngine(now)
	}
	var waiting *Waiting
	if !pushed {
		var err error
		if waiting, err = h.outlook(&asks, &target, partner, patient && m.Room(r.to.Needs, r.tried, asks.Answers, now), now); err != nil {
			return nil, err
		}
	}
	rec := in.Record
	rec.Model, rec.PromptTokens, rec.Routed = m.Name, q.Footprint.Length(), now
	attempt := place.Chosen(c, m)
	attempt.Legs = legs(rec, &target, partner)
	rec.Attempts = []trace.Attempt{attempt}
	return waiting, nil
}

// outlook predicts the wait of a request that arrives now and chooses the target, and its
// partner if it has one. parks is set if the request would wait for them although others have
// room. An error is the reason why it may not wait.
func (h *holding) outlook(r *queue.Request, target, partner *route.Target, parks bool, now int64) (*Waiting, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	w := &Waiting{Drain: int64(h.queue.Drained(r.Model, now))}
	if w.Behind = h.queue.Before(r, nil); w.Behind == 0 {
		// Nobody of its flow waits who has not decided: it decides at once.
		full := target
		if partner != nil && !h.queue.Free(r, partner.Books.Rank, now) {
			full = partner
		} else if h.queue.Free(r, target.Books.Rank, now) {
			return w, nil
		}
		if parks {
			w.For, w.Behind = full.Label, h.queue.Before(r, full.Books.Rank)
		}
	}
	w.Waits = true
	if why, _ := h.queue.Refuses(r.Caller, r.Model, r.Expires, r.Bytes, now); why != queue.None {
		return nil, h.refusal(why, r.Caller, r.Model, now)
	}
	return w, nil
}
