package enginetest

import (
	"context"
	"errors"

	"weir/internal/engine"
	"weir/internal/infer"
)

// Fenced is a Peer whose engine is probed by fences through its loop.
type Fenced interface {
	// Mute leaves the fences that arrive from now on unanswered; with false those that
	// wait are answered.
	Mute(mute bool)
	// Fenced waits until the engine has read a fence that it has not answered.
	Fenced(ctx context.Context) error
}

// fence holds probes by fences to this: a busy engine answers late, a hung one not at
// all, and the loss of the engine ends a probe.
func fence(b *Bench) {
	p, ok := b.Rig.Peer.(Fenced)
	if !ok {
		return // probed otherwise
	}
	e := b.Rig.Engine.(engine.Prober)
	b.Barrier()
	b.Must(e.Probe(b.Ctx, engine.Probe{Rank: -1}))
	done := make(chan error)
	probe := func(ctx context.Context, rank int) {
		b.T.Helper()
		go func() { done <- e.Probe(ctx, engine.Probe{Rank: rank}) }()
		b.Must(p.Fenced(ctx))
	}
	p.Mute(true)
	rank := 0
	if e.Generates() { // by the probe of a single rank
		rank = -1
	}
	probe(b.Ctx, rank)
	select {
	case err := <-done:
		b.T.Fatalf("answered without the engine: %v", err)
	default:
	}
	p.Mute(false)
	if err := <-done; err != nil {
		b.T.Errorf("a busy engine's late answer: %v", err)
	}

	p.Mute(true)
	hung, giveUp := context.WithCancel(b.Ctx)
	defer giveUp()
	probe(hung, -1)
	giveUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		b.T.Errorf("a hung engine: %v", err)
	}
	probe(b.Ctx, -1)
	b.Rig.Peer.Cut()
	if err := <-done; err == nil {
		b.T.Error("an engine that is gone has answered")
	}
	b.WaitReady(false)
	if err := e.Probe(b.Ctx, engine.Probe{Rank: -1}); infer.AsError(err).Code != infer.CodeUnavailable {
		b.T.Errorf("without an engine: %v", err)
	}
}
