package sglangipc

import (
	"context"
	"errors"
	"testing"

	"weir/internal/engine"
	"weir/internal/infer"
)

// A probe is a fence through the engine's loop: a busy engine answers it late, a hung
// one not at all, and the loss of the engine ends it.
func TestProbe(t *testing.T) {
	p := newPeer(t, 2)
	b := start(t, p)
	e := b.Rig.Engine.(*Engine)
	b.Barrier()
	if err := e.Probe(b.Ctx, engine.Probe{Rank: -1}); err != nil {
		t.Fatal(err)
	}
	p.mu.Update(func() { p.mute = true })
	asked := func() {
		t.Helper()
		if err := p.mu.Await(b.Ctx, "a fence", func() bool { return len(p.fences) > 0 }); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	go func() { done <- e.Probe(b.Ctx, engine.Probe{Rank: 0}) }()
	asked()
	select {
	case err := <-done:
		t.Fatalf("answered without the engine: %v", err)
	default:
	}
	p.mu.Update(func() { p.mute = false; p.answer() })
	if err := <-done; err != nil {
		t.Errorf("a busy engine's late answer: %v", err)
	}

	p.mu.Update(func() { p.mute = true })
	hung, giveUp := context.WithCancel(b.Ctx)
	go func() { done <- e.Probe(hung, engine.Probe{Rank: -1}) }()
	asked()
	giveUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a hung engine: %v", err)
	}
	go func() { done <- e.Probe(b.Ctx, engine.Probe{Rank: -1}) }()
	asked()
	p.Cut()
	if err := <-done; err == nil {
		t.Error("an engine that is gone has answered")
	}
	b.WaitReady(false)
	if err := e.Probe(b.Ctx, engine.Probe{Rank: -1}); infer.AsError(err).Code != infer.CodeUnavailable {
		t.Errorf("without an engine: %v", err)
	}
}
