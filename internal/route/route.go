// Package route chooses the engine for a request. It is pure: it reads an
// immutable snapshot of the fleet, published by package fleet, and never locks,
// waits or talks to anyone.
package route

import (
	"slices"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/infer"
)

// Engine is one engine as the data side sees it. Exactly one of Tokens and
// Relay is set; neither while it is not known what the engine is.
type Engine struct {
	Name   string
	Kind   string // as in --engine KIND=URL; of an auto engine what it turned out to be
	Tokens engine.Tokens
	Relay  engine.Relay
	// Load tells how busy the engine is; nil where its wire does not.
	Load func() (engine.Load, bool)
	// Metrics are the adapter's own; nil where it has none.
	Metrics func() []engine.Metric
	Ready   bool
	Facts   engine.Facts
	Err     error // why it is not ready
	// Note is what the operator should know although nothing is wrong.
	Note string
}

// Carries is what a request for the engine may need. A relayed engine is given
// everything but what is known to be lost there.
func (e *Engine) Carries() infer.Carries {
	if e.Relay != nil {
		return infer.CarriesAll.Without(e.Facts.Lacks)
	}
	return e.Facts.Carries
}

// Target is an engine together with the name it knows the model by.
type Target struct {
	*Engine
	Model string
}

// Model is the set of engines that serve one model name. All are of one kind.
type Model struct {
	Name string
	// Base is the model whose folder it has, where that is another: of a LoRA
	// adapter's.
	Base    string
	Targets []Target // ready ones only
	Policy  Policy
	// Kind is that of its engines, empty while none is known. Relayed says that
	// they take the caller's own bytes.
	Kind    string
	Relayed bool
	// Carries is what some engine of the model carries beyond what every wire does, by
	// the latest word of those that are not ready. It is everything where nothing can be
	// said: while none is ready, or of one that never was.
	Carries infer.Carries
	// Awaited says that some engine of the model is not ready.
	Awaited bool
	// ContextLength is the smallest that any engine states, 0 when none does.
	ContextLength int
	// Fault says why the model cannot be served, whatever the engines' state.
	Fault string
}

// Snapshot is the fleet at one moment. It is never changed after publication;
// Changed is closed when a newer one replaced it, which wakes every waiter.
type Snapshot struct {
	Models  map[string]*Model
	Engines []*Engine
	Changed <-chan struct{}
}

// Names lists the models in alphabetical order.
func (s *Snapshot) Names() []string {
	names := make([]string, 0, len(s.Models))
	for name := range s.Models {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Policy picks one of a model's targets. targets is never empty. A policy is
// called concurrently and serializes nothing.
type Policy interface {
	Pick(targets []Target) Target
}

// RoundRobin takes the targets in turn.
type RoundRobin struct{ next atomic.Uint64 }

// Pick implements Policy.
func (p *RoundRobin) Pick(targets []Target) Target {
	return targets[(p.next.Add(1)-1)%uint64(len(targets))]
}

// Has says whether there is a ready target that carries what a request needs and is
// not among the tried ones. Unlike Pick it is no turn of the policy.
func (m *Model) Has(needs infer.Carries, tried []*Engine) bool {
	return slices.ContainsFunc(m.Targets, func(t Target) bool { return t.fits(needs, tried) })
}

// Pick chooses a ready target that carries what a request needs and is not among the
// tried ones. When all were tried there is none: what failed a moment ago is not
// asked again.
func (m *Model) Pick(needs infer.Carries, tried []*Engine) (Target, bool) {
	targets := m.Targets
	for i := range m.Targets {
		if m.Targets[i].fits(needs, tried) {
			continue
		}
		targets = slices.Clone(m.Targets[:i])
		for _, t := range m.Targets[i+1:] {
			if t.fits(needs, tried) {
				targets = append(targets, t)
			}
		}
		break
	}
	if len(targets) == 0 {
		return Target{}, false
	}
	return m.Policy.Pick(targets), true
}

// fits says whether a target can be given a request that was tried elsewhere.
func (t *Target) fits(needs infer.Carries, tried []*Engine) bool {
	return needs&^t.Carries() == 0 && !contains(tried, t.Name)
}

// Alone says whether some engine carries all that a request needs by itself, where
// each of it is carried by some (Carries). Of engines that are not ready nothing is
// said, so that one is waited for.
func (m *Model) Alone(needs infer.Carries) bool {
	return m.Awaited || len(m.Targets) == 0 || slices.ContainsFunc(m.Targets, func(t Target) bool { return needs&^t.Carries() == 0 })
}

// Why gives the reasons for which engines do not carry something, each once.
func (m *Model) Why(lacks infer.Carries) (reasons []string) {
	for _, t := range m.Targets {
		for _, l := range t.Facts.Lacks {
			if l.What&lacks != 0 && !slices.Contains(reasons, l.Why) {
				reasons = append(reasons, l.Why)
			}
		}
	}
	return reasons
}

func contains(engines []*Engine, name string) bool {
	return slices.ContainsFunc(engines, func(e *Engine) bool { return e.Name == name })
}
