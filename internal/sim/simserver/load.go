package simserver

import (
	"context"

	"weir/internal/sim"
)

// rankState is what one DP rank of the engine holds and does.
type rankState struct {
	rank             int
	running, waiting int
	retracted        int // of waiting, those that ran before
	waitingTokens    int // of prompts that wait
	used, active     int // tokens of the KV cache: in use, and of those generating
	throughput       float64
	hitRate          float64
	prefilled        uint64
	prefillBusy      uint64 // us
}

// usage is the share of a KV cache of so many tokens that is in use; 0 where it
// has no bound.
func (l *rankState) usage(total int) float64 {
	if total == 0 {
		return 0
	}
	return float64(l.used) / float64(total)
}

// loadOfRanks gives each rank's state.
func (e *Engine) loadOfRanks() []rankState {
	e.stateMu.Lock()
	n := e.counts
	e.stateMu.Unlock()
	m := &e.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	l := rankState{running: n.Running, waiting: n.Waiting, throughput: m.throughput, prefilled: n.Prefilled, prefillBusy: uint64(m.prefillBusy.Microseconds())}
	if all := n.Prefilled + m.cached; all > 0 {
		l.hitRate = float64(m.cached) / float64(all)
	}
	return []rankState{l}
}

// totals gives the core's counts.
func (e *Engine) totals() sim.Counts {
	e.stateMu.Lock()
	defer e.stateMu.Unlock()
	return e.counts
}

// flushCache empties the prefix cache. It is false where requests are running
// or waiting.
func (e *Engine) flushCache(ctx context.Context) (ok bool, err error) {
	err = e.do(ctx, func() { n := e.core.Counts(); ok = n.Running+n.Waiting == 0 })
	return ok, err
}
