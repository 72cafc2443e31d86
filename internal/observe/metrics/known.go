package metrics

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/infer"
	"weir/internal/trace"
)

// known is a map that each request looks into without a lock. Adding to it copies it, which
// happens once for each model, engine or endpoint.
type known[V any] struct {
	mu sync.Mutex
	is atomic.Pointer[map[string]V]
}

// get returns what is known by a name.
func (k *known[V]) get(name string) (v V, ok bool) {
	v, ok = k.all()[name]
	return v, ok
}

// add returns what is known by a name, which is v unless something was added before.
func (k *known[V]) add(name string, v V) V {
	k.mu.Lock()
	defer k.mu.Unlock()
	if was, ok := k.get(name); ok {
		return was
	}
	more := map[string]V{name: v}
	maps.Copy(more, k.all())
	k.is.Store(&more)
	return v
}

// all returns everything that is known; it must not be changed.
func (k *known[V]) all() map[string]V {
	if is := k.is.Load(); is != nil {
		return *is
	}
	return nil
}

func (k *known[V]) size() int { return len(k.all()) }

// forget drops a name.
func (k *known[V]) forget(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	less := maps.Clone(k.all())
	delete(less, name)
	k.is.Store(&less)
}

// lazy is a series that exists from its first value on, and is looked up by its labels once.
type lazy[T any] struct {
	once sync.Once
	make func() T
	is   T
}

func (l *lazy[T]) get() T {
	l.once.Do(func() { l.is = l.make() })
	return l.is
}

// lazyCounter returns the counter with these labels, and lazyLatency the histogram.
func lazyCounter(of *prometheus.CounterVec, labels ...string) lazy[prometheus.Counter] {
	return lazy[prometheus.Counter]{make: func() prometheus.Counter { return of.WithLabelValues(labels...) }}
}

func lazyLatency(of *latencies, labels ...string) lazy[*latency] {
	return lazy[*latency]{make: func() *latency { return of.with(labels...) }}
}

// modelSeries are the series of a model that requests add to.
type modelSeries struct {
	label          string
	prompt, tokens lazy[prometheus.Counter]
	ttft           lazy[*latency]
	phases         [trace.NumPhases]lazy[*latency]
	total          [infer.NumOutcomes]lazy[*latency]
	choice         *modelChoices
	gaps           lazy[*Distribution]
}

// model returns the series of a model.
func (m *Metrics) model(name string) *modelSeries {
	if s, ok := m.byModel.get(name); ok {
		return s
	}
	label, own := m.models.of(name)
	if !own {
		if s, ok := m.otherModels.get(label); ok {
			return s
		}
	}
	s := &modelSeries{label: label, prompt: lazyCounter(m.prompt, label), tokens: lazyCounter(m.tokens, label), ttft: lazyLatency(m.ttft, label),
		choice: m.choices.of(label), gaps: lazy[*Distribution]{make: func() *Distribution { return m.receiving.gapsOf(label) }}}
	for o := range s.total {
		s.total[o] = lazyLatency(m.total, label, infer.Outcome(o).String())
	}
	for i := range s.phases {
		s.phases[i] = lazyLatency(m.phases, label, trace.PhaseNames[i])
	}
	if !own {
		return m.otherModels.add(label, s)
	}
	return m.byModel.add(name, s)
}

// engineSeries are the series of an engine that requests add to.
type engineSeries struct {
	acks [trace.NumAckParts]lazy[*latency]
	hop  lazy[*latency]
	// Relayed streams that ended whole, with their ids verified and not.
	verified, not atomic.Int64
	ids           lazy[prometheus.Counter]
}

// engine returns the series of an engine, until it is forgotten.
func (m *Metrics) engine(name string) *engineSeries {
	if s, ok := m.byEngine.get(name); ok {
		return s
	}
	s := &engineSeries{ids: lazyCounter(m.relayed, name, "ids"), hop: lazyLatency(m.hops, name)}
	for i := range s.acks {
		s.acks[i] = lazyLatency(m.acks, name, trace.AckParts[i])
	}
	return m.byEngine.add(name, s)
}
