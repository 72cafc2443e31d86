// Package gateway is the request path: it takes a client's request through the
// stages in their order and is the only package that knows that order.
//
// To follow a request, begin with serve.go. It has the stages that wait: read, prepare,
// queue, route and dispatch. Package prepare has the stages that only need a CPU and may
// run in the pool, and package place has queue and route.
//
// After dispatch a request has three parts. A leg (package attempt) receives the output of one
// engine. The answer (package answer) makes the response from that output, without I/O. A carrier
// (package front) writes the response to the client. Package drive advances the three. finish.go
// ends every request, and package record keeps account of it.
package gateway

import (
	"context"
	"maps"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"weir/internal/fleet/admission"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/front"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/observe/busy"
	"weir/internal/observe/watch"
	"weir/internal/trace"
)

// Gateway serves the API. It owns the preparer with its pool, and the goroutines of
// the streams that have left net/http; those of other requests belong to the
// HTTP server.
type Gateway struct {
	opts     Options
	bodies   *admission.Bodies
	front    *front.Front
	rids     rids // of requests that callers may abort by their own ids
	preparer *prepare.Preparer
	room     *place.Room // where requests wait for engines
	attempts *attempt.Attempts
	driver   *drive.Driver
	ids      *requestIDs
	recorder *record.Recorder
	started  int64           // Unix seconds, the models' creation time
	refused  atomic.Int64    // clients that still send the body of a request that was refused
	leaving  atomic.Bool     // answers close their connections
	meter    *busy.Meter     // nil: what is done is not measured
	base     context.Context // Cut ends it, and each request
	cut      context.CancelCauseFunc
}

// New makes a gateway. Close must be called after the HTTP server has ended.
func New(opts Options) *Gateway {
	opts.defaults()
	opts.Prepare.Limits.Bands, opts.Prepare.Pool.Bands = opts.Place.Queue.Bands, opts.Place.Queue.Bands
	g := &Gateway{
		opts:     opts,
		bodies:   admission.NewBodies(max(0, opts.Front.MaxBodyMemory), opts.Place.Queue.Bands),
		recorder: record.New(opts.Record, opts.Metrics, opts.Log, opts.Watch),
		ids:      newRequestIDs(),
		started:  time.Now().Unix(),
		meter:    opts.Watch.Meter(),
	}
	g.room = place.NewRoom(opts.Place.Queue, opts.Prepare.Allow.Fields.Order(), opts.Snapshot, g.meter, g.recorder.Panic)
	g.preparer = prepare.New(&g.opts.Prepare, g.opts.Front.MaxBody, opts.Snapshot, g.room, opts.Metrics, g.meter)
	cores := runtime.GOMAXPROCS(0)
	sockets := drive.NewSockets(cores, opts.Metrics, g.meter)
	g.base, g.cut = context.WithCancelCause(context.Background())
	g.front = front.New(&g.opts.Front, opts.Metrics, opts.Log, g.base, sockets, cores)
	g.drive(cores, sockets)
	g.front.ServePlain(g.Handler(), maps.Keys(g.preparer.Services))
	go g.room.Run()
	opts.Metrics.Gateway(g.preparer.Pool, g.Pending)
	opts.Metrics.Bodies(g.bodies.Used)
	opts.Metrics.Conns(g.front.Conns)
	opts.Metrics.Queue(g.queued)
	opts.Metrics.Tenants(g.tenants)
	return g
}

// drive makes what streams are driven by, with so many workers, and their attempts.
func (g *Gateway) drive(workers int, sockets drive.Sockets) {
	o := &g.opts
	g.driver = drive.New(&o.Stream, workers, o.Front.WriteTimeout, g.front, sockets, g.recorder, o.Metrics, o.Watch, g.meter)
	g.attempts = attempt.New(&o.Attempt, g.preparer, g.room, g.recorder, o.Metrics, o.Log, g.base, g.ids.next, g.driver.Pending)
}

// Leave makes each answer that begins from now on close its connection, so that clients
// send their next request over a new connection, elsewhere.
func (g *Gateway) Leave() { g.leaving.Store(true) }

// Front returns what serves the clients' connections.
func (g *Gateway) Front() *front.Front { return g.front }

// Server returns the HTTP server of the API.
func (g *Gateway) Server() *http.Server { return g.front.Server(g.Handler()) }

// Drain refuses requests that arrive from now on; those in flight go on.
func (g *Gateway) Drain() { g.preparer.Gate.Drain(trace.Now()) }

// Live returns how many requests are in flight.
func (g *Gateway) Live() int { return int(g.recorder.Live()) }

// Served returns how many requests a shutdown has to wait for: those in flight, and those whose
// clients still send a body that was refused.
func (g *Gateway) Served() int { return g.Live() + int(g.refused.Load()) }

// Load returns the present load of the gateway.
func (g *Gateway) Load() watch.Load {
	l := watch.Load{Streams: g.recorder.Live(), Pending: g.Pending(), Blocked: g.driver.Blocked()}
	for _, s := range g.queued() {
		l.QueueWait = max(l.QueueWait, time.Duration(s.OldestSeconds*1e9))
	}
	return l
}

// Pending is how many streams have output that was not taken yet.
func (g *Gateway) Pending() int64 { return g.driver.Pending() }

// Cut ends every request in flight with an error that says so.
func (g *Gateway) Cut() {
	g.cut(infer.Errorf(infer.CodeShutdown, "the gateway was shut down before the answer was complete"))
	for _, s := range g.recorder.Streams() {
		s.End(context.Cause(g.base))
	}
}

// CutAt ends the requests that are relayed to an engine of a generation, which was removed and
// whose requests have not ended in time. The adapter of a token engine ends its own.
func (g *Gateway) CutAt(name string, generation uint64) (n int) {
	e := &infer.Error{Code: infer.CodeUnavailable, Engine: name, Message: "the engine was removed before the answer was complete"}
	for _, s := range g.recorder.Streams() {
		if s.Account().RelayedAt(generation) {
			s.End(e)
			n++
		}
	}
	return n
}

// InFlight returns the requests in flight. No request waits for it.
func (g *Gateway) InFlight(q record.Query) record.InFlight {
	found := g.recorder.InFlight(q)
	for i := range found.Requests {
		found.Requests[i].Dialect = prepare.DialectOf(g.preparer.Endpoint(found.Requests[i].Endpoint))
	}
	return found
}

// Close cuts what is left, waits for the streams that have left net/http, and
// ends the preparer's workers.
func (g *Gateway) Close() {
	g.Cut()
	g.front.Close()
	g.driver.Wait()
	g.attempts.Wait()
	g.front.Wait()
	g.room.End()
	g.driver.Close()
	g.preparer.Close()
}
