package vllmcore

import (
	"context"

	"weir/internal/engine"
	"weir/internal/engine/mux"
)

// Probe implements engine.Prober by a fence through the loop of an engine core, or of
// each that is connected.
func (e *Engine) Probe(ctx context.Context, p engine.Probe) error {
	var sessions []*session
	for _, r := range e.ranks {
		if s := r.current.Load(); s != nil && s.Up() && (p.Rank < 0 || p.Rank == r.index) {
			sessions = append(sessions, s)
		}
	}
	if len(sessions) == 0 {
		return mux.Unavailable(e.opts.Name, e.host.Why())
	}
	answers := make(chan error, len(sessions))
	for _, s := range sessions {
		go func() { answers <- s.Probe(ctx) }()
	}
	var failed error
	for range sessions {
		if err := <-answers; err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

// Generates implements engine.Prober.
func (*Engine) Generates() bool { return false }
