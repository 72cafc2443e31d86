package fleetsim

import (
	"fmt"
	"slices"
	"time"

	"weir/internal/fleet/cost"
	"weir/internal/infer"
	"weir/internal/sim"
)

// Engine is one of the fleet's. Engines differ in role, in speed, in KV and in their honesty
// only.
type Engine struct {
	// Role is its part in requests.
	Role infer.Role
	// Slow is by how much its steps take longer; 0 is 1.
	Slow float64
	// KVTokens is the size of its cache; 0 is that of Options.Engine.
	KVTokens int
	// Absent reports whether it joins later, by an event.
	Absent bool
	// Claims returns how many cached tokens of a prompt the engine reports; nil reports the
	// true number.
	Claims func(cached, prompt int) int
}

// EventKind is what happens to an engine.
type EventKind string

// The kinds.
const (
	// Fail ends the engine with all that is in it.
	Fail EventKind = "fail"
	// Join has it begin, with an empty cache.
	Join EventKind = "join"
	// Slow makes its steps take By times as long from now on; 1 is as in the beginning.
	Slow EventKind = "slow"
	// Evict empties its cache without a report.
	Evict EventKind = "evict"
)

// Event happens to an engine at a time.
type Event struct {
	At     time.Duration
	Engine int
	Kind   EventKind
	By     float64
}

// paced is a cost model that an event slows down.
type paced struct {
	sim.CostModel
	by float64
}

// StepTime implements sim.CostModel.
func (p *paced) StepTime(b sim.Batch) time.Duration {
	return time.Duration(float64(p.CostModel.StepTime(b)) * p.by)
}

// engine is a simulated engine at work.
type engine struct {
	o     sim.Options
	role  infer.Role
	core  *sim.Core
	pace  *paced
	slow  float64
	lies  func(cached, prompt int) int
	truth cost.Coefficients // at a pace of 1
	up    bool
	life  int    // how often it has begun
	live  []*leg // by sim.Ref; nil: nobody wants it any more
	// unstarted are the legs whose prompt is being computed and that have no first token,
	// in order of arrival.
	unstarted []*leg
	coming    int // of those whose prompt another one computes, the ones without a first token
	decoding  int

	busy     []int64 // ns, by slice
	finished int
	given    int
}

func newEngine(o sim.Options, e Engine) (*engine, error) {
	if e.KVTokens > 0 {
		o.KVTokens = e.KVTokens
	}
	if e.Slow == 0 {
		e.Slow = 1
	}
	if o.DPSize > 1 {
		return nil, fmt.Errorf("an engine of %d data-parallel ranks; name each as an engine", o.DPSize)
	}
	if o.Cost == nil {
		o.Cost = sim.PerBatch{}
	}
	g := &engine{role: e.Role, slow: e.Slow, lies: e.Claims, truth: Truth(o.Cost), pace: &paced{o.Cost, e.Slow}}
	o.Cost = g.pace
	g.o = o
	if !e.Absent {
		return g, g.start()
	}
	o, err := o.WithDefaults()
	g.o = o
	return g, err
}

func (e *engine) start() (err error) {
	if e.core, err = sim.New(e.o); err != nil {
		return err
	}
	e.o = *e.core.Options()
	e.up, e.live, e.unstarted, e.coming, e.decoding = true, nil, nil, 0, 0
	e.life++
	return nil
}

// Truth returns a cost model's coefficients in the terms of package cost, by evaluating the
// cost of single steps.
func Truth(m sim.CostModel) cost.Coefficients {
	ms := func(b sim.Batch) float64 { return m.StepTime(b).Seconds() * 1e3 }
	const n, more, k = 4096, 1 << 30, 64
	none := ms(sim.Batch{Prefill: 1, Chunks: 1})
	one := ms(sim.Batch{Decode: 1, Context: 1})
	c := cost.Coefficients{
		Token:   (ms(sim.Batch{Prefill: n, Chunks: 1}) - none) / (n - 1),
		Pair:    2 * (ms(sim.Batch{Prefill: 1, Chunks: 1, Attended: more}) - none) / more,
		Decoder: (ms(sim.Batch{Decode: k, Context: k}) - one) / (k - 1),
	}
	c.Step = none - c.Token
	// In a step that prefills, decoding may add less than a separate step would take.
	mixed := ms(sim.Batch{Prefill: 1, Chunks: 1, Decode: 1, Context: 1})
	c.Decode = one - c.Decoder
	if twice := none + one - mixed; twice > 0 {
		c.Step -= twice
	}
	return c
}

// now are the true coefficients at the engine's present pace.
func (e *engine) now() cost.Coefficients {
	c := e.truth
	for _, x := range []*float64{&c.Step, &c.Token, &c.Pair, &c.Decode, &c.Decoder} {
		*x *= e.pace.by
	}
	return c
}

// left returns how many milliseconds the engine would need for its requests if it always
// had as many of them as it can decode at once.
func (e *engine) left() (ms float64) {
	if !e.up {
		return 0
	}
	c := e.now()
	each := c.Decoder + c.Decode/float64(e.o.MaxRunning)
	for _, l := range e.live {
		if l == nil {
			continue
		}
		if r := l.of; l.kind != sim.LegPrefill {
			ms += each * float64(r.turns[r.Turn].Output-r.generated)
		}
		if l.kind == sim.LegDecode || l.begun {
			continue
		}
		left, admitted := e.core.Left(l.ref)
		if !admitted {
			left = l.fresh
		}
		n := float64(left)
		ms += c.Step*n/float64(e.o.StepTokens) + c.Token*n + c.Pair*n*(float64(l.of.Input)-n/2)
	}
	return ms
}

// submit returns the engine a request, or its half of one.
func (e *engine) submit(now int64, l *leg, r sim.Request) error {
	ref, err := e.core.Submit(now, now, r)
	if err != nil {
		return err
	}
	for len(e.live) <= int(ref) {
		e.live = append(e.live, nil)
	}
	e.live[ref] = l
	e.given++
	l.ref, l.there = ref, true
	if l.kind == sim.LegDecode {
		e.coming++
	} else {
		e.unstarted = append(e.unstarted, l)
	}
	return nil
}

// begins takes what has its first token from those without.
func (e *engine) begins(l *leg) {
	l.begun = true
	if l.kind == sim.LegDecode {
		e.coming--
	} else if i := slices.Index(e.unstarted, l); i >= 0 {
		e.unstarted = slices.Delete(e.unstarted, i, i+1)
	}
	if l.kind != sim.LegPrefill {
		e.decoding++
	}
}

// abort ends a leg that is no longer wanted. Later output of the engine for it is ignored.
func (e *engine) abort(now int64, l *leg) {
	if !e.up || !l.there || l.life != e.life || e.live[l.ref] != l {
		return
	}
	e.core.Abort(now, l.ref)
	e.live[l.ref] = nil
	if !l.begun {
		e.begins(l)
	}
	if l.kind != sim.LegPrefill {
		e.decoding--
	}
}

// A load is taken over a window, of many slices.
const (
	slice  = int64(time.Second)
	window = 60 * slice
)

// worked books a step.
func (e *engine) worked(from, to int64) {
	for from < to {
		i := int(from / slice)
		for len(e.busy) <= i {
			e.busy = append(e.busy, 0)
		}
		end := min(to, int64(i+1)*slice)
		e.busy[i] += end - from
		from = end
	}
}
