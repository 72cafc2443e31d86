package engine

import (
	"sync"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/trace"
)

// op is a submission, when reply is set, the end of a request, or, without a
// job, a call that Run makes.
type op struct {
	at      int64
	job     *Job
	reason  infer.Reason // of an end
	created int64        // of a submission, as the rest
	request sim.Request
	reply   chan error // of capacity 1
	call    func()
}

// inbox holds the servers' requests to Run, in the order of their stamps.
type inbox struct {
	mu     sync.Mutex
	ops    []op
	closed bool
	wake   chan struct{} // of capacity 1
}

// put stamps and queues an op. It is false when Run has ended.
func (b *inbox) put(o op) bool {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return false
	}
	o.at = trace.Now()
	b.ops = append(b.ops, o)
	b.mu.Unlock()
	signal(b.wake)
	return true
}

// take returns all that is queued; spare becomes the next queue.
func (b *inbox) take(spare []op) []op {
	b.mu.Lock()
	defer b.mu.Unlock()
	ops := b.ops
	b.ops = spare[:0]
	return ops
}

// close refuses all queued requests and all later ones.
func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, o := range b.ops {
		if o.reply != nil {
			o.reply <- ErrStopped()
		}
	}
	b.ops = nil
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
