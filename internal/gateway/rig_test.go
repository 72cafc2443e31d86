package gateway

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"weir/internal/fleet/admission"
	"weir/internal/fleet/route"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/front"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/observe/metrics"
	"weir/internal/trace"
	"weir/models"
)

// rig drives the request path from decode to finish without server, sockets and
// workers: the test plays the engines and the client, and gives the turns. It runs in
// a bubble of virtual time.
type rig struct {
	t       testing.TB
	g       *Gateway
	x       *exchange
	w       *drive.Worker
	queues  int // of streams that wait for turns
	tokens  *tokenEngine
	relay   *relayEngine
	fleet   *route.Snapshot
	client  *memConn
	server  *memConn
	whole   *httptest.ResponseRecorder // an answer that stays with net/http
	left    atomic.Bool                // the response has left it
	cut     atomic.Bool                // net/http has broken its connection
	arrived []byte                     // by the client, raw
	loose   bool                       // in no bubble: the test waits and gives turns by itself
}

// rigMetrics are shared, because making them takes longer than a script.
var rigMetrics = metrics.New()

// newRig makes a gateway of which nothing runs.
func newRig(t testing.TB, opts Options) *rig {
	r := &rig{t: t, queues: 1, tokens: &tokenEngine{name: "a"}, relay: &relayEngine{name: "r", polled: true}}
	r.fleet = fleetOf(nil, r.tokens, &tokenEngine{name: "b", accept: refuse(infer.CodeOverloaded, false)}, r.relay)
	opts.Snapshot = func() *route.Snapshot { return r.fleet }
	opts.Prepare.Models = map[string]*model.Folder{models.SimName: simModel()}
	opts.Metrics = rigMetrics
	opts.Prepare.PrefixCache = -1
	opts.defaults()
	g := &Gateway{
		opts: opts, bodies: admission.NewBodies(0, nil), recorder: record.New(opts.Record, opts.Metrics, opts.Log, nil), ids: &requestIDs{instance: strings.Repeat("0", 16)}, room: place.NewRoom(opts.Place.Queue, opts.Prepare.Allow.Fields.Order(), opts.Snapshot, nil, nil),
	}
	g.preparer = prepare.New(&g.opts.Prepare, opts.Front.MaxBody, opts.Snapshot, g.room, rigMetrics, nil)
	t.Cleanup(g.preparer.Close)
	g.base, g.cut = context.WithCancelCause(t.Context())
	g.front = front.New(&g.opts.Front, rigMetrics, opts.Log, g.base, memHangups{}, 1)
	g.drive(-1, drive.NewSockets(1, rigMetrics, nil))
	g.driver.Polls = memPolls{}
	g.front.Returned().Serving.Store(true)
	r.g, r.w = g, g.driver.NewWorker()
	return r
}

// acceptOne is a listener of a connection that has come.
type acceptOne struct {
	net.Listener
	conn net.Conn
}

func (l *acceptOne) Accept() (net.Conn, error) { return l.conn, nil }

// rigWriter is net/http's side of a connection.
type rigWriter struct {
	*httptest.ResponseRecorder
	conn net.Conn
	left *atomic.Bool
}

func (w *rigWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.left.Store(true)
	return w.conn, bufio.NewReadWriter(bufio.NewReader(strings.NewReader("")), nil), nil
}

// ask sends a request whose client has a receive buffer of window bytes. Of a
// gateway's work it leaves out reading the body.
func (r *rig) ask(path, body string, window int) {
	up, down := newHalf(1<<20), newHalf(window)
	mem := &memConn{in: up, out: down}
	r.server = mem
	server, err := r.g.front.Listener(&acceptOne{conn: mem}).Accept()
	if err != nil {
		r.t.Fatal(err)
	}
	r.client = &memConn{in: down, out: up}
	req := httptest.NewRequest("POST", path, nil)
	req.Header.Set("X-Request-Id", "req-1")
	req.Close = true
	req = req.WithContext(front.ConnContext(r.g.base, server))
	r.whole = httptest.NewRecorder()
	x := r.g.start(&rigWriter{r.whole, server, &r.left}, req)
	r.x = x
	if done, err := x.prepare([]byte(body)); done || err != nil {
		r.t.Fatal(done, err)
	}
	if r.loose && x.need.Needs.HasIDs() {
		x.prepared.Request.MaxTokens = 1 << 40
	}
	go func() {
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler { // which net/http takes
				panic(p)
			}
		}()
		if v := x.attempts(); x.stream.Response.Detached() {
			x.stream.Depart(v)
			return
		}
		defer func() {
			if p := recover(); p == http.ErrAbortHandler {
				r.cut.Store(true)
			} else if p != nil {
				panic(p)
			}
		}()
		x.Finish()
	}()
	r.settle()
}

// settle gives turns until nothing is left to be done.
func (r *rig) settle() {
	if r.loose {
		return
	}
	for synctest.Wait(); ; synctest.Wait() {
		queue := r.g.driver.Take(0, nil)
		if len(queue) == 0 {
			return
		}
		for _, s := range queue {
			s.Turn(r.w)
		}
		r.w.Idle()
	}
}

// call gives what the engine was handed for a choice, by the latest attempt.
func (r *rig) call(choice int) *call {
	var found *call
	for _, c := range r.tokens.handed() {
		at := 0
		if s, ok := c.sink.(*attempt.ChoiceSink); ok {
			at = int(s.Choice)
		}
		if at == choice {
			found = c
		}
	}
	if found == nil {
		r.t.Fatalf("the engine was handed no choice %d", choice)
	}
	return found
}

// forward gives what the relay was handed.
func (r *rig) forward() *forward {
	if len(r.relay.handed()) == 0 {
		r.t.Fatal("the relay was handed nothing")
	}
	return r.relay.handed()[len(r.relay.handed())-1]
}

// read takes up to n bytes that have arrived at the client, and gives the turns that
// follow; closed says that the server has closed the connection.
func (r *rig) read(n int) (arrived []byte, closed bool) {
	h := r.client.in
	h.mu.Lock()
	n = min(n, len(h.buf))
	arrived = bytes.Clone(h.buf[:n])
	h.buf = h.buf[n:]
	closed = (h.ended || h.broken) && len(h.buf) == 0
	h.wake()
	h.mu.Unlock()
	r.arrived = append(r.arrived, arrived...)
	r.settle()
	return arrived, closed
}

// close ends what a test has left open.
func (r *rig) close() {
	r.client.Close()
	r.settle()
	r.g.cut(infer.Errorf(infer.CodeShutdown, "the test is over"))
	r.settle()
	r.g.driver.Wait()
	r.g.front.Close()
}

// record gives the request's record once it has ended.
func (r *rig) record() *trace.Record {
	if r.g.recorder.Live() != 0 {
		return nil
	}
	return r.x.stream.Record.Record
}
