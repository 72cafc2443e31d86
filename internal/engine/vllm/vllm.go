// Package vllm is the adapter for vLLM's own HTTP server as released (`vllm serve`): ids go
// in and ids come back, a stream of events for each request. The engine's text is not used:
// what the client reads is made of the ids, like on every wire that carries them.
//
// What the wire makes necessary:
//
//   - There are two endpoints (endpoint). /v1/completions takes ids and gives them beside
//     text that nobody reads, in every server. /inference/v1/generate gives ids alone, in one
//     started with --enable-scale-out. Which there is is found out by the probe, and a
//     request goes to the other one where only that carries it.
//   - The first event of /v1/completions repeats all ids of the prompt. They are dropped as
//     they come (echo), before an event is put together.
//   - Every event has the engine's own count beside the new ids: they must agree (tally).
//   - A field that a release does not know is passed over without a word: which release
//     takes what is known here, from its own schema (request).
//   - Closing weir's side of the connection aborts. What the engine has sent until then is
//     read, and it closes its own.
//
// Goroutines: Run's, which probes, and those of the generations (idstream). All have ended
// when Run returns.
package vllm

import (
	"context"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/engine/idstream"
	"weir/internal/engine/upstream"
)

// Options configure the adapter.
type Options = idstream.Options

// Engine is the adapter of one engine. It implements engine.Tokens and
// engine.Adapter.
type Engine struct {
	opts   Options
	client *upstream.Client
	host   *idstream.Host
	server atomic.Pointer[server] // what the engine last said of itself

	flags Flags
	met   engine.Meets // how its halves of requests meet, once it has said; the probe's
}

// Flags are what weir is told of how a server was started.
type Flags struct {
	Priority bool // it schedules by priority (--scheduling-policy priority)
	// AskHalves has it asked how its halves of requests meet, by a prefill half of one token.
	AskHalves bool
	// Decodes says that it was given the role of a decode engine, which is asked only where that
	// is known to be safe.
	Decodes bool
}

var (
	_ engine.Tokens    = (*Engine)(nil)
	_ engine.Adapter   = (*Engine)(nil)
	_ engine.Loaded    = (*Engine)(nil)
	_ engine.Reachable = (*Engine)(nil)
)

// New makes the adapter; it connects when first used.
func New(opts Options, flags Flags) *Engine {
	host := idstream.NewHost("vllm", &opts, idstream.Failure)
	e := &Engine{opts: opts, client: host.Client, host: host, flags: flags}
	e.server.Store(&server{carries: carries})
	return e
}

// Run implements engine.Adapter.
func (e *Engine) Run(ctx context.Context, report func(engine.State)) {
	e.host.Run(ctx, func() {
		e.client.Watch(ctx, e.opts.ProbeInterval, e.probe, func(s engine.State) {
			if s.Ready {
				s.Note = e.server.Load().note
			}
			report(s)
		})
	})
	e.client.CloseIdle()
}
