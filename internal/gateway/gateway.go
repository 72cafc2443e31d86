// Package gateway is the request path: it takes a client's request through the
// stages in their order and is the only package that knows that order.
//
// To follow a request, begin with serve.go. It has the stages that wait: read, prepare,
// queue, route and dispatch. prepare.go calls the stages that only need a CPU and may
// run in the pool: decode.go, gate.go, render.go and tokenize.go, in that order.
//
// After dispatch a request has three parts. A leg (leg.go) receives the output of one
// engine: a token engine pushes ids into a mailbox (leg_tokens.go), and a relay engine
// is read from (leg_relay.go). The answer (package answer) makes the response from that
// output, without I/O. A carrier (response.go) writes the response to the client. The
// driver (driver.go) advances the three by steps that never wait. Between the steps
// either a goroutine waits, or none does and workers step the stream when an event
// arrives (workers.go). finish.go ends every request.
package gateway

import (
	"context"
	"log/slog"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/dialect/allow"
	"weir/internal/dialect/responses"
	"weir/internal/dialect/sglang"
	"weir/internal/fleet/admission"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/model/pool"
	"weir/internal/model/tokenizer"
	"weir/internal/observe/busy"
	"weir/internal/observe/integrity"
	"weir/internal/observe/metrics"
	"weir/internal/observe/timeline"
	"weir/internal/observe/watch"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// Options configure a Gateway. Snapshot is needed; everything else has a
// working zero value.
type Options struct {
	// Snapshot returns the current snapshot of the fleet.
	Snapshot func() *route.Snapshot
	// Models are the model folders at the start, by canonical name, and Caps the limits of
	// models. For a model that was added or changed since, the snapshot has both (route.Loaded),
	// so that a request sees a consistent state of its model.
	Models map[string]*model.Folder
	// Timeline takes the records of ended requests; nil keeps none.
	Timeline *timeline.Recorder
	// Usage takes the records of ended requests of known callers, for the usage log; nil
	// writes none.
	Usage *timeline.Recorder
	// Counting makes relayed engines state the usage of streams whose callers do not ask
	// for it, and removes it from the answers.
	Counting bool
	// Spans receives the records of ended requests that are part of a trace. If it is
	// nil, engines receive the trace context of callers unchanged.
	Spans interface{ Add(*trace.Record) }
	// SpanShare is the share of requests that have spans, among those whose callers
	// request neither spans nor none.
	SpanShare float64
	// Integrity keeps the inconsistent output of engines; nil keeps nothing.
	Integrity *integrity.Log
	Metrics   *metrics.Metrics
	Log       *slog.Logger
	// Callers returns the callers of requests; nil: tenancy.Anyone sends every
	// request.
	Callers Callers
	Limits  admission.Limits
	Caps    map[string]Cap
	// Allow decides which parts of requests may pass to engines.
	Allow allow.Rules
	// PassUnknown passes over fields of bodies that no table has, instead of refusing them.
	PassUnknown bool
	// AllowAbort serves /abort_request, by which any caller that knows the rid of a
	// request can end it.
	AllowAbort bool
	// Generate are the settings of /generate.
	Generate sglang.Options
	Pool     pool.Options
	// Queue configures how requests wait for engines.
	Queue Queueing
	// Continue configures how streams continue at other engines when theirs fail.
	Continue Continuing
	// Batch is the engine.Batch of the adapters of token engines, or nil if they have
	// none.
	Batch *Batch
	// Sessions are the headers that name a session; empty: the usual ones of clients.
	Sessions []string
	// PrefixCache bounds the memory for earlier prompts whose ids can be reused, in
	// bytes; 0 means 128 MiB, and a negative value keeps nothing.
	PrefixCache int64

	// Conns bound clients' connections.
	Conns admission.ConnLimits
	// CORS are the web pages that may call the API.
	CORS Origins
	// Proxies are the proxies that are trusted to state the address of a client.
	Proxies admission.Proxies
	// MaxBody bounds a request's body in bytes; 0 means 32 MiB.
	MaxBody int64
	// MaxBodyMemory bounds the bytes of all bodies that are held at once; 0 means 1 GiB,
	// and a negative one is no bound.
	MaxBodyMemory int64
	// RequestTimeout bounds a request from its first byte to its end; 0 is no bound.
	RequestTimeout time.Duration
	// BodyTimeout bounds the wait for a request's head, and for a body's next bytes; 0
	// means 30 s.
	BodyTimeout time.Duration
	// UploadTimeout bounds the arrival of a whole body; 0 means 5 min.
	UploadTimeout time.Duration
	// UploadRate is how many bytes of a body must arrive per second on average, after the
	// first BodyTimeout; 0 means 4096.
	UploadRate int64
	// WriteTimeout bounds one write to a client that does not read; 0 means 30 s.
	WriteTimeout time.Duration
	// EngineTimeout bounds the wait for any engine to be ready; 0 means 5 s.
	EngineTimeout time.Duration
	// SubmitTimeout bounds an engine's acknowledgement; 0 means 10 s.
	SubmitTimeout time.Duration
	// AckWarning is the shortest part of an acknowledgement that is logged; 0 means none.
	AckWarning time.Duration
	// PrefillTimeout bounds the wait for the answer of a prefill engine.
	// TransferTimeout bounds the wait from then until the decode engine's first output.
	// 0 means 1 min and 30 s.
	PrefillTimeout, TransferTimeout time.Duration
	// FirstTimeout bounds the wait for an engine's first output; 0 means 10 min.
	FirstTimeout time.Duration
	// IdleTimeout bounds the wait for an engine's next output; 0 means 5 min.
	IdleTimeout time.Duration
	// FlushInterval is the shortest time between two writes of a stream; 0 writes
	// output as it comes. A first token is never delayed.
	FlushInterval time.Duration
	// Reasoning are the members that contain the reasoning in chat completions, all
	// with the same text; the default is reasoning_content.
	Reasoning []string
	// StageDelay adds a delay to a stage, once per request. It exists to prove
	// that dashboards and alerts built on the stages point where they should.
	StageDelay map[trace.Stage]time.Duration
	// HoldCore makes those delays occupy a core, like work that nothing interrupts.
	HoldCore bool
	// Access configures the access log.
	Access AccessLog
	// Watch watches the process; nil is fine.
	Watch *watch.Watch
}

func (o *Options) defaults() {
	if o.Metrics == nil {
		o.Metrics = metrics.New()
	}
	if o.Callers == nil {
		o.Callers = anyone
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Batch == nil {
		o.Batch = new(Batch)
	}
	if o.MaxBody == 0 {
		o.MaxBody = 32 << 20
	}
	if o.MaxBodyMemory == 0 {
		o.MaxBodyMemory = 1 << 30
	}
	if o.UploadRate == 0 {
		o.UploadRate = 4096
	}
	if o.PrefixCache == 0 {
		o.PrefixCache = 128 << 20
	}
	if o.Queue.Bytes == 0 {
		o.Queue.Bytes = 1 << 30
	}
	o.Continue.defaults()
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.BodyTimeout, 30 * time.Second},
		{&o.UploadTimeout, 5 * time.Minute},
		{&o.WriteTimeout, 30 * time.Second},
		{&o.EngineTimeout, 5 * time.Second},
		{&o.SubmitTimeout, 10 * time.Second},
		{&o.PrefillTimeout, time.Minute},
		{&o.TransferTimeout, 30 * time.Second},
		{&o.FirstTimeout, 10 * time.Minute},
		{&o.IdleTimeout, 5 * time.Minute},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if o.Queue.Timeout == 0 {
		o.Queue.Timeout = o.FirstTimeout
	}
}

// Gateway serves the API. It owns the tokenizing pool, and the goroutines of
// the streams that have left net/http; those of other requests belong to the
// HTTP server.
type Gateway struct {
	opts   Options
	gate   *admission.Gate
	bodies *admission.Bodies
	conns  *admission.Conns
	spells
	rids     rids // of requests that callers may abort by their own ids
	services services
	pool     *pool.Pool
	prefix   *tokenizer.PrefixCache // nil: nothing is reused
	held     *holding               // requests that wait for engines
	ids      *requestIDs
	started  int64        // Unix seconds, the models' creation time
	live     atomic.Int64 // requests between arrival and finish
	refused  atomic.Int64 // clients that still send the body of a request that was refused
	leaving  atomic.Bool  // answers close their connections
	flights  flights      // they themselves
	blocked  atomic.Int64 // streams whose clients do not read
	kept     atomic.Int64 // bytes of what is kept of streams so that they can go on elsewhere
	continuations
	meter *busy.Meter // nil: what is done is not measured
	detached
	handshaking handshakes
	base        context.Context // Cut ends it, and each request
	cut         context.CancelCauseFunc
}

// spells are problems that are logged at most once in a while.
type spells struct {
	starving   spell    // of descriptors
	crowded    spell    // by connections
	resetting  spell    // by streams of HTTP/2 that are reset as they begin
	handshakes spell    // that fail
	failing    sync.Map // spells by the name of the engine at which requests fail
	lateAcks   sync.Map // likewise, whose acknowledgements are late
	clipping   sync.Map // likewise, whose counts are clipped
}

// detached is what the streams that have left net/http share.
type detached struct {
	outputs  *outputs
	sockets  sockets
	polls    poller       // it, or a test's
	polled   atomic.Int64 // engines' sockets that are
	hangups  watcher      // likewise
	returned *returnedConns
	workers  sync.Pool // of *worker, for goroutines that are none
	silences silences
	spares
	tidy    *tidy
	streams sync.WaitGroup
	ending  atomic.Int64 // of them, in goroutines that end them
}

// New makes a gateway. Close must be called after the HTTP server has ended.
func New(opts Options) *Gateway {
	opts.defaults()
	opts.Limits.Bands, opts.Pool.Bands = opts.Queue.Bands, opts.Queue.Bands
	g := &Gateway{
		opts:     opts,
		gate:     admission.NewGate(opts.Limits),
		bodies:   admission.NewBodies(max(0, opts.MaxBodyMemory), opts.Queue.Bands),
		conns:    admission.NewConns(opts.Conns),
		spells:   spells{starving: spell{log: opts.Log}, crowded: spell{log: opts.Log}, resetting: spell{log: opts.Log}, handshakes: spell{log: opts.Log}},
		pool:     pool.New(opts.Pool),
		ids:      newRequestIDs(),
		held:     newHolding(&opts),
		started:  time.Now().Unix(),
		meter:    opts.Watch.Meter(),
		detached: detached{returned: newReturnedConns(opts.BodyTimeout), tidy: newTidy(), spares: newSpares()},
	}
	g.services = newServices(sglang.New(opts.Generate))
	g.continuations.most = opts.Continue.AtOnce
	cores := runtime.GOMAXPROCS(0)
	g.handshaking = newHandshakes(cores)
	g.outputs = newOutputs(cores, opts.Batch, opts.Metrics, g.meter)
	g.sockets = newSockets(cores, opts.Metrics, g.meter)
	g.polls, g.hangups = g.sockets, g.sockets
	g.base, g.cut = context.WithCancelCause(context.Background())
	if opts.PrefixCache > 0 {
		g.prefix = tokenizer.NewPrefixCache(opts.PrefixCache)
		opts.Metrics.Prefix(g.prefix)
	}
	g.returned.direct = newDirect(g)
	go g.held.run()
	opts.Metrics.Gateway(g.pool, g.Pending)
	opts.Metrics.Bodies(g.bodies.Used)
	opts.Metrics.Conns(g.conns.Stats)
	opts.Metrics.Queue(g.held.stats)
	opts.Metrics.Tenants(g.held.tenants)
	return g
}

// Leave makes each answer that begins from now on close its connection, so that clients
// send their next request over a new connection, elsewhere.
func (g *Gateway) Leave() { g.leaving.Store(true) }

// Unread returns how many connections were accepted since a time and have had no request yet.
func (g *Gateway) Unread(since time.Time) int { return g.conns.Fresh(since) }

// Drain refuses requests that arrive from now on; those in flight go on.
func (g *Gateway) Drain() { g.gate.Drain(trace.Now()) }

// Live returns how many requests are in flight.
func (g *Gateway) Live() int { return int(g.live.Load()) }

// Served returns how many requests a shutdown has to wait for: those in flight, and those whose
// clients still send a body that was refused.
func (g *Gateway) Served() int { return g.Live() + int(g.refused.Load()) }

// Load returns the present load of the gateway.
func (g *Gateway) Load() watch.Load {
	l := watch.Load{Streams: g.live.Load(), Pending: g.Pending(), Blocked: g.blocked.Load()}
	for _, s := range g.held.stats() {
		l.QueueWait = max(l.QueueWait, time.Duration(s.OldestSeconds*1e9))
	}
	return l
}

// Pending is how many streams have output that was not taken yet.
func (g *Gateway) Pending() int64 { return g.outputs.pending() }

// Cut ends every request in flight with an error that says so.
func (g *Gateway) Cut() {
	g.cut(infer.Errorf(infer.CodeShutdown, "the gateway was shut down before the answer was complete"))
	for _, x := range g.flights.list() {
		x.end(context.Cause(g.base))
	}
}

// Close cuts what is left, waits for the streams that have left net/http, and
// ends the pool's workers.
func (g *Gateway) Close() {
	g.Cut()
	g.returned.Close()
	g.streams.Wait()
	g.returned.direct.serving.Wait()
	g.held.close()
	g.outputs.close()
	g.sockets.Close()
	g.tidy.stop()
	g.pool.Close()
}

// Handler serves the API's paths.
func (g *Gateway) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", g.forCallers(g.listModels))
	mux.HandleFunc("GET /v1/models/{id...}", g.forCallers(g.getModel))
	mux.HandleFunc(responses.Path, g.handle) // not a redirect to the next
	for _, kept := range []string{"GET " + responses.Path + "/{rest...}", "DELETE " + responses.Path + "/{rest...}", "POST " + responses.Path + "/{id}/cancel"} {
		mux.HandleFunc(kept, g.forCallers(g.noAnswersKept))
	}
	mux.HandleFunc("/v1/", g.handle)
	mux.HandleFunc("/tokenize", g.handle)
	mux.HandleFunc("/detokenize", g.handle)
	for _, path := range g.opts.Allow.Paths.More() {
		if !strings.HasPrefix(path, "/v1/") {
			mux.HandleFunc("POST "+path, g.handle)
		}
	}
	g.handleNative(mux)
	mux.HandleFunc("/", g.view(g.notFound))
	return g.crossOrigin(mux)
}

