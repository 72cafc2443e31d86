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
// write into them. A first id shows that all was written. It is safe for concurrent use.
type Deferral struct {
	abort func() // tells the engine; called once at most

	mu    sync.Mutex
	asked *time.Timer // what bounds the wait; nil: no abort was asked for
	free  bool        // nobody writes into the pages
	over  bool        // the engine was told, or has ended the request
}

// NewDeferral makes one for a generation; abort tells the engine.
func NewDeferral(abort func()) *Deferral { return &Deferral{abort: abort} }

// Abort asks for the abort.
func (d *Deferral) Abort() {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.over || d.asked != nil:
	case d.free:
		d.over = true
		d.abort()
	default:
		d.asked = time.AfterFunc(maxDeferral, d.Released)
	}
}

// Released says that nobody writes into the pages any more.
func (d *Deferral) Released() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.free = true; d.asked != nil && !d.over {
		d.asked.Stop()
		d.over = true
		d.abort()
	}
}

// End says that the engine has ended the request.
func (d *Deferral) End() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over = true; d.asked != nil {
		d.asked.Stop()
	}
}
