// Package simserver runs a simulated engine: it makes the engine and its servers, and joins them.
//
// The engine drives the core of package sim with the real clock (package engine). Each wire is a
// package of its own, which knows the engine and not the other wires: weir's batched plane, the HTTP
// APIs of SGLang, vLLM and OpenAI, and the admin calls. Below the wires:
//
//   - completion: the OpenAI API's chats and texts, in the voices of all three
//   - exchange: one HTTP request and its answer
//   - pairs: halves of requests, as SGLang and vLLM ask for them
//   - pool: vectors and ranks, which nothing is generated for
//   - vocab: text, chats and media as ids, and ids as text
//   - fields, flags: the fields of requests, and the flags of engines
//   - speech, catalog, guard, web, tally, conns: what needs no engine
//
// All HTTP answers share one path: an exchange takes the results of its request, digests
// them into its outputs, and writes all pending output through a form, which holds the
// differences between the wires. Faults take effect in the digest, and therefore on all
// wires.
//
// A request may be one leg of a pair, on two engines. The engine joins legs by messages
// between simulated engines, over connections that have their own goroutines.
//
// Goroutines: the one of Run, which alone touches the core; and those of each server, one
// per HTTP request or gRPC call. They meet in two places. Requests and aborts go to the
// core through an inbox, with their times of arrival. Results come back through one outbox
// per connection of a client (a plane session, an HTTP answer); Run appends to it and never
// waits. All goroutines end when their context does.
package simserver

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"

	"weir/internal/infer"
	"weir/internal/sim"
	"weir/internal/sim/kvpub"
	"weir/internal/sim/simserver/admin"
	"weir/internal/sim/simserver/engine"
	"weir/internal/sim/simserver/flags"
	"weir/internal/sim/simserver/guard"
	"weir/internal/sim/simserver/openai"
	"weir/internal/sim/simserver/plane"
	"weir/internal/sim/simserver/sglang"
	"weir/internal/sim/simserver/vllm"
	"weir/internal/sim/simserver/vocab"
	"weir/internal/sim/simserver/web"
	"weir/internal/workload/content"
)

// Software is the name and version that the engine reports.
const Software = "weir-sim 0.1"

// Options describe an engine and how it is served.
type Options struct {
	Sim sim.Options
	// Tokenizer is needed by the HTTP servers, and by faults with a marker on the
	// plane.
	Tokenizer vocab.Tokenizer
	// Placeholders are the ids that stand for an image or audio in a prompt; what
	// has none is not taken.
	Placeholders map[infer.MediaKind]uint32
	// Speaker generates tool calls, reasoning and documents. If it is nil, all output is
	// words, whatever is asked for.
	Speaker *content.Speaker
	// SGLang and VLLM shape the servers that speak like these engines.
	SGLang flags.SGLang
	VLLM   flags.VLLM
	// Role is the engine's part where prefill and decode run on two engines.
	Role infer.Role
	Legs engine.LegsOptions
	// Access restricts who may ask. The admin listener is always open.
	Access guard.Access
	// KVEvents, if not nil, publishes the content of the KV caches. Sim.KVEvents must be
	// set, and the caller must run its Serve.
	KVEvents *kvpub.Publisher
	// Faults hold from the start; the admin call replaces them.
	Faults []sim.Fault
	// Admin serves the other paths of the admin's listener; nil: there are none.
	Admin http.Handler
	// MaxPending bounds the ids held for a gateway that does not read its
	// steps; beyond it the gateway's session is broken. Default 4 Mi ids.
	MaxPending int

	goTimers bool // the engine uses Go's timers alone, for tests in virtual time
}

type (
	// Access defines who may ask an engine, and with which keys and TLS settings.
	Access = guard.Access
	// Tokenizer turns text into ids and back. It is called from many goroutines.
	Tokenizer = vocab.Tokenizer
	// LegsOptions say how an engine takes part in pairs.
	LegsOptions = engine.LegsOptions
	// SGLangOptions shape the server that speaks like SGLang, by SGLang's own flags.
	SGLangOptions = flags.SGLang
	// VLLMOptions shape the server that speaks like vLLM, by vLLM's own flags.
	VLLMOptions = flags.VLLM
	// VLLMTransfer holds the settings of vLLM's --kv-transfer-config, and the address at which
	// others find the engine.
	VLLMTransfer = flags.Transfer
	// State is the state that the engine reports.
	State = engine.State
)

// ParseSGLangVersion reads the release of SGLang that the server is to be, as
// "0.5.3.post1"; what follows its three numbers does not matter.
func ParseSGLangVersion(s string) (release [3]int, err error) { return flags.ParseSGLangVersion(s) }

// Engine is a simulated engine with its servers.
type Engine struct {
	run   *engine.Engine
	opts  Options
	vocab *vocab.Vocab
	plane *plane.Server
}

