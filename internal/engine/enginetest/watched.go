package enginetest

import (
	"context"
	"fmt"
	"sync"
)

// Watched is a lock on what a test's goroutines change and wait for.
type Watched struct {
	sync.Mutex
	changed chan struct{} // closed at the next change; nil while nobody waits
}

// Update makes a change and wakes those who wait for one.
func (w *Watched) Update(f func()) {
	w.Lock()
	defer w.Unlock()
	f()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// Await waits until ok says so, which it is asked with the lock held.
func (w *Watched) Await(ctx context.Context, what string, ok func() bool) error {
	for {
		w.Lock()
		yes := ok()
		if w.changed == nil {
			w.changed = make(chan struct{})
		}
		changed := w.changed
		w.Unlock()
		if yes {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w", what, ctx.Err())
		}
	}
}
