package gateway

import (
	"weir/internal/fleet/route"
	"weir/internal/trace"
)

// route is stage 6. It picks the engine from the snapshot and books the request there at
// once, so that the next pick takes it into account. If the engine has no room, the
// request waits in the previous stage. A request that has waited was already routed when
// there was room.
func (x *exchange) route() error {
	now := x.rec.Enter(trace.Route)
	h := x.g.held
	if x.ticket == nil {
		x.ticket = h.ticket(x)
	}
	t := x.ticket
	given, err := t.given, error(nil)
	if !given {
		target, partner, ok := t.pick(now)
		given, err = h.route(t, target, partner, ok, now)
	}
	if given {
		h.put(t)
	}
	return err
}

// route lets a request take the engine that it has chosen. If the request waits from now on,
// it and its exchange belong to the holding and must not be accessed without the lock.
func (h *holding) route(t *ticket, target route.Target, partner *route.Target, ok bool, now int64) (given bool, err error) {
	if !t.pushed { // otherwise nobody else has a part in it
		h.mu.Lock()
		defer h.mu.Unlock() // whatever panics
	}
	h.take(t, target, partner, ok, now)
	if t.Waits() {
		now = trace.Now()
		t.x.rec.Ledger.Enter(trace.Queue, now)
		t.x.rec.Publish(trace.Queue, now)
	}
	return t.given, t.err
}
