// Package vllm is the adapter for vLLM's own HTTP server as released (`vllm serve`): ids go
// in and ids come back, a stream of events for each request. The engine's text is not used:
// weir decodes the client's text from the ids, as on every wire that carries ids.
//
// Properties of the wire:
//
//   - There are two endpoints (endpoint). Every server has /v1/completions, which accepts ids
//     and returns them beside text that weir ignores. A server started with
//     --enable-scale-out also has /inference/v1/generate, which returns only ids. The probe
//     detects which endpoints exist. A request that only one of them can carry goes to that
//     one.
//   - The first event of /v1/completions repeats all ids of the prompt. They are dropped as
//     they arrive (echo), before an event is assembled.
//   - Every event has the engine's own count beside the new ids. The two must match (tally).
//   - A release silently ignores fields that it does not know. The adapter therefore knows
//     the fields of each release, from the release's own schema (request).
//   - Closing weir's side of the connection aborts the request. The output that the engine
//     has already sent is read until the engine closes its side.
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
	known  readings

	flags Flags
	met   engine.Meets // how its halves of requests meet, once it has said; the probe's
}

// Flags are the operator's statements about how a server was started.
type Flags struct {
	Priority bool // it schedules by priority (--scheduling-policy priority)
	// AskHalves has it asked how its halves of requests meet, by a prefill half of one token.
	AskHalves bool
	// Decodes is set if it was given the role of a decode engine, which is asked only where that
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
