package gateway

import (
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// queue is stage 5: it waits, bounded, until an engine can take the request.
// Today that means until one is ready; the snapshot's change wakes it.
func (x *exchange) queue() error {
	x.enter(trace.Queue)
	x.rec.Queued = trace.Now()
	var deadline *time.Timer
	for {
		if x.model.Has(x.tried) {
			return nil
		}
		if len(x.tried) > 0 {
			return x.noEngine() // the ones there are have failed; do not wait for them
		}
		if deadline == nil {
			deadline = time.NewTimer(x.g.opts.EngineTimeout)
			defer deadline.Stop()
		}
		select {
		case <-x.fleet.Changed:
			relayed := x.relayed
			if err := x.findModel(); err != nil {
				return err
			}
			if relayed && !x.relayed {
				// Only the request's head was read. It takes a token engine's path
				// from the start, or none.
				return x.noEngine()
			}
		case <-deadline.C:
			return x.noEngine()
		case <-x.ctx.Done():
			return x.gone()
		}
	}
}

func (x *exchange) noEngine() error {
	e := infer.Errorf(infer.CodeUnavailable, "no engine for model %q is ready", x.model.Name)
	if len(x.tried) > 0 {
		e = infer.Errorf(infer.CodeUnavailable, "no other engine for model %q is ready", x.model.Name)
		e.Engine = x.tried[len(x.tried)-1].Name
	}
	e.RetryAfter = time.Second
	return e
}
