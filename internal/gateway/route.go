package gateway

import "weir/internal/trace"

// route is stage 6: it picks the engine from the snapshot, and books the request there at
// once, so that the next pick knows of it. Where the engine has no room the request waits,
// and the stage before goes on. For one that has waited this was done when there was room.
func (x *exchange) route() error {
	now := x.enter(trace.Route)
	h := x.g.held
	if x.ticket == nil {
		x.ticket = h.ticket(x)
	}
	t := x.ticket
	if !t.given {
		target, partner, ok := t.pick(now)
		func() {
			if !t.pushed { // otherwise nobody else has a part in it
				h.mu.Lock()
				defer h.mu.Unlock() // whatever panics
			}
			h.take(t, target, partner, ok, now)
		}()
	}
	if t.given {
		h.put(t)
		return nil
	}
	return t.err
}
