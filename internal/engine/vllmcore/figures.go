package vllmcore

import (
	"math"
	"sync/atomic"
	"time"

	"weir/internal/engine"
)

// Figures are an engine's counters and gauges, of all its ranks together.
type Figures struct {
	Sessions  uint64            // sessions opened
	Lost      [NumLosses]uint64 // sessions ended, by why
	Messages  uint64            // received
	IDs       uint64            // token ids in them
	Dispatch  time.Duration     // time spent decoding messages and handing them to streams
	Submitted uint64            // requests handed over
	Accepted  uint64            // and confirmed
	Aborts    uint64            // aborts sent
	Fences    uint64            // calls answered
	FenceLast time.Duration     // how long the last one took
	Late      uint64            // outputs of requests that nobody waits for
	Broken    uint64            // requests ended because their output does not add up
	Ready     int               // ranks that can be given requests
	Live      int               // requests that have not ended
	Running   int               // in the engines' batches, as they last said
	Waiting   int               // in their queues
}

type meters struct {
	sessions, messages, ids, submitted, accepted, aborts, fences, late, broken atomic.Uint64

	dispatch, fenceLast atomic.Int64
	lost                [NumLosses]atomic.Uint64
}

func (m *meters) message(d *batch) {
	m.messages.Add(1)
	m.ids.Add(uint64(len(d.ids)))
}

// Figures gives the counters as they stand. They are read one by one, so that two
// of them may be a message apart.
func (e *Engine) Figures() Figures {
	m := &e.meters
	f := Figures{
		Sessions: m.sessions.Load(), Messages: m.messages.Load(), IDs: m.ids.Load(),
		Dispatch:  time.Duration(m.dispatch.Load()),
		Submitted: m.submitted.Load(), Accepted: m.accepted.Load(), Aborts: m.aborts.Load(),
		Fences: m.fences.Load(), FenceLast: time.Duration(m.fenceLast.Load()),
		Late: m.late.Load(), Broken: m.broken.Load(),
	}
	for i := range m.lost {
		f.Lost[i] = m.lost[i].Load()
	}
	for _, r := range e.ranks {
		if s := r.current.Load(); s != nil && s.up() {
			f.Ready++
			f.Live += s.table.live()
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
		if s == nil || !s.up() {
			continue
		}
		ok = true
		if s.table.live() == 0 {
			continue
		}
		l.Running += int(s.load.running.Load())
		l.Waiting += int(s.load.waiting.Load())
		l.KVUsage = max(l.KVUsage, math.Float64frombits(s.load.kvUsage.Load()))
	}
	return l, ok
}
