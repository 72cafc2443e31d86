package gateway

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// outputs drives the output path of token streams that have left net/http.
//
// Goal: a token costs its write and little else. What must hold: a stream's
// turns never overlap and none is missed; no turn blocks, so that a slow client
// delays nobody; what has not had its turn yet merges in its mailbox.
//
// The obvious way, a goroutine per stream that sleeps on its mailbox, costs
// every token a wake-up, a park and often a system call to wake a thread: 2.8 of
// 12.3 us per token at 2048 streams, where the write is 6.4. Here the engine's
// reader puts the streams of a frame into the queues of a few workers, one per
// core, and wakes each once for all of them; and a stream that waits has no
// stack.
type outputs struct {
	shards []*shard
	next   atomic.Uint32
	ended  sync.WaitGroup
}

// shard is a worker and its queue, first come, first served.
type shard struct {
	wake chan struct{} // capacity 1

	mu     sync.Mutex
	queue  []*exchange
	asleep bool
	closed bool
}

func newOutputs(workers int) *outputs {
	o := &outputs{}
	for range workers {
		s := &shard{wake: make(chan struct{}, 1)}
		o.shards = append(o.shards, s)
		o.ended.Go(s.run)
	}
	return o
}

// assign gives a stream its worker.
func (o *outputs) assign() *shard { return o.shards[int(o.next.Add(1))%len(o.shards)] }

// close ends the workers once their queues are empty, and waits for them.
func (o *outputs) close() {
	for _, s := range o.shards {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		s.rouse()
	}
	o.ended.Wait()
}

func (s *shard) push(x *exchange) {
	s.mu.Lock()
	s.queue = append(s.queue, x)
	asleep := s.asleep
	s.asleep = false
	s.mu.Unlock()
	if asleep {
		s.rouse()
	}
}

func (s *shard) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // it will wake anyway
	}
}

func (s *shard) run() {
	var batch []*exchange
	for s.take(&batch) {
		for i, x := range batch {
			batch[i] = nil
			x.turn()
		}
	}
}

// take waits for streams and swaps them into the batch; false when the shard
// was closed and is empty.
func (s *shard) take(batch *[]*exchange) bool {
	for {
		s.mu.Lock()
		if len(s.queue) > 0 {
			*batch, s.queue = s.queue, (*batch)[:0]
			s.mu.Unlock()
			return true
		}
		if s.closed {
			s.mu.Unlock()
			return false
		}
		s.asleep = true
		s.mu.Unlock()
		<-s.wake
	}
}

// The states of a driven stream. Whoever moves it from parked to queued puts it
// into its queue; what happens while it runs is seen by its turn's end.
const (
	parked int32 = iota
	queued
	running
	again
)

// drivable says whether the stream's turns can be driven: they must not block,
// and a flush interval makes them wait.
func (x *exchange) drivable() bool { return !x.relayed && x.g.opts.FlushInterval == 0 }

// drive hands the stream over to the workers, after a first turn here and now:
// a first token does not queue.
func (x *exchange) drive() {
	x.g.streams.Add(1)
	x.shard = x.g.outputs.assign()
	x.state.Store(running)
	x.mailbox.Notify(x.schedule)
	x.turn()
}

// schedule asks for a turn. It never blocks and may be called by anyone.
func (x *exchange) schedule() {
	for {
		switch x.state.Load() {
		case parked:
			if x.state.CompareAndSwap(parked, queued) {
				x.shard.push(x)
				return
			}
		case running:
			if x.state.CompareAndSwap(running, again) {
				return
			}
		default:
			return
		}
	}
}

// verdict is how a turn left the stream.
type verdict uint8

const (
	waits   verdict = iota // for output
	blocked                // the client's socket is full
	ended                  // with x.err
)

// turn writes what is pending and parks the stream.
func (x *exchange) turn() {
	x.state.Store(running)
	switch x.advance() {
	case waits:
		if !x.state.CompareAndSwap(running, parked) {
			x.state.Store(queued)
			x.shard.push(x)
		}
	case blocked:
		go x.unblock()
	case ended:
		go x.conclude()
	}
}

// advance is a turn's work: the output path as in generate, but never waiting.
func (x *exchange) advance() (v verdict) {
	defer func() {
		if p := recover(); p != nil {
			x.panicked(p)
			v = ended
		}
	}()
	for {
		if v, err := x.tryFlush(); err != nil || v != waits {
			x.err = infer.AsError(err)
			return v
		}
		if x.ctx.Err() != nil {
			x.err = infer.AsError(x.gone())
			return ended
		}
		x.enter(trace.Engine)
		if !x.merge() {
			if x.expired.Swap(false) {
				if err := x.checkIdle(); err != nil {
					x.err = infer.AsError(err)
					return ended
				}
			}
			return waits
		}
		if err := x.process(); err != nil {
			x.err = infer.AsError(err)
			return ended
		}
	}
}

// tryFlush is flush without waiting for the client.
func (x *exchange) tryFlush() (verdict, error) {
	if len(x.out) == 0 {
		return waits, nil
	}
	x.enter(trace.Flush)
	if err := x.armWrite(); err != nil {
		return ended, err
	}
	n := len(x.out)
	whole, err := x.client.(*bareClient).tryWrite(x.out, x.complete)
	x.out = x.out[:0]
	switch {
	case err != nil:
		return ended, x.writeError(err)
	case !whole:
		x.blockedBytes = n
		return blocked, nil
	}
	x.wrote(n)
	if x.complete {
		return ended, nil
	}
	return waits, nil
}

// unblock waits for a slow client to take what is left of a write, bounded by
// the write deadline, and then gives the stream its turns back.
func (x *exchange) unblock() {
	err := x.client.(*bareClient).writeRest()
	if err == nil {
		x.wrote(x.blockedBytes)
		if !x.complete {
			x.state.Store(queued)
			x.shard.push(x)
			return
		}
	}
	if err != nil {
		x.err = infer.AsError(x.writeError(err))
	}
	x.conclude()
}

// conclude ends a driven stream, off the workers: its connection may linger.
func (x *exchange) conclude() {
	defer x.g.streams.Done()
	x.mailbox.Notify(nil)
	x.settle(x.err)
	x.finish()
}

// panicked turns a panic into the request's failure.
func (x *exchange) panicked(p any) {
	x.err = infer.Errorf(infer.CodeInternal, "internal error")
	x.g.opts.Log.Error("panic while serving a request", "request_id", x.rec.RequestID,
		"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}

// breakWrites makes a write that waits for the client fail as soon as the
// request's context ends, for a hang-up or at Cut.
func (x *exchange) breakWrites(c *conn) {
	x.stopBreaking = context.AfterFunc(x.ctx, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
}
