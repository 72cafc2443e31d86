package health

import (
	"slices"
	"time"
)

// Fleet is the set of ranks that one gateway judges, with the guard that keeps it
// from judging all of them down.
type Fleet struct {
	limits Limits
	ranks  []*Rank
	// now is the latest time of any event, ticked that of the latest tick. seen is how
	// much of the time until then the gateway was there to see: the clock of silences.
	now, ticked, seen int64
	began             int64
	changes           []Change
	probes            []Probe
}

// NewFleet makes one without ranks.
func NewFleet(limits Limits, now int64) *Fleet {
	return &Fleet{limits: limits.orDefaults(), now: now, ticked: now, began: now}
}

// Member is a rank as it joins a fleet.
type Member struct {
	Engine string
	Rank   int // of data parallelism; -1 where the wire names none
	// Serves are its models. The guard leaves each of them a rank.
	Serves []string
	// Generates is set if the probe makes the engine generate. An answer then also
	// shows that the engine does not fail all requests.
	Generates bool
	// Samples is set if the probe generates nothing and the rank can also be sampled:
	// the gateway sends it a request of its own for one token.
	Samples bool
}

// Add adds a rank to the fleet. Its engine counts as absent until Joined.
func (f *Fleet) Add(m Member) *Rank {
	m.Serves = slices.Clone(m.Serves)
	r := &Rank{fleet: f, Member: m, since: f.now, firsts: lane{of: firstOne}}
	f.ranks = append(f.ranks, r)
	return r
}

// Remove ends a rank's part in the fleet. Its unfinished requests may still end.
func (f *Fleet) Remove(r *Rank) {
	f.ranks = slices.DeleteFunc(f.ranks, func(x *Rank) bool { return x == r })
	r.present = false
	f.release(f.seen)
}

// Tick is called every Limits.Tick. late is the time by which the gateway itself was
// late since the previous tick, as measured by a canary, its readers or its pool. A
// late tick, as after the process was stopped, need not be included, because the time
// between two ticks beyond the interval never counts against a rank. Tick returns the
// probes to send now, in a slice that the next call reuses.
func (f *Fleet) Tick(now int64, late time.Duration) []Probe {
	passed := now - f.ticked
	if tick := int64(f.limits.Tick); passed > 2*tick {
		passed = tick
	}
	f.now, f.ticked = max(f.now, now), max(f.ticked, now)
	f.seen += max(passed-int64(late), 0)
	f.probes = f.probes[:0]
	for _, r := range f.ranks {
		if r.present {
			r.tick(f.seen)
		}
	}
	return f.probes
}

// Missed is how much of the time until the latest tick the gateway was not there to see.
// No silence counts it.
func (f *Fleet) Missed() time.Duration { return time.Duration(f.ticked - f.began - f.seen) }

// at returns the time of an event on the clock of silences. Before a late tick is known
// as such it is late by little at most, so that an event is never too early.
func (f *Fleet) at(now int64) int64 {
	f.now = max(f.now, now)
	return f.seen + min(max(now-f.ticked, 0), 2*int64(f.limits.Tick))
}

// Changes returns the transitions since it was called last, in a slice that is the
// caller's.
func (f *Fleet) Changes() []Change {
	changes := f.changes
	f.changes = nil
	return changes
}

// spares reports whether a rank may be judged down.
func (f *Fleet) spares(r *Rank) bool {
	for _, model := range r.Serves {
		total, judged, others := 1, 1, 0
		for _, x := range f.ranks {
			switch {
			case x == r || !x.serves(model) || !x.present || x.state == Draining:
				continue
			case x.state != Down:
				others++
			case !x.ejection.refused:
				judged++
			}
			total++
		}
		if others == 0 || judged > max(1, int(f.limits.Share*float64(total))) {
			return false
		}
	}
	return true
}

// release brings one rank back where judgement has taken out all that might serve a
// model, because another one has left, drains or refuses connections since.
//
// It is called for each rank that drains or leaves. So it looks at the ranks once or twice, and
// not once for each rank's models.
func (f *Fleet) release(at int64) {
	if !slices.ContainsFunc(f.ranks, func(r *Rank) bool { return r.present && r.state == Down }) {
		return
	}
	served := map[string]bool{} // models that some rank might serve
	for _, r := range f.ranks {
		if r.present && r.state != Draining && r.state != Down {
			for _, model := range r.Serves {
				served[model] = true
			}
		}
	}
	last := map[string]*Rank{} // of the models that are served no more: the rank that showed progress last
	for _, r := range f.ranks {
		if !r.present || r.state != Down || r.ejection.refused {
			continue
		}
		for _, model := range r.Serves {
			if was := last[model]; !served[model] && (was == nil || r.tokens.shown > was.tokens.shown) {
				last[model] = r
			}
		}
	}
	if len(last) == 0 {
		return
	}
	for _, r := range f.ranks {
		for _, model := range r.Serves {
			if x := last[model]; x != nil && !served[model] {
				x.suspect(at, "is the last that might serve "+model)
				for _, also := range x.Serves {
					served[also] = true
				}
			}
		}
	}
}
