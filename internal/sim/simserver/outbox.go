package simserver

import (
	"slices"
	"sync"

	"weir/internal/sim"
)

// batch is the results of one or more steps for one client, as columns in the
// order they were generated.
type batch struct {
	slot, id, total  []uint32
	retracted        []uint32 // slots that were sent back to the queue
	first            []first
	done             []done
	kept             []kept
	steps            int
	end              int64 // of the latest step, ns
	running, waiting int
}

type first struct {
	slot uint32
	sim.First
}

// kept is a prefill leg whose KV is kept.
type kept struct {
	slot uint32
	end  int64 // of its step, ns
	sim.Kept
}

type done struct {
	slot   uint32
	end    int64 // of its step, ns
	queued bool  // it was in the queue again
	sim.Done
}

func (b *batch) add(slot, id, total uint32) {
	b.slot = append(b.slot, slot)
	b.id = append(b.id, id)
	b.total = append(b.total, total)
}

// keep cuts the batch to its first n ids. It drops ends, because it is no longer known
// which of them came before.
func (b *batch) keep(n int) {
	b.slot, b.id, b.total = b.slot[:n], b.id[:n], b.total[:n]
	b.first = slices.DeleteFunc(b.first, func(f first) bool { return !slices.Contains(b.slot, f.slot) })
	b.done = b.done[:0]
}

func (b *batch) reset() {
	*b = batch{slot: b.slot[:0], id: b.id[:0], total: b.total[:0], retracted: b.retracted[:0], first: b.first[:0], done: b.done[:0], kept: b.kept[:0]}
}

// outbox carries results from Run to the goroutine that writes them to one client. Run
// never waits: results that the client has not taken are merged, without loss. It holds at
// most limit ids. With one more it bursts, which breaks the client's connection.
type outbox struct {
	building batch // Run's, of the step at hand
	touched  bool  // Run's

	mu      sync.Mutex
	pending batch
	limit   int    // 0 where the client's requests bound it
	burst   func() // called once, by Run; must not wait

	wake chan struct{} // of capacity 1; signalled after each flush
}

// flush makes the step at hand visible to the writer.
func (b *outbox) flush(end int64, running, waiting int) {
	b.touched = false
	b.mu.Lock()
	p, s := &b.pending, &b.building
	if p.steps == 0 {
		// The usual case: the writer kept up, and the buffers change places.
		*p, *s = *s, *p
	} else {
		p.slot = append(p.slot, s.slot...)
		p.id = append(p.id, s.id...)
		p.total = append(p.total, s.total...)
		p.retracted = append(p.retracted, s.retracted...)
		p.first = append(p.first, s.first...)
		p.done = append(p.done, s.done...)
		p.kept = append(p.kept, s.kept...)
	}
	p.steps++
	p.end = end
	p.running, p.waiting = running, waiting
	var burst func()
	if b.limit > 0 && len(p.id) > b.limit {
		burst, b.burst = b.burst, nil
	}
	b.mu.Unlock()
	s.reset()
	if burst != nil {
		burst()
	}
	signal(b.wake)
}

// take moves all pending results to into, whose buffers it reuses. It returns false if
// there are none.
func (b *outbox) take(into *batch) bool {
	into.reset()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending, *into = *into, b.pending
	return into.steps > 0
}
