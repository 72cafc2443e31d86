package place

import (
	"weir/internal/fleet/balance"
	"weir/internal/fleet/queue"
	"weir/internal/fleet/route"
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

// Foresee chooses an engine for a request that arrives now, as Place does, and gives it none. The
// description of the wait is nil if the queue is off. An error is why the request would be refused.
func (r *Room) Foresee(n *Need, a *Ask, c *route.Choice, now int64) (target route.Target, partner *route.Target, w *Waiting, err error) {
	l, m := r.line, n.Model
	asks := queue.Request{Model: m.Name, Pool: m.Base, Caller: a.Caller, Class: uint64(m.Class(n.Needs)) << 1, Answers: a.Footprint.Answers(), Bytes: a.Bytes, Expires: l.expires(now, n.BeginBy)}
	patient, pushed := balance.Patient(m.Policy), l.pushes(m)
	if !pushed {
		c.Request.Answers, c.Request.Claims, c.Roomy = asks.Answers, l.waiting.Load() > 0, !patient
	}
	target, partner, ok := n.Pick(a, c, now, l.random())
	if !ok && c.Roomy { // none has room: where it would go if all had
		c.Roomy = false
		target, partner, ok = n.Pick(a, c, now, l.random())
	}
	if !ok {
		return target, nil, nil, n.noEngine(now)
	}
	if !pushed {
		r.mu.Lock()
		defer r.mu.Unlock()
		w, err = l.outlook(&asks, &target, partner, patient && m.Room(n.Needs, n.Tried, asks.Answers, now), now)
	}
	return target, partner, w, err
}

// outlook predicts the wait of a request that arrives now and chooses the target, and its
// partner if it has one. parks is set if the request would wait for them although others have
// room. An error is the reason why it may not wait.
func (l *Line) outlook(r *queue.Request, target, partner *route.Target, parks bool, now int64) (*Waiting, error) {
	w := &Waiting{Drain: int64(l.queue.Drained(r.Model, now))}
	if w.Behind = l.queue.Before(r, nil); w.Behind == 0 {
		// Nobody of its flow waits who has not decided: it decides at once.
		full := target
		if partner != nil && !l.queue.Free(r, partner.Books.Rank, now) {
			full = partner
		} else if l.queue.Free(r, target.Books.Rank, now) {
			return w, nil
		}
		if parks {
			w.For, w.Behind = full.Label, l.queue.Before(r, full.Books.Rank)
		}
	}
	w.Waits = true
	if why, _ := l.queue.Refuses(r.Caller, r.Model, r.Expires, r.Bytes, now); why != queue.None {
		return nil, l.refusal(why, r.Caller, r.Model, now)
	}
	return w, nil
}
