package simserver

import (
	"context"
	"slices"

	"weir/internal/sim"
	"weir/internal/trace"
)

// rankState is the state of one DP rank of the engine.
type rankState struct {
	rank                int
	running, waiting    int
	queued              int // of waiting, those in the queue
	awaiting, reserved  int // of waiting, legs whose partner is not met, and decode legs that have pages
	kept                int // prefill legs whose KV is kept
	retracted           int // of queued, those that ran before
	waitingTokens       int // of prompts that wait
	used, cached, total int // tokens of the KV cache: held by requests, kept for others, and all; total is 0 without a bound
	throughput          float64
	hitRate             float64
	prefilled           uint64
	prefillBusy         uint64 // us
}

// usage is the share of the KV cache that requests hold; 0 where it has no
// bound.
func (l *rankState) usage() float64 {
	if l.total == 0 {
		return 0
	}
	return float64(l.used) / float64(l.total)
}

// loadOfRanks returns each rank's state. Values that the engine measures for all its ranks
// together are divided evenly.
func (e *Engine) loadOfRanks() []rankState {
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
	list := make([]rankState, len(loads))
	for i, l := range loads {
		list[i] = rankState{
			rank: i, running: l.Running, waiting: l.Waiting + l.Awaiting + l.Transferring, retracted: again[i],
			queued: l.Waiting, awaiting: l.Awaiting, reserved: l.Transferring, kept: l.Kept,
			waitingTokens: l.QueuedTokens, used: l.KVUsed, cached: l.KVIdle, total: l.KVTotal,
			throughput: m.rate(trace.Now()) / float64(ranks), prefilled: n.Prefilled / ranks, prefillBusy: uint64(m.prefillBusy.Microseconds()),
		}
		if all := n.Prefilled + n.Cached; all > 0 {
			list[i].hitRate = float64(n.Cached) / float64(all)
		}
	}
	return list
}

// totals returns the core's counts.
func (e *Engine) totals() sim.Counts {
	e.stateMu.Lock()
	defer e.stateMu.Unlock()
	return e.counts
}

// flushCache empties the prefix cache. It is false where requests are running
// or waiting.
func (e *Engine) flushCache(ctx context.Context) (ok bool, err error) {
	err = e.do(ctx, func() {
		ok = e.core.FlushCache()
		e.publish()
		e.tellKV()
	})
	return ok, err
}
