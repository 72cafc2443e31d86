package engine

import (
	"context"
	"slices"

	"weir/internal/sim"
	"weir/internal/trace"
)

// Rank is the state of one DP rank of the engine.
type Rank struct {
	Rank                int
	Running, Waiting    int
	Queued              int // of waiting, those in the queue
	Awaiting, Reserved  int // of waiting, legs whose partner is not met, and decode legs that have pages
	Kept                int // prefill legs whose KV is kept
	Retracted           int // of queued, those that ran before
	WaitingTokens       int // of prompts that wait
	Used, Cached, Total int // tokens of the KV cache: held by requests, kept for others, and all; total is 0 without a bound
	Throughput          float64
	HitRate             float64
	Prefilled           uint64
	PrefillBusy         uint64 // us
}

// Usage is the share of the KV cache that requests hold; 0 where it has no
// bound.
func (l *Rank) Usage() float64 {
	if l.Total == 0 {
		return 0
	}
	return float64(l.Used) / float64(l.Total)
}

// Ranks returns each rank's state. Values that the engine measures for all its ranks
// together are divided evenly.
func (e *Engine) Ranks() []Rank {
	e.stateMu.Lock()
	n, loads, again := e.counts, slices.Clone(e.loads), slices.Clone(e.waiting)
	e.stateMu.Unlock()
	m := &e.meter
	m.mu.Lock()
	defer m.mu.Unlock()
	if e.idle.Load() {
		for i := range loads {
			l := &loads[i]
			l.Running, l.Transferring, l.Waiting, l.Awaiting, l.Kept, again[i] = 0, 0, 0, 0, 0, 0
		}
	}
	ranks := uint64(len(loads))
	list := make([]Rank, len(loads))
	for i, l := range loads {
		list[i] = Rank{
			Rank: i, Running: l.Running, Waiting: l.Waiting + l.Awaiting + l.Transferring, Retracted: again[i],
			Queued: l.Waiting, Awaiting: l.Awaiting, Reserved: l.Transferring, Kept: l.Kept,
			WaitingTokens: l.QueuedTokens, Used: l.KVUsed, Cached: l.KVIdle, Total: l.KVTotal,
			Throughput: m.rate(trace.Now()) / float64(ranks), Prefilled: n.Prefilled / ranks, PrefillBusy: uint64(m.prefillBusy.Microseconds()),
		}
		if all := n.Prefilled + n.Cached; all > 0 {
			list[i].HitRate = float64(n.Cached) / float64(all)
		}
	}
	return list
}

// Totals returns the core's counts.
func (e *Engine) Totals() sim.Counts {
	e.stateMu.Lock()
	defer e.stateMu.Unlock()
	return e.counts
}

// FlushCache empties the prefix cache. It is false where requests are running
// or waiting.
func (e *Engine) FlushCache(ctx context.Context) (ok bool, err error) {
	err = e.do(ctx, func() {
		ok = e.core.FlushCache()
		e.publish()
		e.tellKV()
	})
	return ok, err
}
