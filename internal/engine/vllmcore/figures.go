package vllmcore

import (
	"math"

	"weir/internal/engine"
	"weir/internal/engine/fenced"
)

// Figures gives the counters of all ranks together, as they stand.
func (e *Engine) Figures() fenced.Figures {
	f := e.meters.Figures()
	for _, r := range e.ranks {
		if s := r.current.Load(); s != nil && s.Up() {
			f.Ready++
			f.Live += s.Table.Live()
			f.Running += int(s.load.running.Load())
			f.Waiting += int(s.load.waiting.Load())
		}
	}
	return f
}

// Load implements engine.Loaded: what the ranks last said, together; of the KV
// cache, the fullest. Their word rides on outputs, so that of a rank with nothing in
// flight is void, and means idle.
func (e *Engine) Load() (l engine.Load, ok bool) {
	for _, r := range e.ranks {
		s := r.current.Load()
		if s == nil || !s.Up() {
			continue
		}
		ok = true
		if s.Table.Live() == 0 {
			continue
		}
		l.Running += int(s.load.running.Load())
		l.Waiting += int(s.load.waiting.Load())
		l.KVUsage = max(l.KVUsage, math.Float64frombits(s.load.kvUsage.Load()))
	}
	return l, ok
}
