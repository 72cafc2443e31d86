package vllmcore

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/tinylib/msgp/msgp"

	"weir/internal/engine"
)

// lora is an adapter in the form of a request to the engine.
type lora struct {
	name, path string
	// id is what the engine keeps it under. It is made of name and path: a weir that
	// has restarted with other adapters must not find one's weights under another's.
	id int32
}

// loraList returns the adapters by name.
func loraList(paths map[string]string) []lora {
	var list []lora
	for _, name := range slices.Sorted(maps.Keys(paths)) {
		l := lora{name: name, path: paths[name], id: loraID(name, paths[name])}
		for slices.ContainsFunc(list, func(o lora) bool { return o.id == l.id }) {
			l.id = l.id%maxLoRA + 1
		}
		list = append(list, l)
	}
	return list
}

// maxLoRA is the greatest id; the least is 1.
const maxLoRA = 1<<31 - 1

func loraID(name, path string) int32 {
	h := fnv.New64a()
	h.Write([]byte(name))
	h.Write([]byte{0})
	h.Write([]byte(path))
	return int32(h.Sum64()%maxLoRA) + 1
}

// append appends the adapter as a LoRARequest, of which the first three fields have
// been the same in every version; the others have defaults.
func (l *lora) append(b []byte) []byte {
	b = msgp.AppendArrayHeader(b, 3)
	b = msgp.AppendString(b, l.name)
	b = msgp.AppendInt32(b, l.id)
	return msgp.AppendString(b, l.path)
}

// appendLoad appends the payload of the call that has the engine load the adapter. A
// request with an adapter that it has not loaded would have it do so in the middle of
// a step, where a failure is the engine's end. Loaded again, nothing happens.
func (l *lora) appendLoad(b []byte, call int64) []byte {
	b = appendCall(b, call, "add_lora", 1)
	return l.append(b)
}

// loading is how far an engine is with the adapters.
type loading struct {
	first int64 // the call of the first; those of the others follow it
	// of are the results in the adapters' order; nil: not yet.
	of []atomic.Pointer[loadResult]
}

// loadResult states why an adapter was not loaded; empty: it was.
type loadResult struct{ fault string }

// newLoading begins it. Answers to an earlier process's calls may still come; they
// must not be taken for ours, nor for those of fences.
func newLoading(n int) loading {
	return loading{first: 1<<56 + rand.Int64N(1<<48), of: make([]atomic.Pointer[loadResult], n)}
}

// asked reports whether a call is one of loadAdapters.
func (l *loading) asked(call int64) bool { return call >= l.first && call-l.first < int64(len(l.of)) }

// usable reports whether the engine has loaded an adapter.
func (l *loading) usable(i int) bool {
	r := l.of[i].Load()
	return r != nil && r.fault == ""
}

// loadAdapters asks the engine to load the adapters, before anything else.
func (s *session) loadAdapters() {
	for i := range s.e.lora {
		if !s.ready.lora {
			s.keepLoaded(i, "the engine was started without --enable-lora")
			continue
		}
		s.Out.Post(typeUtility, s.e.lora[i].appendLoad(nil, s.loras.first+int64(i)))
	}
}

// adapterLoaded takes in the answer to a call, if it is one of loadAdapters.
func (s *session) adapterLoaded(d *batch) bool {
	if !s.loras.asked(d.call) {
		return false
	}
	fault := strings.TrimPrefix(string(d.failure), "Call to add_lora method failed: ")
	if d.refused {
		fault = "the engine did not load it and does not say why"
	}
	s.keepLoaded(int(d.call-s.loras.first), fault)
	return true
}

// keepLoaded keeps what became of an adapter.
func (s *session) keepLoaded(i int, fault string) {
	s.loras.of[i].Store(&loadResult{fault})
	if fault != "" {
		s.opts.Warn(fmt.Sprintf("engine %s, rank %d: LoRA adapter %s is not served: %s", s.opts.Name, s.rank, s.e.lora[i].name, fault))
	}
	s.e.host.Signal()
}

// loraFacts returns the adapters that an engine which is up has loaded, and those that
// none has.
func (e *Engine) loraFacts() []engine.LoRA {
	var facts []engine.LoRA
	for i, l := range e.lora {
		fault, usable := "", false
		for _, r := range e.ranks {
			s := r.current.Load()
			if s == nil || !s.Up() {
				continue
			}
			usable = usable || s.loras.usable(i)
			if result := s.loras.of[i].Load(); result != nil {
				fault = cmp.Or(fault, result.fault)
			}
		}
		if usable {
			facts = append(facts, engine.LoRA{Name: l.name})
		} else if fault != "" {
			facts = append(facts, engine.LoRA{Name: l.name, Fault: fault})
		}
	}
	return facts
}

// loraOf returns the index of the adapter that a model's name is of; -1: of none.
func (e *Engine) loraOf(model string) int {
	return slices.IndexFunc(e.lora, func(l lora) bool { return l.name == model })
}
