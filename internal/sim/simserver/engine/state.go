package engine

import (
	"math/bits"
	"time"

	"weir/internal/sim"
	"weir/internal/workload/latency"
)

// State is the state that the engine reports. Received = finished + aborted + rejected +
// running + waiting + kept.
type State struct {
	Name     string `json:"name"`
	Model    string `json:"model"`
	Instance string `json:"instance"`

	Running int `json:"running"`
	Waiting int `json:"waiting"`
	Kept    int `json:"kept"` // prefill legs that have their ids, and whose KV is kept
	// Owed are decode legs that were aborted before their KV had come; their pages are kept
	// until it has.
	Owed int `json:"owed"`
	// Overwritten are decode legs that were aborted likewise, and whose pages others had by
	// then.
	Overwritten uint64 `json:"overwritten"`
	// Tokens of the KV cache, in whole pages: those that requests hold, and those that are
	// kept for legs whose KV is still to be written.
	KVUsed int `json:"kv_used_tokens"`
	KVOwed int `json:"kv_owed_tokens"`

	Received uint64 `json:"received"`
	Finished uint64 `json:"finished"`
	Aborted  uint64 `json:"aborted"`
	Rejected uint64 `json:"rejected"`

	PromptTokens    uint64 `json:"prompt_tokens"`    // computed
	CachedTokens    uint64 `json:"cached_tokens"`    // found in the KV cache
	EvictedTokens   uint64 `json:"evicted_tokens"`   // of the KV cache
	GeneratedTokens uint64 `json:"generated_tokens"` // by the core
	Steps           uint64 `json:"steps"`
	Retracted       uint64 `json:"retracted"` // times that a request was sent back to the queue
	Sessions        int    `json:"sessions"`  // of the plane

	// Lateness of the steps' results against their deadlines, and schedule time given up,
	// in milliseconds. Percentiles are upper bounds within a factor of two.
	LateP50  float64 `json:"late_p50_ms"`
	LateP99  float64 `json:"late_p99_ms"`
	LateMax  float64 `json:"late_max_ms"`
	LostTime float64 `json:"lost_ms"`

	Faults []sim.Struck `json:"faults"`
}

// State reads the engine's state.
func (e *Engine) State() State {
	e.stateMu.Lock()
	n, late, used, owed := e.counts, e.lateNow, 0, 0
	for i := range e.loads {
		used += e.loads[i].KVUsed - e.loads[i].KVOwed
		owed += e.loads[i].KVOwed
	}
	e.stateMu.Unlock()
	refused := e.refused.Load()
	e.faultsMu.Lock()
	faults := e.faults.Report()
	e.faultsMu.Unlock()
	return State{
		Name: e.o.Name, Model: e.o.Model, Instance: *e.instance.Load(),
		Running: n.Running, Waiting: n.Waiting, Kept: n.Kept, Owed: n.Owed, Overwritten: n.Overwritten, KVUsed: used, KVOwed: owed,
		Received: n.Received + refused, Finished: n.Finished, Aborted: n.Aborted, Rejected: n.Rejected + refused,
		PromptTokens: n.Prefilled, CachedTokens: n.Cached, EvictedTokens: n.Evicted, GeneratedTokens: n.Generated, Steps: n.Steps, Retracted: n.Retracted,
		Sessions: int(e.sessions.Load()),
		LateP50:  ms(late.quantile(0.50)), LateP99: ms(late.quantile(0.99)), LateMax: ms(late.max), LostTime: ms(n.Lost),
		Faults: faults,
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// publish makes Run's counts visible to State.
func (e *Engine) publish() {
	e.stateMu.Lock()
	e.counts, e.lateNow = e.core.Counts(), e.late
	e.loads = e.core.Loads(e.loads[:0])
	e.waiting = append(e.waiting[:0], e.again...)
	e.stateMu.Unlock()
}

// SetFaults replaces the engine's faults; ordinals count anew.
func (e *Engine) SetFaults(list []sim.Fault) error {
	f, err := sim.NewFaults(list)
	if err != nil {
		return err
	}
	e.faultsMu.Lock()
	defer e.faultsMu.Unlock()
	e.faults = f
	signal(e.inbox.wake)
	return nil
}

// lateness is a histogram by powers of two of a microsecond.
type lateness struct {
	bucket [32]uint64
	n      uint64
	max    time.Duration
}

func (l *lateness) add(d time.Duration) {
	l.bucket[min(bits.Len64(uint64(d.Microseconds())), len(l.bucket)-1)]++
	l.n++
	l.max = max(l.max, d)
}

// quantile returns the upper bound of the bucket that holds the quantile.
func (l *lateness) quantile(q float64) time.Duration {
	i, ok := latency.Bucket(l.bucket[:], q)
	if !ok {
		return 0
	}
	return min(time.Duration(1<<i)*time.Microsecond, l.max)
}
