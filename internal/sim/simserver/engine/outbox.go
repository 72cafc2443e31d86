package engine

import (
	"slices"
	"sync"

	"weir/internal/sim"
)

// Batch is the results of one or more steps for one client, as columns in the
// order they were generated.
type Batch struct {
	Slot, ID, Total  []uint32
	Retracted        []uint32 // slots that were sent back to the queue
	First            []First
	Done             []Done
	Kept             []Kept
	Steps            int
	End              int64 // of the latest step, ns
	Running, Waiting int
}

// First is a request's first result.
type First struct {
	Slot uint32
	sim.First
}

// Kept is a prefill leg whose KV is kept.
type Kept struct {
	Slot uint32
	End  int64 // of its step, ns
	sim.Kept
}

// Done is the end of a request.
type Done struct {
	Slot   uint32
	End    int64 // of its step, ns
	Queued bool  // it was in the queue again
	sim.Done
}

// Add adds an id of a slot, and how many it has with it.
func (b *Batch) Add(slot, id, total uint32) {
	b.Slot = append(b.Slot, slot)
	b.ID = append(b.ID, id)
	b.Total = append(b.Total, total)
}

// Keep cuts the batch to its first n ids. It drops ends, because it is no longer known
// which of them came before.
func (b *Batch) Keep(n int) {
	b.Slot, b.ID, b.Total = b.Slot[:n], b.ID[:n], b.Total[:n]
	b.First = slices.DeleteFunc(b.First, func(f First) bool { return !slices.Contains(b.Slot, f.Slot) })
	b.Done = b.Done[:0]
}

// Reset empties the batch, and keeps its buffers.
func (b *Batch) Reset() {
	*b = Batch{Slot: b.Slot[:0], ID: b.ID[:0], Total: b.Total[:0], Retracted: b.Retracted[:0], First: b.First[:0], Done: b.Done[:0], Kept: b.Kept[:0]}
}

// Outbox carries results from Run to the goroutine that writes them to one client. Run
// never waits: results that the client has not taken are merged, without loss. It holds at
// most limit ids. With one more it bursts, which breaks the client's connection.
type Outbox struct {
	building Batch // Run's, of the step at hand
	touched  bool  // Run's

	mu      sync.Mutex
	pending Batch
	limit   int    // 0 where the client's requests bound it
	burst   func() // called once, by Run; must not wait

	wake chan struct{} // of capacity 1; signalled after each flush
}

// NewOutbox makes an outbox for a client. If there would be more than limit ids in it, burst is called
// once; limit is 0 where the client's requests bound it.
func NewOutbox(limit int, burst func()) Outbox {
	return Outbox{limit: limit, burst: burst, wake: make(chan struct{}, 1)}
}

// Wake is signalled when there are results, or by Signal.
func (b *Outbox) Wake() <-chan struct{} { return b.wake }

// Signal wakes the writer.
func (b *Outbox) Signal() { signal(b.wake) }

// flush makes the step at hand visible to the writer.
func (b *Outbox) flush(end int64, running, waiting int) {
	b.touched = false
	b.mu.Lock()
	p, s := &b.pending, &b.building
	if p.Steps == 0 {
		// The usual case: the writer kept up, and the buffers change places.
		*p, *s = *s, *p
	} else {
		p.Slot = append(p.Slot, s.Slot...)
		p.ID = append(p.ID, s.ID...)
		p.Total = append(p.Total, s.Total...)
		p.Retracted = append(p.Retracted, s.Retracted...)
		p.First = append(p.First, s.First...)
		p.Done = append(p.Done, s.Done...)
		p.Kept = append(p.Kept, s.Kept...)
	}
	p.Steps++
	p.End = end
	p.Running, p.Waiting = running, waiting
	var burst func()
	if b.limit > 0 && len(p.ID) > b.limit {
		burst, b.burst = b.burst, nil
	}
	b.mu.Unlock()
	s.Reset()
	if burst != nil {
		burst()
	}
	signal(b.wake)
}

// Take moves all pending results to into, whose buffers it reuses. It returns false if
// there are none.
func (b *Outbox) Take(into *Batch) bool {
	into.Reset()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending, *into = *into, b.pending
	return into.Steps > 0
}
