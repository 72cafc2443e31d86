package vllmcore

import (
	"math"

	"weir/internal/engine"
	"weir/internal/engine/coreclient"
)

// Figures returns the counters of all ranks together, as they stand.
func (e *Engine) Figures() coreclient.Figures {
	f := e.meters.Figures()
	for _, r := range e.ranks {
		if s := r.current.Load(); s != nil && s.Up() {
			f.Ready++
			f.Live += s.Table.Live()
		}
	}
	return f
}

// Load implements engine.Loaded. It is the sum of the ranks' latest reports, with the
// share of the fullest KV cache. Ranks report with their outputs, so the report of a
// rank without requests is outdated and counts as idle.
func (e *Engine) Load() (l engine.Load, ok bool) {
	for i, r := range e.ranks {
		s := r.current.Load()
		if s == nil || !s.Up() {
			continue
		}
		ok = true
		of := engine.RankLoad{Rank: i}
		if s.Table.Live() > 0 {
			of.Running, of.Waiting, of.KVUsage = int(s.load.running.Load()), int(s.load.waiting.Load()), math.Float64frombits(s.load.kvUsage.Load())
		}
		l.Running, l.Waiting, l.KVUsage = l.Running+of.Running, l.Waiting+of.Waiting, max(l.KVUsage, of.KVUsage)
		if len(e.ranks) > 1 {
			l.Ranks = append(l.Ranks, of)
		}
	}
	return l, ok
}