// New makes an engine that stands still until Run.
func New(o Options) (*Engine, error) {
	o.MaxPending = cmp.Or(o.MaxPending, 4<<20)
	o.SGLang.SetDefaults()
	o.VLLM.SetDefaults()
	run, err := engine.New(engine.Options{
		Sim: o.Sim, Role: o.Role, Legs: o.Legs, Aborted: o.SGLang.Aborted(), TellsAborts: o.SGLang.TellsAborts(),
		KVEvents: o.KVEvents, Faults: o.Faults, GoTimers: o.goTimers,
	})
	if err != nil {
		return nil, err
	}
	v := vocab.New(run.Options(), o.Tokenizer, o.Placeholders, o.Speaker)
	return &Engine{
		run: run, opts: o, vocab: v,
		plane: plane.New(run, v, &o.Access, Software, o.MaxPending),
	}, nil
}

// Run drives the engine until ctx ends, or a request has ended it. It is called once. Requests handed in
// earlier wait for it; those left when it ends are answered with an error.
func (e *Engine) Run(ctx context.Context) { e.run.Run(ctx) }

// Died returns why the engine ended by itself, or nil if it did not. It must be called
// after Run has returned.
func (e *Engine) Died() error { return e.run.Died() }

// State reads the engine's state.
func (e *Engine) State() engine.State { return e.run.State() }

// SetFaults replaces the engine's faults; ordinals count anew.
func (e *Engine) SetFaults(list []sim.Fault) error { return e.run.SetFaults(list) }

// ServePlane serves the weir plane on l until ctx ends; every call has
// returned then. It closes l.
func (e *Engine) ServePlane(ctx context.Context, l net.Listener) error { return e.plane.Serve(ctx, l) }

// ServeOpenAI serves the OpenAI API and the admin calls on l until ctx ends and every
// request has been answered or broken off. It closes l. The engine must have a Tokenizer.
func (e *Engine) ServeOpenAI(ctx context.Context, l net.Listener) error {
	return e.serve(ctx, l, "openai", openai.Handler(e.run, e.vocab), e.opts.Access.VLLMKeys)
}

// ServeSGLang serves SGLang's HTTP API and the admin calls on l until ctx ends and every
// request has been answered or broken off. It closes l. The engine must have a Tokenizer.
func (e *Engine) ServeSGLang(ctx context.Context, l net.Listener) error {
	return e.serve(ctx, l, "sglang", sglang.New(e.run, e.vocab, &e.opts.SGLang).Handler(), e.opts.Access.SGLangKeys)
}

// ServeVLLM serves the OpenAI API in vLLM's form, vLLM's additional paths and the admin
// calls on l until ctx ends and every request has been answered or broken off. It closes l.
// The engine must have a Tokenizer.
func (e *Engine) ServeVLLM(ctx context.Context, l net.Listener) error {
	return e.serve(ctx, l, "vllm", vllm.New(e.run, e.vocab, &e.opts.VLLM).Handler(), e.opts.Access.VLLMKeys)
}

// serve serves an API beside the admin calls to those who have the keys.
func (e *Engine) serve(ctx context.Context, l net.Listener, name string, api http.Handler, keys func(*http.Request) []string) error {
	if e.opts.Tokenizer == nil {
		l.Close()
		return fmt.Errorf("serve %s: the engine has no tokenizer", name)
	}
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.Handle("/admin/", admin.Handler(e.run, e.vocab))
	return web.Serve(ctx, e.opts.Access.Secured(e.run.Listen(l)), guard.Paths(mux, keys))
}

// ServeAdmin serves the admin calls alone, for an engine without an HTTP server,
// on l until ctx ends. Faults do not touch it.
func (e *Engine) ServeAdmin(ctx context.Context, l net.Listener) error {
	h := admin.Handler(e.run, e.vocab)
	if e.opts.Admin != nil {
		mux := http.NewServeMux()
		mux.Handle("/admin/", h)
		mux.Handle("/", e.opts.Admin)
		h = mux
	}
	return web.Serve(ctx, l, h)
}

// ServeSideChannel serves simulated decode engines at the NIXL side channel of an engine in
// vLLM's form, on l until ctx ends. It closes l.
func (e *Engine) ServeSideChannel(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+engine.LinkPath, e.run.ServeLink)
	return web.Serve(ctx, e.run.Listen(l), mux)
}

// ServeBootstrap serves a prefill engine's registry of bootstrap addresses, and its
// connections from simulated decode engines, on l until ctx ends. It closes l.
func (e *Engine) ServeBootstrap(ctx context.Context, l net.Listener) error {
	return web.Serve(ctx, e.run.Listen(l), sglang.Registry(e.run))
}

// Aborts returns the latest aborts, in no order.
func (e *Engine) Aborts() []engine.Abort { return e.run.Aborts() }
