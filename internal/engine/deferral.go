package engine

import (
	"sync"
	"time"
)

// Released tells the generation of a decode half that its prefill half has ended without
// handing over: nobody writes into its KV pages any more, so its abort need not wait. It
// does nothing to other generations.
func Released(g Generation) {
	if d, ok := g.(interface{ Released() }); ok {
		d.Released()
	}
}

// maxDeferral bounds how long an abort is held back.
const maxDeferral = 30 * time.Second

// Deferral holds back the abort of a decode half until the engine may be told: SGLang's
// gives the pages of an aborted request to others, while the prefill engine may still
// write into them. A first id shows that all was written. Its zero value is ready for use, a
// nil one holds nothing back, and both are safe for concurrent use.
type Deferral struct {
	mu    sync.Mutex
	abort func()      // tells the engine
	asked *time.Timer // what bounds the wait; nil: no abort was asked for
	free  bool        // nobody writes into the pages
	over  bool        // the engine was told, or has ended the request
	done  chan struct{}
}

// Abort asks for the abort, by which the engine is told: at once or later, by a call that may
// come from any goroutine. Of several only the first asks.
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

// Released says that nobody writes into the pages any more.
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

// End says that the engine has ended the request.
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

// Held gives what is closed when an abort is not held back any more; nil where none is.
func (d *Deferral) Held() <-chan struct{} {
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
