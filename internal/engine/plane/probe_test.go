package plane

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"weir/internal/engine"
)

// A probe is a fence: what answers calls does not answer it, a busy engine answers it
// late, and what an engine says otherwise is told apart.
func TestProbe(t *testing.T) {
	p := newPeer(t, "tcp")
	e := New(p.options())
	probe := func(ctx context.Context) error { return e.Probe(ctx, engine.Probe{Rank: -1}) }
	if err := probe(t.Context()); !errors.Is(err, engine.ErrNoProbe) {
		t.Errorf("without fences: %v", err)
	}
	answers := make(chan error)
	p.mu.Update(func() { p.fences = answers })

	hung, giveUp := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- probe(hung) }()
	answers <- nil // it is taken when the fence has come
	if err := <-done; err != nil {
		t.Errorf("a busy engine's late answer: %v", err)
	}
	if n := e.Computed(); n != 7 {
		t.Errorf("it has computed %d tokens", n)
	}
	go func() { done <- probe(hung) }()
	giveUp()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("a hung engine: %v", err)
	}
	for code, want := range map[codes.Code]error{codes.ResourceExhausted: engine.ErrBusy, codes.Unauthenticated: engine.ErrNoProbe, codes.DeadlineExceeded: context.DeadlineExceeded} {
		go func() { answers <- status.Error(code, "scripted") }()
		if err := probe(t.Context()); !errors.Is(err, want) {
			t.Errorf("%v: %v", code, err)
		}
	}
	go func() { answers <- status.Error(codes.Internal, "scripted") }()
	if err := probe(t.Context()); err == nil || errors.Is(err, engine.ErrBusy) || errors.Is(err, engine.ErrNoProbe) || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a fault: %v", err)
	}
	addr := p.addr
	p.Cut()
	o := p.options()
	o.Addr, o.Dial = addr, nil
	if err := New(o).Probe(t.Context(), engine.Probe{}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody there: %v", err)
	}
}
