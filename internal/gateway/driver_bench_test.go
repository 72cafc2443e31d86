package gateway

import (
	"runtime"
	"testing"

	"weir/internal/infer"
	"weir/internal/trace"
)

// discard is a client's socket that takes everything.
type discard struct{}

func (discard) tryWrite(p []byte) (int, error) { return len(p), nil }

// BenchmarkTurn is the whole way of a delta of one token, from the engine's reader to
// the client's socket, but for the system call.
func BenchmarkTurn(b *testing.B) {
	r := newRig(b, Options{})
	r.loose = true
	r.ask(chatPath, askStream(``), 1<<20)
	parkedAt := func() {
		for r.x.state.Load() != parked || !r.left.Load() {
			runtime.Gosched()
		}
	}
	var c *call
	for c == nil {
		runtime.Gosched()
		r.tokens.mu.Lock()
		if len(r.tokens.calls) > 0 {
			c = r.tokens.calls[0]
		}
		r.tokens.mu.Unlock()
	}
	id := words()[:1]
	d := &infer.Delta{Attempt: 1, IDs: id, Total: 1}
	c.sink.Offer(d)
	parkedAt()
	r.x.response.carrier.(*bareCarrier).socket = discard{}
	shard := r.g.outputs.shards[0]
	b.ReportAllocs()
	for b.Loop() {
		d.Total++
		d.Received = trace.Now()
		c.sink.Offer(d)
		shard.queue = shard.queue[:0]
		r.x.turn(r.w)
	}
	r.x.cancel(nil)
	for r.g.live.Load() > 0 {
		for _, x := range shard.queue {
			x.turn(r.w)
		}
		shard.queue = nil
		runtime.Gosched()
	}
}
