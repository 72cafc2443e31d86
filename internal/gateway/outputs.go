package gateway

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/chat/parse"
	"weir/internal/infer"
	"weir/internal/metrics"
	"weir/internal/trace"
)

// outputs drives the output path of streams that have left net/http.
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
// stack. Streams of relay engines have their turns where their sockets are polled
// (epolls), and here only when something else ends their wait.
type outputs struct {
	shards []*shard
	next   atomic.Uint32
	ended  sync.WaitGroup
}

// shard is a worker and its queue, first come, first served.
type shard struct {
	batch   *Batch
	metrics *metrics.Metrics
	wake    chan struct{} // capacity 1

	mu     sync.Mutex
	queue  []*exchange
	asleep bool
	closed bool
}

// worker is what a goroutine that gives streams their turns has at hand, so that
// the streams need not hold it.
type worker struct {
	metrics *metrics.Metrics
	frame   []byte        // the chunk being written
	out     []byte        // what goes into it
	piece   []byte        // the text at hand
	events  []parse.Event // and what it told
	read    []byte        // what a relay's engine sends
	turns   int           // since it last yielded

	// Not reported to the metrics yet, which all workers share.
	writes, bytes int
}

// Idle is called before a worker waits. It implements epoll.Worker, as Turned
// does.
func (w *worker) Idle() {
	if w.writes > 0 {
		w.metrics.Wrote(w.writes, w.bytes)
		w.writes, w.bytes = 0, 0
	}
}

// yieldTurns is how many turns a worker gives before it lets others have its
// core, about a third of a millisecond: under load it never waits, and what is to
// become a new stream must not wait for all that go on.
const yieldTurns = 32

// Turned is called between turns.
func (w *worker) Turned() {
	if w.turns++; w.turns >= yieldTurns {
		w.turns = 0
		w.Idle()
		runtime.Gosched()
	}
}

// Batch puts off waking the workers while engines' readers queue streams: woken
// by the first of a frame, a worker on another core would contend with the reader
// for all the others. It implements engine.Batch for the adapters of a gateway's
// token engines.
type Batch struct {
	readers atomic.Int32 // between Begin and End
	outputs atomic.Pointer[outputs]
}

// Begin implements engine.Batch.
func (b *Batch) Begin() { b.readers.Add(1) }

// End implements engine.Batch. A stream queued by somebody else meanwhile is
// seen here, or sees that no reader is at it any more: both look under the lock.
func (b *Batch) End() {
	b.readers.Add(-1)
	if o := b.outputs.Load(); o != nil {
		for _, s := range o.shards {
			s.mu.Lock()
			due := s.due()
			s.mu.Unlock()
			if due {
				s.rouse()
			}
		}
	}
}

func newOutputs(workers int, b *Batch, m *metrics.Metrics) *outputs {
	o := &outputs{}
	for range workers {
		s := &shard{batch: b, metrics: m, wake: make(chan struct{}, 1)}
		o.shards = append(o.shards, s)
		o.ended.Go(s.run)
	}
	b.outputs.Store(o)
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
	due := s.batch.readers.Load() == 0 && s.due()
	s.mu.Unlock()
	if due {
		s.rouse()
	}
}

// due says whether the worker sleeps on work, and then counts it as awake: the
// caller, who holds the lock, must rouse it.
func (s *shard) due() bool {
	due := s.asleep && len(s.queue) > 0
	if due {
		s.asleep = false
	}
	return due
}

func (s *shard) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // it will wake anyway
	}
}

