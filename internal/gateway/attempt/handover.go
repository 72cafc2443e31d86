package attempt

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/trace"
)

// inTime adds the name of the bound to the error of a wait that has reached it.
func inTime(err error, what string, limit time.Duration, bound string) error {
	var e *infer.Error
	if !errors.As(err, &e) || e.Code != infer.CodeDeadline {
		return err
	}
	bounded := *e // others may have it, too
	bounded.Message = fmt.Sprintf("the engine %s within %v (%s)", what, limit, bound)
	return &bounded
}

// handOverAll hands n choices over by generate, so many of them at once, and waits until
// the engine has confirmed all. With an error, which a panic is too, it gives those that the
// engine has as well. In leg is when the first was sent, and the last confirmed. id is the
// request's, for logs.
func (of *Attempts) handOverAll(ctx context.Context, id string, n, atOnce int, leg *trace.Leg, generate func(ctx context.Context, choice int, leg *trace.Leg) (engine.Generation, error)) ([]engine.Generation, error) {
	if n == 1 { // there is no other to wait for
		one, err := of.guarded(id, func() (engine.Generation, error) { return generate(ctx, 0, leg) })
		return []engine.Generation{one}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	generations, legs := make([]engine.Generation, n), make([]trace.Leg, n)
	var mu sync.Mutex
	var failed error // the first one: others may be of the cancel that follows it
	var all sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i := range generations {
		legs[i] = *leg
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			generation, err := of.guarded(id, func() (engine.Generation, error) { return generate(ctx, i, &legs[i]) })
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				generations[i] = generation
			} else if failed == nil {
				failed = err
				cancel()
			}
		})
	}
	all.Wait()
	*leg = legs[0]
	for i := range legs {
		leg.Acked = max(leg.Acked, legs[i].Acked)
		if at := legs[i].ToServer; at != 0 && (leg.ToServer == 0 || at < leg.ToServer) {
			leg.ToServer = at
		}
	}
	return generations, failed
}

// guarded does a hand-over and turns a panic into an error, where no other function
// does.
func (of *Attempts) guarded(id string, handOver func() (engine.Generation, error)) (made engine.Generation, err error) {
	defer func() {
		if p := recover(); p != nil {
			made, err = nil, of.recorder.Panic(id, p)
		}
	}()
	return handOver()
}
