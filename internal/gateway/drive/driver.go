// Package drive moves streams on: it takes output from a leg, passes it through the answer, and
// hands the result to the carrier of the response, until one of them has nothing more.
//
// There is one step (step.go), which never waits, and two ways to wait between steps: a goroutine
// that blocks (follow.go), and none at all, for streams that workers give a turn when there is
// something to do (turn.go, workers.go, sockets.go). A Leg (leg.go) is the engine's side. What the
// driver does not know of a request it asks its Owner.
package drive

import (
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/gateway/answer"
	"weir/internal/gateway/front"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/observe/busy"
	"weir/internal/observe/metrics"
	"weir/internal/observe/watch"
)

// Options configure how output comes to clients.
type Options struct {
	// Batch is the engine.Batch of the adapters of token engines, or nil if they have
	// none.
	Batch *Batch
	// FlushInterval is the shortest time between two writes of a stream; 0 writes
	// output as it comes. A first token is never delayed.
	FlushInterval time.Duration
}

// Defaults replaces the zero values that mean another one.
func (o *Options) Defaults() {
	if o.Batch == nil {
		o.Batch = new(Batch)
	}
}

// Driver has what the streams of a gateway share. It owns the workers, and the goroutines of
// streams that have left net/http.
type Driver struct {
	Polls Poller // of engines' sockets

	opts     *Options
	write    time.Duration // bounds one write to a client that does not read
	metrics  *metrics.Metrics
	watch    *watch.Watch
	meter    *busy.Meter // nil: what is done is not measured
	recorder *record.Recorder
	front    *front.Front

	outputs outputs
	none    shard        // of streams that have no worker
	sockets Sockets      // engines' and clients'
	polled  atomic.Int64 // engines' sockets that are
	workers sync.Pool    // of *Worker, for goroutines that are none
	streams sync.WaitGroup
	ending  atomic.Int64 // of them, in goroutines that end them
	blocked atomic.Int64 // streams whose clients do not read
}

// New makes a driver with so many workers. If their number is negative, turns are given by who calls
// Take. write bounds one write to a client. The watch and the meter may be nil.
func New(o *Options, workers int, write time.Duration, f *front.Front, sockets Sockets, r *record.Recorder, m *metrics.Metrics, w *watch.Watch, meter *busy.Meter) *Driver {
	d := &Driver{opts: o, write: write, front: f, sockets: sockets, Polls: sockets, recorder: r, metrics: m, watch: w, meter: meter}
	d.none.of = d
	d.outputs.start(d, workers)
	o.Batch.driver.Store(d)
	return d
}

// Pending returns how many streams have output that was not taken yet.
func (d *Driver) Pending() int64 { return d.outputs.pending() }

// Blocked returns how many streams have clients that do not read.
func (d *Driver) Blocked() int64 { return d.blocked.Load() }

// Polled returns how many engines' sockets are polled.
func (d *Driver) Polled() int64 { return d.polled.Load() }

// Assist gives streams their turns that have waited for one, or whose engines' sockets have
// something, before work on a request that begins or ends.
func (d *Driver) Assist() {
	w := d.worker()
	d.outputs.assist(w)
	if d.polled.Load() > 0 {
		d.sockets.Assist(w)
	}
	d.workers.Put(w)
}

// manyEnding is how many streams end at once when each lets the others release first.
const manyEnding = 16

// Crowded reports whether many streams are ending at once.
func (d *Driver) Crowded() bool { return d.ending.Load() >= manyEnding }

// Wait waits for the streams that have left net/http.
func (d *Driver) Wait() { d.streams.Wait() }

// Done is called at the end of each.
func (d *Driver) Done() { d.streams.Done() }

// Close ends the workers and the polling of sockets.
func (d *Driver) Close() {
	d.outputs.close()
	d.sockets.Close()
}

// Owner is whose stream it is. Its methods are called by the goroutine that the stream belongs to.
type Owner interface {
	// Begins has the first part of an attempt's answer begin the response, or go on with it, and
	// returns what is sent of it. An error is why it does not.
	Begins(part answer.Part) (out []byte, err error)
	// Over ends a stream that has left net/http, unless another engine continues it.
	Over()
	// Finish ends it in any case.
	Finish()
}

// Stream is a request from its beginning to its end, as far as output is concerned. It belongs to
// the one goroutine that serves the request, or has its turn.
type Stream struct {
	// Fields that each turn of a stream uses are together, because with thousands of
	// streams each of their cache lines is a miss.
	shard     *shard
	state     atomic.Int32
	Ending    bool // the answer has had its last part, and Err is how it ended
	Told      bool // and that part has told the client
	Answering bool // a part of the answer has come from the attempt
	owner     Owner
	Record    record.Request
	Ctx       lifetime.Context // ends when the client hangs up, or at a shutdown
	gathers   *gathering       // nil: there is no flush interval, or nothing was written yet
	Leg       Leg              // nil before an engine is asked, and once its attempt is settled
	Answer    answer.Answer    // of the latest attempt
	Response  front.Response
	Err       *infer.Error // how the request ended
}

// Open opens the stream of a request.
func (d *Driver) Open(s *Stream, o Owner) { s.shard, s.owner = &d.none, o }

// Waiting counts streams whose mailboxes have output that was not taken. Those of one worker share it.
func (s *Stream) Waiting() *atomic.Int64 {
	s.assign()
	return &s.shard.pending
}

// assign gives the stream a worker, if it has none.
func (s *Stream) assign() {
	if d := s.shard.of; s.shard == &d.none {
		s.shard = d.outputs.assign()
	}
}
