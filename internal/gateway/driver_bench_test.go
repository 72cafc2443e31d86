package gateway

import (
	"runtime"
	"testing"
	"time"

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
	r.awaitTurns()
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
	r.leave()
}

// BenchmarkRelayTurn is the same for an event of a relay.
func BenchmarkRelayTurn(b *testing.B) {
	r := newRig(b, Options{})
	r.loose = true
	r.ask(chatPath, relayBody, 1<<20)
	var f *forward
	for f == nil {
		runtime.Gosched()
		r.relay.mu.Lock()
		if len(r.relay.forwards) > 0 {
			f = r.relay.forwards[0]
		}
		r.relay.mu.Unlock()
	}
	event := []byte(relayToken)
	f.chunks <- event
	r.awaitTurns()
	r.x.response.carrier.(*bareCarrier).socket = discard{}
	b.ReportAllocs()
	for b.Loop() {
		f.chunks <- event
		r.x.turn(r.w)
	}
	r.leave()
}

// awaitTurns waits until the stream has its turns from the test.
func (r *rig) awaitTurns() {
	for range 2 { // the poller's first edge may be under way
		for r.x.state.Load() != parked || !r.left.Load() {
			runtime.Gosched()
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// leave hangs up.
func (r *rig) leave() {
	r.x.cancel(nil)
	shard := r.g.outputs.shards[0]
	for r.g.live.Load() > 0 {
		shard.mu.Lock()
		queue := shard.queue
		shard.queue = nil
		shard.mu.Unlock()
		for _, x := range queue {
			x.turn(r.w)
		}
		runtime.Gosched()
	}
}
