// Package timeline keeps and exports the records of package trace: one JSON line per
// request in a file, and in memory the latest ones, the slow and the failed of the last
// minutes, and a fair sample of the rest ([Shelves]). [Recorder.Search] queries them. [Usage] is
// another form of the file: what each request used.
package timeline

import (
	"cmp"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/trace"
)

// Options configure a Recorder; the zero value keeps the latest records in
// memory and writes no file.
type Options struct {
	// File gets one line per request, appended. It is made for its owner's eyes
	// only. Empty writes none.
	File     string
	Rotation Rotation
	// Share is how much of the finished, rejected and cancelled requests' records the file
	// gets, between 0 and 1; 0 means all. It gets all that failed.
	Share float64
	// Form is what the lines are; the zero value is the timeline's.
	Form Form
	// Keep is how many of the latest records stay in memory; 0 means 1024, and a negative
	// number keeps none, for a Recorder that only writes its file.
	Keep int
	// Shelves define which other records stay there.
	Shelves Shelves
	// Queue bounds the records that wait to be written; 0 means 8192. A record
	// that finds it full is dropped and counted.
	Queue int
	// Log receives a line when the file becomes unwritable or writable again. With nil
	// there is no log.
	Log *slog.Logger

	open func(path string, mode os.FileMode) (disk, error) // nil means appendTo
}

// Form is what a Recorder writes of each record.
type Form struct {
	// Name is what the log calls the file.
	Name string
	// Append appends a line without its end. The line begins with the request's id, as lineBegins
	// has it.
	Append func(dst []byte, r *trace.Record, bootID string) []byte
}

// Recorder takes finished records. Its one goroutine encodes and writes them, so that the
// request path pays only for a channel send. A nil Recorder keeps no records.
type Recorder struct {
	queue   chan *trace.Record
	many    chan struct{} // has one if many wait in the queue
	reopen  chan chan error
	closing chan struct{} // closed by Close; nothing is queued after it
	done    chan struct{} // closed at the writer's end
	file    *file         // nil without a file; the writer's
	err     error         // of closing the file; to be read when done is closed
	log     *slog.Logger
	boot    string
	form    Form
	written atomic.Uint64
	dropped atomic.Uint64

	share float64
	keeps bool // records stay in memory

	mu     sync.Mutex
	kept   kept
	closed bool

	followers map[*follower]struct{}
}

// New opens the file and starts the writer.
func New(opts Options) (*Recorder, error) {
	if opts.Keep == 0 {
		opts.Keep = 1024
	}
	if opts.Form.Append == nil {
		opts.Form = Form{Name: "timeline", Append: Append}
	}
	if opts.Queue == 0 {
		opts.Queue = 8192
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.open == nil {
		opts.open = appendTo
	}
	r := &Recorder{
		queue:   make(chan *trace.Record, opts.Queue),
		many:    make(chan struct{}, 1),
		reopen:  make(chan chan error),
		closing: make(chan struct{}),
		done:    make(chan struct{}),
		log:     opts.Log,
		boot:    trace.BootID(),
		form:    opts.Form,
		share:   opts.Share,
		keeps:   opts.Keep > 0,
		kept:    newKept(max(0, opts.Keep), opts.Shelves),

		followers: map[*follower]struct{}{},
	}
	if opts.File == "" {
		close(r.done)
		return r, nil
	}
	r.file = &file{path: opts.File, rotation: opts.Rotation, open: opts.open}
	if err := r.file.reopen(0o600); err != nil {
		return nil, fmt.Errorf("%s: %w", opts.Form.Name, err)
	}
	go r.write()
	return r, nil
}

// Add hands over a finished record, which must not change any more. It never waits.
func (r *Recorder) Add(rec *trace.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.dropped.Add(1)
		return
	}
	if r.keeps {
		r.kept.add(rec)
		r.tell(rec)
	}
	if r.file == nil || r.share > 0 && !fails(rec) && rand.Float64() >= r.share {
		return
	}
	select {
	case r.queue <- rec:
	default:
		r.dropped.Add(1)
	}
	if len(r.queue) == r.several() {
		select {
		case r.many <- struct{}{}:
		default: // the writer is on its way
		}
	}
}

// several is how many records the writer is woken for before its time. To wake it for each one
// costs more than to write it.
func (r *Recorder) several() int { return max(1, min(64, cap(r.queue)/2)) }

// Find returns the kept records of a request id as JSON, a line each, the latest first.
// Several callers may have used the same; weir's own ids are unique. An id on an engine's
// wire finds them, too.
func (r *Recorder) Find(requestID string) (lines []byte, ok bool) {
	now := trace.Now()
	all, _ := r.snapshot(now)
	q := Query{ID: requestID}
	all = slices.DeleteFunc(all, func(h *held) bool { return !q.wants(h, now) })
	slices.SortFunc(all, func(a, b *held) int { return cmp.Compare(b.seq, a.seq) })
	for i, h := range all {
		if i > 0 {
			lines = append(lines, '\n')
		}
		lines = Append(lines, h.rec, r.boot)
	}
	return lines, len(all) > 0
}