func (s *shard) run() {
	var batch []*exchange
	w := worker{metrics: s.metrics}
	for s.take(&batch) {
		for i, x := range batch {
			batch[i] = nil
			x.turn(&w)
			w.Turned()
		}
		w.Idle()
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

// drive hands the stream over to the workers, after a first turn here and now:
// a first token does not queue. It reports whether it could: turns must not
// block, and a flush interval makes them wait.
func (x *exchange) drive() bool {
	if x.g.opts.FlushInterval != 0 {
		return false
	}
	x.shard = x.g.outputs.assign()
	x.state.Store(running)
	if x.relayed {
		if !x.pull.poll() {
			return false
		}
	} else {
		x.mailbox.Notify(x.schedule)
	}
	x.g.streams.Add(1)
	w, _ := x.g.workers.Get().(*worker)
	if w == nil {
		w = &worker{metrics: x.g.opts.Metrics}
	}
	x.turn(w)
	w.Idle()
	x.g.workers.Put(w)
	return true
}

// schedule asks for a turn. It never blocks and may be called by anyone.
func (x *exchange) schedule() {
	if x.claim(queued) {
		x.shard.push(x)
	}
}

// claim moves a parked stream to the state given. Of one that has its turn, or
// waits for it, the news is seen all the same.
func (x *exchange) claim(state int32) bool {
	for {
		switch x.state.Load() {
		case parked:
			if x.state.CompareAndSwap(parked, state) {
				return true
			}
		case running:
			if x.state.CompareAndSwap(running, again) {
				return false
			}
		default:
			return false
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
func (x *exchange) turn(w *worker) {
	x.state.Store(running)
	v, err := x.advance(w)
	if v == ended {
		x.close(err)
	}
	switch v {
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

// advance is a turn's work.
func (x *exchange) advance(w *worker) (v verdict, err error) {
	defer func() {
		if p := recover(); p != nil {
			x.panicked(p)
			x.out, x.piece = nil, nil // they may be the worker's
			v, err = ended, x.err
		}
	}()
	if x.relayed {
		return x.pull.advance(w)
	}
	return x.output(w)
}

// output is a turn of a token engine's stream: the output path as in generate,
// but never waiting. What comes while it writes gives it another turn.
func (x *exchange) output(w *worker) (verdict, error) {
	if len(x.out) > 0 { // a first output, encoded before the stream left net/http
		out := x.out
		x.out, x.piece = nil, nil
		if v, err := x.tryWrite(w, out, x.complete); v != waits {
			return v, err
		}
		x.enter(trace.Engine)
	}
	if x.ctx.Err() != nil {
		return ended, x.gone()
	}
	x.abortIfAsked()
	if !x.merge() {
		if err := x.silence.overdue(); err != nil {
			return ended, err
		}
		return waits, nil
	}
	x.out, x.piece = w.out[:0], w.piece[:0]
	if x.reply != nil {
		x.reply.events = w.events
	}
	err := x.process()
	w.out, w.piece = x.out, x.piece
	if x.reply != nil {
		w.events, x.reply.events = x.reply.events, nil
	}
	out := x.out
	x.out, x.piece = nil, nil
	if err != nil {
		x.out = bytes.Clone(out) // what came before it, for fail
		return ended, err
	}
	v := waits
	if len(out) > 0 {
		v, err = x.tryWrite(w, out, x.complete)
	}
	if v == waits {
		x.enter(trace.Engine)
	}
	return v, err
}

// tryWrite is write without waiting for the client. After the last write the
// stream has ended.
func (x *exchange) tryWrite(w *worker, b []byte, last bool) (verdict, error) {
	if x.extendDeadline(x.enter(trace.Flush)) && x.ctx.Err() != nil {
		return ended, x.gone()
	}
	whole, err := x.client.(*bareClient).tryWrite(w, b, last)
	switch {
	case err != nil:
		return ended, x.writeError(err)
	case !whole:
		x.blockedBytes = len(b)
		return blocked, nil
	}
	w.writes++
	w.bytes += len(b)
	x.noteWrite(len(b))
	if last {
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
			x.enter(trace.Engine)
			x.state.Store(queued)
			x.shard.push(x)
			return
		}
	} else {
		err = x.writeError(err)
	}
	x.close(err)
	x.conclude()
}

// close notes how the request ended. Without an error the whole answer was
// written.
func (x *exchange) close(err error) {
	if err == nil && x.relayed {
		err = x.pull.outcome()
	}
	x.err = infer.AsError(err)
}

// conclude ends a driven stream, off the workers: its connection may linger.
func (x *exchange) conclude() {
	defer x.g.streams.Done()
	if x.mailbox != nil {
		x.mailbox.Notify(nil)
	}
	x.settle(x.err)
	// When thousands hang up at once, the engine's requests end before the records
	// of any are written.
	runtime.Gosched()
	x.finish()
}

// panicked turns a panic into the request's failure.
func (x *exchange) panicked(p any) { x.err = x.panicError(p) }

// panicError logs a panic, and gives what the client is told of it.
func (x *exchange) panicError(p any) *infer.Error {
	x.g.opts.Log.Error("panic while serving a request", "request_id", x.rec.RequestID,
		"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	return infer.Errorf(infer.CodeInternal, "internal error")
}

// breakWrites makes a write that waits for the client fail as soon as the
// request's context ends, for a hang-up or at Cut.
func (x *exchange) breakWrites(c *conn) {
	x.stopBreaking = context.AfterFunc(x.ctx, func() { _ = c.SetWriteDeadline(time.Unix(1, 0)) })
}