// known reports whether a request is to an engine, as nearly all are: then no mux has to go
// through its patterns.
func (g *Gateway) known(r *http.Request) bool {
	_, known := g.services[r.URL.Path]
	return known && r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/v1/")
}

// view serves requests that do not go to an engine. They have an id too. They also need
// deadlines of their own, because a kept connection still has the deadline of its last
// response, and net/http reads the rest of a body that the handler has not read.
func (g *Gateway) view(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Request-Id", requestID(r.Header.Get("X-Request-Id"), g.ids.request()))
		rc := http.NewResponseController(w)
		_ = rc.SetWriteDeadline(time.Now().Add(g.opts.WriteTimeout)) // as in httpCarrier
		dropBody(rc)
		serve(w, r)
		g.refused.Add(1)
		defer g.refused.Add(-1)
		g.drain(w, r)
	}
}

func (g *Gateway) notFound(w http.ResponseWriter, r *http.Request) {
	writeError(w, g.endpointOf(r.URL.Path), g.services.nothingAt(r.URL.Path))
}

// noAnswersKept answers who asks for an answer of the past.
func (g *Gateway) noAnswersKept(w http.ResponseWriter, r *http.Request, _ *tenancy.Caller) {
	writeError(w, responses.Endpoint{}, responses.Stateless(r.URL.Path))
}
