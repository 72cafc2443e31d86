// Package sglang is the adapter for SGLang's own HTTP API: ids go to /generate and ids
// come back, a stream of events for each request. The engine's text is not used: weir
// decodes the client's text from the ids, as on every wire that carries ids.
//
// Properties of the wire:
//
//   - A chunk holds either all ids so far or only the new ones, depending on a setting
//     of the server. Every chunk also has the engine's own count, so neither form can
//     lose or repeat ids unnoticed (tally). When a chunk holds all ids, only the new
//     ones at its end are read (event): reading the whole array for each token would
//     take time quadratic in the length of the answer.
//   - A refusal may come as 200 with an "abort" in the first event.
//   - A request is aborted by a separate call, which matches ids by prefix:
//     infer.Request.ID is unique and has a fixed length. The engine notices a closed
//     connection too, but only after seconds.
//   - The engine's stamps are wall-clock times on its machine. Only servers with
//     --enable-metrics send them.
//
// Goroutines: Run's, which probes; those of the generations (idstream); and while there
// are requests to abort, up to maxAborters. All have ended when Run returns.
package sglang

import (
	"context"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/engine/idstream"
	"weir/internal/engine/remote"
	"weir/internal/engine/sglangserver"
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
	aborts aborts
	server atomic.Pointer[server] // what the engine last said of itself
	known  readings
	local  bool         // it is on this machine
	clock  remote.Clock // of another one; the probe's
}

var (
	_ engine.Tokens  = (*Engine)(nil)
	_ engine.Adapter = (*Engine)(nil)
	_ engine.Loaded  = (*Engine)(nil)
	_ engine.Prober  = (*Engine)(nil)
)

// New makes the adapter; it connects when first used.
func New(opts Options) *Engine {
	host := idstream.NewHost("sglang", &opts, Failure)
	e := &Engine{opts: opts, client: host.Client, host: host}
	e.aborts.post, e.aborts.panicked = e.postAbort, opts.Panicked
	e.local = local(opts.URL.Hostname())
	e.server.Store(&server{carries: Carries, mode: &sglangserver.Mode{}})
	return e
}

// Run implements engine.Adapter.
func (e *Engine) Run(ctx context.Context, report func(engine.State)) {
	e.host.Run(ctx, func() { e.client.Watch(ctx, e.opts.ProbeInterval, e.probe, report) })
	e.aborts.close()
	e.client.CloseIdle()
}
