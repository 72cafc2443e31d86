package coreclient

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/wire/zmtp"
)

// Host waits for engines: it binds an adapter's sockets, serves the connections to
// them, and reports the adapter's state when it changes.
type Host struct {
	label    string
	panicked func(*infer.Panic)
	changed  chan struct{} // capacity 1: the state may have
	arrived  atomic.Uint64 // connections accepted

	mu  sync.Mutex
	why error // the last thing that kept an engine from being of use
}

// NewHost makes a Host. The label, "KIND: NAME", begins the errors that it reports.
// panicked is called for panics while a connection is served, which end only that
// connection; it may be nil.
func NewHost(label string, panicked func(*infer.Panic)) *Host {
	return &Host{label: label, panicked: panicked, changed: make(chan struct{}, 1)}
}

// Door is a listener and its handler. A connection is closed when Run's context ends.
type Door struct {
	Listener net.Listener
	Serve    Serve
}

// Serve serves and closes a connection, the nth that its Host has accepted.
type Serve func(ctx context.Context, c net.Conn, nth uint64)

// Open returns a Door at an endpoint.
func Open(at zmtp.Endpoint, serve Serve) (Door, error) {
	l, err := zmtp.Listen(at)
	return Door{l, serve}, err
}

// Arrived counts the connections that were accepted.
func (h *Host) Arrived() uint64 { return h.arrived.Load() }

// Signal makes Run read the state.
func (h *Host) Signal() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// Note records why an engine cannot be used, for the state.
func (h *Host) Note(err error) {
	h.mu.Lock()
	h.why = err
	h.mu.Unlock()
	h.Signal()
}

// NoteUnless notes an error that is not only the end of Run.
func (h *Host) NoteUnless(ctx context.Context, err error) {
	if ctx.Err() == nil {
		h.Note(err)
	}
}

// Why returns the error that was noted last, or nil.
func (h *Host) Why() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.why
}

// Unready returns the state of an engine that cannot be used.
func (h *Host) Unready(why error) engine.State {
	return engine.State{Err: fmt.Errorf("%s: %w", h.label, why)}
}

// Run binds the doors that open makes, and serves them until ctx ends. If one of them
// cannot be bound, all doors from open are closed, and it tries again. state is called
// after every Signal, and reported if it has changed. Everything is served by
// goroutines that have ended when Run returns; report is called from Run's own.
func (h *Host) Run(ctx context.Context, open func() ([]Door, error), state func() engine.State, report func(engine.State)) {
	var last string
	tell := func(s engine.State) {
		word := fmt.Sprint(s)
		if word != last {
			last = word
			report(s)
		}
	}
	for wait := 100 * time.Millisecond; ctx.Err() == nil; wait = min(2*wait, 5*time.Second) {
		err := h.serve(ctx, open, func() { tell(state()) })
		if err == nil {
			return // ctx has ended
		}
		tell(h.Unready(err))
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// serve is Run with doors that could be bound. An error says which could not.
func (h *Host) serve(ctx context.Context, open func() ([]Door, error), report func()) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	doors, err := open()
	for _, d := range doors {
		defer d.Listener.Close()
	}
	if err != nil {
		return err
	}
	for _, d := range doors {
		tasks.Go(func() { h.accept(ctx, d, &tasks) })
	}
	report()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.changed:
			report()
		}
	}
}

// accept serves a door until it is closed, which it is when ctx has ended.
func (h *Host) accept(ctx context.Context, d Door, tasks *sync.WaitGroup) {
	for {
		c, err := d.Listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return
		case err != nil:
			h.Note(err)
			select { // out of files, say
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		default:
			nth := h.arrived.Add(1)
			tasks.Go(func() {
				defer func() {
					if p := infer.Caught(recover(), h.panicked); p != nil {
						c.Close()
						h.Note(p)
					}
				}()
				stop := context.AfterFunc(ctx, func() { c.Close() })
				defer stop()
				d.Serve(ctx, c, nth)
			})
		}
	}
}
