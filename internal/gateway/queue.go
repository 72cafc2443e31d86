package gateway

import (
	"fmt"
	"time"

	"weir/internal/infer"
	"weir/internal/route"
	"weir/internal/trace"
)

// routing is where a request can go.
type routing struct {
	fleet *route.Snapshot
	model *route.Model    // as the fleet has it
	needs infer.Carries   // what an engine must carry
	tried []*route.Engine // by the attempts before
}

// queue is stage 5: it waits, bounded, until an engine can take the request.
// Today that means until one is ready; the snapshot's change wakes it.
func (x *exchange) queue() error {
	x.enter(trace.Queue)
	x.rec.Queued = trace.Now()
	var deadline *time.Timer
	for {
		if x.model.Has(x.needs, x.tried) {
			return nil
		}
		if len(x.tried) > 0 {
			return x.noEngine() // the ones there are have failed; do not wait for them
		}
		if x.model.Settled {
			return x.noEngine() // they have left, drain, or refuse connections
		}
		if deadline == nil {
			deadline = time.NewTimer(x.g.opts.EngineTimeout)
			defer deadline.Stop()
		}
		select {
		case <-x.fleet.Changed:
			var err error
			x.fleet = x.g.opts.Snapshot()
			if x.model, err = lookUp(x.fleet, x.head.Model); err != nil {
				return err
			}
			relays := x.g.relays(x.model, x.endpoint)
			if err = x.g.checkPath(x.model, x.endpoint, x.response.r.URL.Path, relays); err != nil {
				return err
			}
			if x.relayed && !relays {
				// Only the request's head was read. It takes a token engine's path from
				// the start, or none.
				return x.noEngine()
			}
			x.relayed = relays
		case <-deadline.C:
			return x.noEngine()
		case <-x.ctx.Done():
			return gone(x.ctx)
		}
	}
}

// couldRetry says that there is another engine to go to.
func (r *routing) couldRetry(failed *route.Engine) bool {
	return len(r.tried)+1 < maxAttempts && r.model.Has(r.needs, append(r.tried[:len(r.tried):len(r.tried)], failed))
}

func (r *routing) noEngine() error {
	what := "engine"
	if len(r.tried) > 0 {
		what = "other engine"
	}
	e := infer.Errorf(infer.CodeUnavailable, "no %s for model %q is ready", what, r.model.Name)
	if r.model.Has(0, r.tried) {
		e.Message += fmt.Sprintf(" that carries %s, which the request needs", r.needs)
	}
	if len(r.tried) > 0 {
		e.Engine = r.tried[len(r.tried)-1].Name
	}
	e.RetryAfter = time.Second
	return e
}
