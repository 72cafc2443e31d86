// Package relay is the adapter for engines that serve an OpenAI-compatible API
// themselves. It forwards the caller's bytes unchanged and returns the bytes of the
// answer; it parses neither.
package relay

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/access"
	"weir/internal/engine/upstream"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/wire/http1"
)

// Options configure one engine. Name and URL are needed.
type Options struct {
	Name string
	URL  *url.URL // scheme, host and an optional base path without "/v1"
	// Model is the name that the operator gave, for an engine without /v1/models.
	Model string
	// ConnectTimeout bounds connecting; 0 means 5 s.
	ConnectTimeout time.Duration
	// FirstByteTimeout bounds the wait for the response head, which for an
	// answer that is not streamed is the whole generation; 0 means 10 min.
	FirstByteTimeout time.Duration
	// ProbeInterval is the time between two readings of the model list;
	// 0 means 10 s.
	ProbeInterval time.Duration
	// ReadTimeout bounds the reading of a page of the engine's; 0 means 5 s.
	ReadTimeout time.Duration
	// Access is what the engine is shown and known by.
	Access *access.Access
	// Panicked is called for panics while the engine's output is processed, each of
	// which ends only one request; it may be nil.
	Panicked func(*infer.Panic)
	// PassKey has the engine judge its callers itself: their own credentials go with
	// their requests, and its refusals to them. Otherwise these are weir's matter.
	PassKey bool
	// AskHalves has an engine of vLLM's asked how its halves of requests meet, by a prefill
	// half of one id whenever it has come; without an answer it is not ready.
	AskHalves bool
	// Decodes is set if the engine was given the role of a decode engine, which is asked only
	// where that is known to be safe.
	Decodes bool
	// VerifyIDs has the engine's streams verified where it can be asked for their ids.
	VerifyIDs bool
}

// Engine is a connection pool to one engine. It implements engine.Relay and
// engine.Adapter.
type Engine struct {
	opts   Options
	client *upstream.Client
	known  readings     // Run's own
	over   uint64       // the connection over which its release was read; Run's own
	met    engine.Meets // as it answered last; Run's own
	load   atomic.Pointer[engine.Load]
	alone  atomic.Pointer[infer.Half] // as its software's, for Probe
}

var (
	_ engine.Relay   = (*Engine)(nil)
	_ engine.Adapter = (*Engine)(nil)
	_ engine.Loaded  = (*Engine)(nil)
	_ engine.Prober  = (*Engine)(nil)
	_ engine.Polled  = (*coded)(nil)
)

// New makes the adapter; it connects when first used.
func New(opts Options) *Engine {
	if opts.ProbeInterval == 0 {
		opts.ProbeInterval = 10 * time.Second
	}
	return &Engine{opts: opts, client: upstream.New(upstream.Options{
		URL: opts.URL, ConnectTimeout: opts.ConnectTimeout, HeadTimeout: opts.FirstByteTimeout, ReadTimeout: opts.ReadTimeout, Access: opts.Access, Panicked: opts.Panicked,
	})}
}

// Forward implements engine.Relay.
func (e *Engine) Forward(ctx context.Context, req *engine.RelayRequest, leg *trace.Leg) (*engine.RelayResponse, error) {
	ends, own := EndToEnd(req, leg)
	resp, err := e.client.Do(ctx, &upstream.Request{Method: req.Method, Path: req.Path,
		Header: req.Header, Omit: func(name string) bool { return e.omits(name) || ends.Omits(name) }, Own: own, Fields: identity,
		Waits: req.Waits, Body: req.Body, Leg: leg})
	if err != nil {
		return nil, upstream.Fault(e.opts.Name, err)
	}
	if resp.Status == http.StatusUnauthorized && !e.opts.PassKey {
		resp.Body.Close()
		return nil, &infer.Error{Code: infer.CodeEngine, Engine: e.opts.Name, Retryable: true, NotRun: true,
			Message: "the engine does not let the gateway in", Cause: errors.New("status 401: " + e.opts.Access.Advice())}
	}
	length := int64(-1)
	if resp.Framing == http1.Sized {
		length = resp.Length
	}
	var after time.Duration
	if !e.opts.PassKey { // where callers have keys of their own, it is about theirs
		after = upstream.RetryAfter(resp.Status, resp.Fields)
	}
	r := &struct { // one allocation
		engine.RelayResponse
		fields answer
		body   coded
	}{
		RelayResponse: engine.RelayResponse{Status: resp.Status, Framed: resp.Framing != http1.UntilClose, Length: length, RetryAfter: after},
		fields:        answer{resp.Fields},
	}
	r.body = coded{resp.TakeBody(), e}
	r.Fields, r.Body = &r.fields, &r.body
	return &r.RelayResponse, nil
}

// coded gives every error of a body its code.
type coded struct {
	*upstream.Body
	e *Engine
}

func (b *coded) Read(p []byte) (int, error) {
	n, err := b.Body.Read(p)
	if err != nil && err != io.EOF {
		err = upstream.Fault(b.e.opts.Name, err)
	}
	return n, err
}

// TryRead implements engine.Polled.
func (b *coded) TryRead(p []byte) (n int, drained bool, err error) {
	n, drained, err = b.Body.TryRead(p)
	if err != nil && err != io.EOF {
		err = upstream.Fault(b.e.opts.Name, err)
	}
	return n, drained, err
}

// Run implements engine.Adapter.
func (e *Engine) Run(ctx context.Context, report func(engine.State)) {
	defer e.client.CloseIdle()
	e.client.Watch(ctx, e.opts.ProbeInterval, e.probe, func(s engine.State) {
		if s.Ready {
			s.Note = e.note()
		}
		report(s)
	})
}
