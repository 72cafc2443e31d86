// Package timeline keeps and exports the records of package trace: one JSON
// line per request in a file, and the latest ones in memory to be asked for by
// id.
package timeline

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/trace"
)

// Options configure a Recorder; the zero value keeps the latest records in
// memory and writes no file.
type Options struct {
	// File gets one line per request, appended. Empty writes none.
	File string
	// Keep is the number of records kept in memory; 0 means 1024.
	Keep int
	// Queue bounds the records that wait to be written; 0 means 8192. A record
	// that finds it full is dropped and counted.
	Queue int
}

// Recorder takes finished records. Its one goroutine encodes and writes them,
// so that the request path pays for a channel send only.
type Recorder struct {
	queue   chan *trace.Record
	done    chan struct{}
	out     io.WriteCloser // nil without a file
	boot    string
	written atomic.Uint64
	dropped atomic.Uint64
	failed  atomic.Pointer[error]

	mu     sync.Mutex
	ring   []*trace.Record
	next   int
	byID   map[string]*trace.Record
	closed bool

	followers map[*follower]struct{}
}

// New opens the file and starts the writer.
func New(opts Options) (*Recorder, error) {
	if opts.Keep == 0 {
		opts.Keep = 1024
	}
	if opts.Queue == 0 {
		opts.Queue = 8192
	}
	r := &Recorder{
		queue: make(chan *trace.Record, opts.Queue),
		done:  make(chan struct{}),
		boot:  trace.BootID(),
		ring:  make([]*trace.Record, opts.Keep),
		byID:  make(map[string]*trace.Record, opts.Keep),

		followers: map[*follower]struct{}{},
	}
	if opts.File != "" {
		f, err := os.OpenFile(opts.File, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, fmt.Errorf("timeline: %w", err)
		}
		r.out = f
	}
	go r.write()
	return r, nil
}

// Add hands over a finished record, which must not be changed any more. It
// never waits.
func (r *Recorder) Add(rec *trace.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.dropped.Add(1)
		return
	}
	if old := r.ring[r.next]; old != nil && r.byID[old.RequestID] == old {
		delete(r.byID, old.RequestID)
	}
	r.ring[r.next] = rec
	r.next = (r.next + 1) % len(r.ring)
	r.byID[rec.RequestID] = rec
	r.tell(rec)
	if r.out == nil {
		return
	}
	select {
	case r.queue <- rec:
	default:
		r.dropped.Add(1)
	}
}

// Find gives the latest kept record of a request id as JSON.
func (r *Recorder) Find(requestID string) ([]byte, bool) {
	r.mu.Lock()
	rec := r.byID[requestID]
	r.mu.Unlock()
	if rec == nil {
		return nil, false
	}
	return Append(nil, rec, r.boot), true
}

// Written and Dropped count the records written to the file and those that
// could not be.
func (r *Recorder) Written() uint64 { return r.written.Load() }

// Dropped counts the records that the file does not have.
func (r *Recorder) Dropped() uint64 { return r.dropped.Load() }

// Err gives the first error in writing the file, if any.
func (r *Recorder) Err() error {
	if p := r.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// Close writes what is queued and closes the file.
func (r *Recorder) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	close(r.queue)
	r.mu.Unlock()
	<-r.done
	return r.Err()
}

// flushInterval bounds how long a record stays unwritten, so that a file can
// be followed while the gateway runs.
const flushInterval = 200 * time.Millisecond

func (r *Recorder) write() {
	defer close(r.done)
	if r.out == nil {
		for range r.queue {
		}
		return
	}
	w := bufio.NewWriterSize(r.out, 64<<10)
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	var line []byte
	for {
		select {
		case rec, ok := <-r.queue:
			if !ok {
				r.check(w.Flush())
				r.check(r.out.Close())
				return
			}
			line = append(Append(line[:0], rec, r.boot), '\n')
			if _, err := w.Write(line); err != nil {
				r.check(err)
				r.dropped.Add(1)
			} else {
				r.written.Add(1)
			}
		case <-tick.C:
			r.check(w.Flush())
		}
	}
}

func (r *Recorder) check(err error) {
	if err != nil && r.failed.Load() == nil {
		err = fmt.Errorf("timeline: %w", err)
		r.failed.CompareAndSwap(nil, &err)
	}
}
