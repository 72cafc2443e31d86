// Package sglang is the adapter for SGLang's own HTTP API: ids go to /generate
// and ids come back, a stream of events for each request. The engine's text is
// not used: what the client reads is made of the ids, like on every wire that
// carries them.
//
// What the wire makes necessary:
//
//   - A chunk holds either all ids so far or the new ones, by a setting of the
//     server. Every chunk has the engine's own count beside them, so that
//     neither reading can lose or repeat any (tally). Of all ids only the new
//     ones at the end are read (event): the whole array at each token would be
//     work that grows with the square of the answer.
//   - A refusal may come as 200 with an "abort" in the first event.
//   - A request is aborted by a call of its own, which takes its id for a prefix:
//     infer.Request.ID is unique and of fixed length. The engine notices a closed
//     connection too, but only after seconds.
//   - The engine's stamps are wall times of its machine, and only some servers
//     send them (--enable-metrics).
//
// Goroutines: Run's, which probes; up to one per core that read what generations
// bring where their sockets are polled (turns), and one for each generation whose
// cannot be polled; one for each that ends; and while there are requests to abort,
// up to maxAborters. All have ended when Run returns.
package sglang

import (
	"context"
	"net/url"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/access"
	"weir/internal/engine/remote"
	"weir/internal/engine/sglangmode"
	"weir/internal/engine/upstream"
	"weir/internal/epoll"
	"weir/internal/infer"
)

// Options configure one engine. Name and URL are needed.
type Options struct {
	Name string
	URL  *url.URL // scheme, host and an optional base path
	// Model is the name given by the operator, for an engine without a model
	// list.
	Model string
	// Additions gives what the folder of a model says, by the name of the model that
	// the engine serves; nil knows none.
	Additions func(model string) engine.Additions
	// ConnectTimeout bounds connecting; 0 means 5 s.
	ConnectTimeout time.Duration
	// HeadTimeout bounds the wait for the response head, which the engine sends
	// as soon as it has read the request; 0 means 1 min.
	HeadTimeout time.Duration
	// AbortTimeout is how long an aborted generation may take to end before its
	// connection is closed; 0 means 5 s.
	AbortTimeout time.Duration
	// ProbeInterval is the time between two looks at the engine; 0 means 10 s.
	ProbeInterval time.Duration
	// Panicked is told of panics while what the engine says is taken in, which end no
	// more than a request; nil is fine.
	Panicked func(*engine.Panic)
	// Batch is told around the deltas of what was ready at once; nil is fine.
	Batch engine.Batch
	// Access is what the engine is shown and known by.
	Access *access.Access
}

// Engine is the adapter of one engine. It implements engine.Tokens and
// engine.Adapter.
type Engine struct {
	opts   Options
	client *upstream.Client
	aborts aborts
	server atomic.Pointer[server] // what the engine last said of itself
	local  bool                   // it is on this machine
	clock  remote.Clock           // of another one; the probe's

	mu      sync.Mutex
	running context.Context // Run's, nil before and after
	polls   *epoll.Poller[*worker]
	polled  bool           // generations are read in turns, where their sockets can be polled
	live    sync.WaitGroup // generations; added to under mu, while running
}

var (
	_ engine.Tokens  = (*Engine)(nil)
	_ engine.Adapter = (*Engine)(nil)
	_ engine.Loaded  = (*Engine)(nil)
	_ engine.Prober  = (*Engine)(nil)
)

// New makes the adapter; it connects when first used.
func New(opts Options) *Engine {
	if opts.HeadTimeout == 0 {
		opts.HeadTimeout = time.Minute
	}
	if opts.AbortTimeout == 0 {
		opts.AbortTimeout = 5 * time.Second
	}
	if opts.ProbeInterval == 0 {
		opts.ProbeInterval = 10 * time.Second
	}
	e := &Engine{opts: opts, client: upstream.New(upstream.Options{
		URL: opts.URL, ConnectTimeout: opts.ConnectTimeout, HeadTimeout: opts.HeadTimeout, Access: opts.Access, Panicked: opts.Panicked,
	})}
	e.aborts.post, e.aborts.panicked = e.postAbort, opts.Panicked
	e.local = local(opts.URL.Hostname())
	e.polled = epoll.Supported
	e.server.Store(&server{carries: Carries, mode: &sglangmode.Mode{}})
	return e
}

// Run implements engine.Adapter.
func (e *Engine) Run(ctx context.Context, report func(engine.State)) {
	// What breaks off because Run ends is not what the client wanted.
	running, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	polls := epoll.New(runtime.GOMAXPROCS(0), func() *worker { return newWorker(e.opts.Batch) })
	e.mu.Lock()
	e.running, e.polls = running, polls
	e.mu.Unlock()

	e.client.Watch(ctx, e.opts.ProbeInterval, e.probe, report)

	e.mu.Lock()
	e.running = nil
	e.mu.Unlock()
	cancel(&infer.Error{Code: infer.CodeUnavailable, Engine: e.opts.Name, Message: "the engine was taken out of use", Retryable: true})
	e.live.Wait()
	polls.Close()
	e.aborts.close()
	e.client.CloseIdle()
}

// enter counts a generation in and gives the context that it lives in.
func (e *Engine) enter() (context.Context, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running == nil || e.running.Err() != nil {
		return nil, &infer.Error{Code: infer.CodeUnavailable, Engine: e.opts.Name, Message: "the engine is not connected", Retryable: true, NotRun: true}
	}
	e.live.Add(1)
	return e.running, nil
}
