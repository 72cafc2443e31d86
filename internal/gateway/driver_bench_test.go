package gateway

import (
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"weir/internal/gateway/drive"
	"weir/internal/infer"
	"weir/internal/trace"
)

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
	r.server.discards.Store(true)
	var queue []*drive.Stream
	b.ReportAllocs()
	for b.Loop() {
		d.Total++
		d.Received = trace.Now()
		c.sink.Offer(d)
		queue = r.g.driver.Take(0, queue[:0])
		r.x.stream.Turn(r.w)
	}
	r.leave()
}

// BenchmarkTurns is BenchmarkTurn for thousands of streams, which have their tokens one
// after the other in steps of some forty, as over the plane. What a turn looks at is in no
// core's cache any more when its turn comes again, so that it is cache lines that count.
func BenchmarkTurns(b *testing.B) {
	const streams, step = 2048, 41
	r := newRig(b, Options{})
	r.loose = true
	fleet := fleetOf(nil, r.tokens) // one engine, which takes all
	r.fleet = fleet
	all := r.many(streams)
	calls := r.calls()
	steps := newSteps(calls, 997)
	other := make([]byte, 4<<20) // the kernel's part of the sockets
	b.ReportAllocs()
	var queue, taken []*drive.Stream
	for b.Loop() {
		if len(queue) == 0 {
			steps.offer(step)
			taken = r.g.driver.Take(0, taken[:0])
			queue = taken
		}
		s := queue[0]
		queue = queue[1:]
		s.Turn(r.w)
		for i := steps.at % 64 * 1024; i < len(other); i += len(other) / 32 {
			other[i]++
		}
	}
	for _, s := range queue {
		s.Turn(r.w)
	}
	for _, x := range all {
		x.End(nil)
	}
	r.leave()
}

// BenchmarkTurnsTogether is BenchmarkTurns on every core at the same time: each has an
// engine's reader and a worker with streams of their own, so whatever takes longer than on
// one core (-cpu 1,2) is shared by streams that have nothing to do with each other, or is
// the machine's.
func BenchmarkTurnsTogether(b *testing.B) {
	const each, step = 512, 41
	cores := runtime.GOMAXPROCS(0)
	r := newRig(b, Options{})
	r.loose = true
	fleet := fleetOf(nil, r.tokens)
	r.fleet = fleet
	r.queues = cores
	r.g.drive(-cores, drive.NewSockets(1, rigMetrics, nil))
	r.g.driver.Polls = memPolls{}
	all, calls := r.many(each*cores), r.calls()
	var next atomic.Int32
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(p *testing.PB) {
		of, w := int(next.Add(1)-1), r.g.driver.NewWorker()
		var sinks []*call
		for i := range all {
			if (i+1)%cores == of { // streams are given workers in turn
				sinks = append(sinks, calls[i])
			}
		}
		steps := newSteps(sinks, 97)
		var queue, taken []*drive.Stream
		for p.Next() {
			if len(queue) == 0 {
				w.Idle()
				steps.offer(step)
				taken = r.g.driver.Take(of, taken[:0])
				queue = taken
			}
			s := queue[0]
			queue = queue[1:]
			s.Turn(w)
		}
		for _, s := range queue {
			s.Turn(w)
		}
	})
	b.StopTimer()
	for _, x := range all {
		x.End(nil)
	}
	r.leave()
}

// steps offer tokens to streams that have had their first one, a stride from stream to stream.
type steps struct {
	calls      []*call
	deltas     []infer.Delta
	at, stride int
}

func newSteps(calls []*call, stride int) *steps {
	s := &steps{calls: calls, deltas: make([]infer.Delta, len(calls)), stride: stride}
	for i := range s.deltas {
		s.deltas[i] = infer.Delta{Attempt: 1, IDs: words()[:1], Total: 1}
	}
	return s
}

// offer makes a step of n tokens, each for another stream.
func (s *steps) offer(n int) {
	now := trace.Now()
	for range n {
		d := &s.deltas[s.at]
		d.Total++
		d.Received = now
		s.calls[s.at].sink.Offer(d)
		s.at = (s.at + s.stride) % len(s.calls)
	}
}

// many begins streams, each of which has had its first token and waits. The number of a
// stream is that of its call.
func (r *rig) many(streams int) []*exchange {
	var all []*exchange
	var servers []*memConn
	for range streams {
		r.left.Store(false)
		r.ask(chatPath, askStream(``), 1<<20)
		for r.x.try.Mailbox() == nil || len(r.calls()) == len(all) {
			runtime.Gosched()
		}
		all, servers = append(all, r.x), append(servers, r.server)
	}
	for _, c := range r.calls() {
		c.sink.Offer(&infer.Delta{Attempt: 1, IDs: words()[:1], Total: 1})
	}
	time.Sleep(100 * time.Millisecond)
	for i, x := range all {
		for !x.stream.Response.Detached() || !x.Parked() {
			runtime.Gosched()
		}
		servers[i].discards.Store(true)
	}
	return all
}

// calls gives what the engine was handed.
func (r *rig) calls() []*call {
	r.tokens.mu.Lock()
	defer r.tokens.mu.Unlock()
	return slices.Clone(r.tokens.calls)
}

// BenchmarkRelayTurn is the same as BenchmarkTurn for an event of a relay.
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
	r.server.discards.Store(true)
	b.ReportAllocs()
	for b.Loop() {
		f.chunks <- event
		r.x.stream.Turn(r.w)
	}
	r.leave()
}

// awaitTurns waits until the stream has its turns from the test.
func (r *rig) awaitTurns() {
	for range 2 { // the poller's first edge may be under way
		for !r.x.Parked() || !r.left.Load() {
			runtime.Gosched()
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// leave hangs up.
func (r *rig) leave() {
	r.x.End(nil)
	for r.g.recorder.Live() > 0 {
		for of := range r.queues {
			for _, s := range r.g.driver.Take(of, nil) {
				s.Turn(r.w)
			}
		}
		runtime.Gosched()
	}
}
