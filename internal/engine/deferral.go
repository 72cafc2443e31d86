package engine

import (
	"sync"
	"time"
)

// Released notifies the generation of a decode half that its prefill half has ended
// without a hand-over. Its KV pages are no longer written, so its abort need not wait.
// It has no effect on other generations.
func Released(g Generation) {
	if d, ok := g.(interface{ Released() }); ok {
		d.Released()
	}
}

// maxDeferral bounds the time for which an abort is delayed.
const maxDeferral = 30 * time.Second

// Deferral delays the abort of a decode half until it is safe: SGLang gives the pages of an
// aborted request to other requests while the prefill engine may still write to them. The
// first id shows that all pages were written. The zero value is ready for use, a nil
// Deferral delays nothing, and both are safe for concurrent use.
type Deferral struct {
	mu    sync.Mutex
	abort func()      // tells the engine
	asked *time.Timer // what bounds the wait; nil: no abort was asked for
	free  bool        // nobody writes into the pages
	over  bool        // the engine was told, or has ended the request
	done  chan struct{}
}

// Abort requests the abort. It is called at once or later, from any goroutine. Only the first
// call of Abort has an effect.
func (d *Deferral) Abort(abort func()) {
	if d == nil {
		abort()
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.over || d.asked != nil:
	case d.free:
		d.ends()
		abort()
	default:
		d.abort = abort
		d.asked = time.AfterFunc(maxDeferral, d.Released)
	}
}

// Released reports that the pages are no longer written.
func (d *Deferral) Released() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.free = true; d.asked != nil && !d.over {
		d.asked.Stop()
		d.ends()
		d.abort()
	}
}

// End reports that the engine has ended the request.
func (d *Deferral) End() {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ends(); d.asked != nil {
		d.asked.Stop()
	}
}

// ends notes that it is over. The lock is held.
func (d *Deferral) ends() {
	if d.over = true; d.done != nil {
		close(d.done)
		d.done = nil
	}
}

// Outlast waits until an abort is not held back any more. The end of over ends the hold.
func (d *Deferral) Outlast(over <-chan struct{}) {
	held := d.Held()
	if held == nil {
		return
	}
	select {
	case <-held:
	case <-over:
		d.Released()
	}
}

// Held returns what is closed when an abort is not held back any more; nil where none
// is.
func (d *Deferral) Held() <-chan struct{} {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over || d.asked == nil {
		return nil
	}
	if d.done == nil {
		d.done = make(chan struct{})
	}
	return d.done
}