// Kept returns how many records are in memory. Passed returns how many were dropped before
// Window was over, because there were too many.
func (r *Recorder) Kept() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.kept.all)
}

// Passed is described at Kept.
func (r *Recorder) Passed() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept.passed
}

// Written counts the records that are in the file, as whole lines.
func (r *Recorder) Written() uint64 { return r.written.Load() }

// Dropped counts the records that the file does not have and will not get.
func (r *Recorder) Dropped() uint64 { return r.dropped.Load() }

// Reopen continues in the file that has the path now, which is a new one after the old one
// was renamed. Records queued before go to the old one, if it can be written. Without a
// file, and for a nil Recorder, it returns false.
func (r *Recorder) Reopen() (bool, error) {
	if r == nil || r.file == nil {
		return false, nil
	}
	result := make(chan error, 1)
	select {
	case r.reopen <- result:
		return true, <-result
	case <-r.done:
		return true, fmt.Errorf("%s: it is closed", r.form.Name)
	}
}

// Close writes the queued records and closes the file. Its error contains the number of
// records that could not be written. Closing a nil Recorder does nothing.
func (r *Recorder) Close() error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		close(r.closing)
	}
	r.mu.Unlock()
	<-r.done
	return r.err
}

const (
	// flushInterval bounds how long a record stays unwritten, so that a file can
	// be followed while the gateway runs.
	flushInterval = 200 * time.Millisecond
	// retryInterval is the time between two tries to write a file that could not
	// be written.
	retryInterval = time.Second
)

func (r *Recorder) write() {
	defer close(r.done)
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	w := writer{Recorder: r}
	for {
		select {
		case <-r.many:
			w.take()
		case <-tick.C:
			w.flush(false)
			w.take()
			w.flush(false)
		case result := <-r.reopen:
			w.drain()
			result <- r.file.reopen(0o600)
			w.flush(true)
		case <-r.closing:
			r.err = w.end()
			return
		}
	}
}

// writer is the goroutine that writes a Recorder's file.
type writer struct {
	*Recorder
	failed  error     // why the file could not be written last; nil: it could
	tried   time.Time // when
	dropped uint64    // records lost before that
	stuck   bool      // the file could not be put aside
}

// take adds what is queued, until the file cannot be written: then the rest waits.
func (w *writer) take() {
	for !w.file.full() {
		select {
		case rec := <-w.queue:
			w.add(rec)
		default:
			return
		}
	}
}

// add takes a record into the lines to write.
func (w *writer) add(rec *trace.Record) {
	w.file.pending = append(w.form.Append(w.file.pending, rec, w.boot), '\n')
	if w.file.full() {
		w.flush(false)
	}
}

// flush writes the lines, unless it is too early to try again. It logs once that the file
// cannot be written, and once that it can be again.
func (w *writer) flush(now bool) {
	if w.failed != nil && !now && time.Since(w.tried) < retryInterval {
		return
	}
	lines, err := w.file.flush()
	w.written.Add(lines)
	w.tried = time.Now()
	if stuck := w.file.stuck; stuck != nil && !w.stuck {
		w.log.Error("the "+w.form.Name+"'s file cannot be put aside, and grows on", "file", w.file.path, "error", stuck)
	}
	w.stuck = w.file.stuck != nil
	switch {
	case err != nil && w.failed == nil:
		w.dropped = w.Dropped()
		w.log.Error(fmt.Sprintf("the %s cannot be written; up to %d records wait until it can be, further ones are dropped", w.form.Name, cap(w.queue)), "file", w.file.path, "error", err)
	case err == nil && w.failed != nil:
		w.log.Warn("the "+w.form.Name+" is written again", "file", w.file.path, "dropped", w.Dropped()-w.dropped)
	}
	w.failed = err
}

// drain writes all that is queued, as far as it can.
func (w *writer) drain() {
	w.flush(true)
	w.take()
	w.flush(true)
}

// end drains the queue and closes the file. What is left is lost.
func (w *writer) end() error {
	w.drain()
	lost := w.file.waiting() + uint64(len(w.queue))
	w.Recorder.dropped.Add(lost)
	err := w.file.disk.Close()
	switch {
	case lost > 0:
		return fmt.Errorf("%s: %d records were not written: %w", w.form.Name, lost, cmp.Or(w.failed, err))
	case err != nil:
		return fmt.Errorf("%s: %w", w.form.Name, err)
	}
	return nil
}
