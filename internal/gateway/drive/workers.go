package drive

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/observe/busy"
	"weir/internal/observe/metrics"
	"weir/internal/trace"
)

// outputs are the workers that drive streams which have left net/http.
//
// A token should cost its write and little else. A stream's turns must never overlap,
// and none may be missed. No turn blocks, so a slow client delays no other stream.
// Output that waits for a turn merges in its mailbox.
//
// With the obvious way, a goroutine per stream that sleeps on its mailbox, each token
// costs a wake-up, a park and often a system call to wake a thread: 2.8 of 12.3 us per
// token at 2048 streams, where the write takes 6.4. Here the engine's reader puts the
// streams of a frame into the queues of a few workers, one per core, and wakes each
// worker once for all of them. A stream that waits has no stack. Streams of relay
// engines have their turns where their sockets are polled (sockets), and here only when
// another event ends their wait.
type outputs struct {
	shards []*shard
	next   atomic.Uint32
	ended  sync.WaitGroup
}

// shard is a worker and its queue, first come, first served. What each token changes is
// here and not in what all streams share: only the engine's reader and this worker pass it
// to and fro.
type shard struct {
	pending atomic.Int64 // mailboxes of its streams with output pending

	of   *Driver
	wake chan struct{} // capacity 1

	mu     sync.Mutex
	queue  []*Stream
	asleep bool
	closed bool

	turns sync.Mutex // held by the worker, or whoever assists it, while turns are given

	_ [64]byte // so that another shard's are not in the same cache line
}

// Worker is what a goroutine that gives streams their turns has at hand, so that
// the streams need not hold it.
type Worker struct {
	metrics *metrics.Metrics
	meter   *busy.Meter
	mark    busy.Mark // of the turns since it last waited
	encodes bool      // it is set
	reads   reads     // where its turns are given because engines' sockets have something
	hand    Hand
	frame   []byte // the chunk being written

	writes, bytes int // not reported yet to the metrics
}

// reads are the turns of relayed engines' streams in one of their poller's goroutines.
// Those between two waits are a batch.
type reads struct {
	of      *metrics.Receive // nil: the goroutine is none of the poller's
	streams int              // of the batch
	began   int64            // when it began
	batches metrics.Batches
}

// begin is called before a turn.
func (r *reads) begin() {
	if r.of == nil {
		return
	}
	if r.streams++; r.streams == 1 {
		r.began = trace.Now()
	}
}

// end is called before the goroutine waits.
func (r *reads) end() {
	if r.streams == 0 {
		return
	}
	r.batches.Count(r.of, r.streams, r.began, trace.Now())
	r.streams = 0
}

// keepFrame is what an idle worker's frame may hold, in bytes.
const keepFrame = 64 << 10

// trim releases the buffers of the previous turn if they are large, and all references.
func (w *Worker) trim() {
	w.hand.Trim()
	w.frame = infer.Reuse(w.frame, keepFrame)
}

// Idle is called before a worker waits or yields. It implements epoll.Worker.
func (w *Worker) Idle() {
	if w.writes > 0 {
		w.metrics.Wrote(w.writes, w.bytes)
		w.writes, w.bytes = 0, 0
	}
	w.hand.Tell()
	w.reads.end()
	if w.encodes {
		w.encodes = false
		w.meter.End(w.mark, w.meter.Now())
	}
}

// begin is called before a turn.
func (w *Worker) begin() {
	w.reads.begin()
	if !w.encodes {
		w.encodes, w.mark = true, w.meter.Begin(busy.Encode, nil, w.meter.Now())
	}
}

// yieldTurns is the number of turns after which a worker yields its core, about a third
// of a millisecond. Under load a worker never waits, and new requests must not wait for
// all existing streams. It takes no more out of its queue: while it has yielded, others can give
// the turns that are left.
const yieldTurns = 32

// Batch delays waking the workers while engines' readers queue streams. A worker on
// another core that the first stream of a frame woke would contend with the reader
// for all the others. It implements engine.Batch for the adapters of a gateway's
// token engines.
type Batch struct {
	readers atomic.Int32 // between Begin and End
	driver  atomic.Pointer[Driver]
}

// Reader implements engine.Batch.
func (b *Batch) Reader(kind string) engine.Reader { return &reader{batch: b, kind: kind} }

// reader is one of an engine's output. It implements engine.Reader.
type reader struct {
	batch *Batch
	kind  string
	of    *metrics.Receive // nil until it has seen the gateway's driver
	mark  busy.Mark

	received int64 // when the batch at hand was read
	batches  metrics.Batches
}

// Begin implements engine.Reader.
func (r *reader) Begin(received int64) {
	r.batch.readers.Add(1)
	r.received = received
	if d := r.batch.driver.Load(); d != nil {
		r.mark = d.meter.Begin(busy.Dispatch, nil, d.meter.Now())
	}
}

// End implements engine.Reader. A stream queued by somebody else meanwhile is
// seen here, or sees that no reader is at it any more: both look under the lock.
func (r *reader) End(streams int) {
	r.batch.readers.Add(-1)
	if d := r.batch.driver.Load(); d != nil {
		now := trace.Now()
		d.meter.End(r.mark, now)
		if streams > 0 {
			r.count(d, streams, now)
		}
		for _, s := range d.outputs.shards {
			s.mu.Lock()
			due := s.due()
			s.mu.Unlock()
			if due {
				s.rouse()
			}
		}
	}
}

// count counts a batch. What came in one read was waited for once.
func (r *reader) count(d *Driver, streams int, now int64) {
	if r.of == nil {
		r.of = d.metrics.Receive(r.kind)
	}
	r.batches.Count(r.of, streams, max(r.received, r.batches.Ended), now)
}

// start makes so many workers; of a negative number only their queues.
func (o *outputs) start(d *Driver, workers int) {
	for range max(workers, -workers) {
		s := &shard{of: d, wake: make(chan struct{}, 1)}
		if o.shards = append(o.shards, s); workers > 0 {
			o.ended.Go(s.run)
		}
	}
}

// assign gives a stream its worker.
func (o *outputs) assign() *shard { return o.shards[int(o.next.Add(1))%len(o.shards)] }

// pending is how many mailboxes have output that was not taken.
func (o *outputs) pending() int64 {
	n := int64(0)
	for _, s := range o.shards {
		n += s.pending.Load()
	}
	return n
}

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

func (s *shard) push(x *Stream) {
	s.mu.Lock()
	s.queue = append(s.queue, x)
	due := s.of.opts.Batch.readers.Load() == 0 && s.due()
	s.mu.Unlock()
	if due {
		s.rouse()
	}
}

// due reports whether the worker sleeps on work, and then counts it as awake: the
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
	w := Worker{metrics: s.of.metrics, meter: s.of.meter}
	for s.await() {
		s.turns.Lock()
		more := s.give(&w)
		s.turns.Unlock()
		if more {
			runtime.Gosched()
		}
	}
}

// await waits for streams; false when the shard was closed and is empty.
func (s *shard) await() bool {
	for {
		s.mu.Lock()
		switch {
		case len(s.queue) > 0:
			s.mu.Unlock()
			return true
		case s.closed:
			s.mu.Unlock()
			return false
		}
		s.asleep = true
		s.mu.Unlock()
		<-s.wake
	}
}

// give gives up to yieldTurns streams their turns, and reports whether there are more. The caller
// holds turns.
func (s *shard) give(w *Worker) (more bool) {
	var batch [yieldTurns]*Stream
	s.mu.Lock()
	n := copy(batch[:], s.queue)
	s.queue = slices.Delete(s.queue, 0, n)
	more = len(s.queue) > 0
	s.mu.Unlock()
	for _, x := range batch[:n] {
		x.Turn(w)
	}
	w.Idle()
	return more
}

// behind reports whether the worker is awake and has more to give.
func (s *shard) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.asleep && len(s.queue) > 0
}

// assist gives turns of a shard whose worker has some to give and does not run, because Go's
// scheduler has put it behind other goroutines. Those call assist before they begin other work.
// However many shards there are, it looks at a few.
func (o *outputs) assist(w *Worker) {
	first := rand.IntN(len(o.shards))
	for i := range min(len(o.shards), 4) {
		s := o.shards[(first+i)%len(o.shards)]
		if s.behind() && s.turns.TryLock() {
			s.give(w)
			s.turns.Unlock()
			return
		}
	}
}

// worker gives a worker to a goroutine that is none, for one step.
func (d *Driver) worker() *Worker {
	if w, _ := d.workers.Get().(*Worker); w != nil {
		return w
	}
	return &Worker{metrics: d.metrics, meter: d.meter}
}
