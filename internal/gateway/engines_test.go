package gateway

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/relay"
	"weir/internal/gateway/drive"
	"weir/internal/infer"
	"weir/internal/observe/metrics"
	"weir/internal/trace"
)

// tokenEngine is a token engine that a test plays by hand.
type tokenEngine struct {
	name string
	// accept, when set, runs in place of confirming at once. Its error refuses.
	accept func(ctx context.Context, c *call) error
	// facts, when set, are what the engine says of itself.
	facts *engine.Facts
	// most is how many requests it is given at once; 0 is as it says itself.
	most int
	// role is its part in requests, and meets how its halves meet the others.
	role  infer.Role
	meets engine.Meets
	// told, when set, is given the leg of each call.
	told func(*trace.Leg)

	mu    sync.Mutex
	calls []*call
}

// call is a request that the engine was handed.
type call struct {
	engine  *tokenEngine
	req     *infer.Request
	attempt uint32
	sink    engine.Sink

	mu        sync.Mutex
	total     int
	aborts    int
	abortedAt time.Time
	released  bool
	scores    bool // its ids come with their log probabilities
}

var _ engine.Tokens = (*tokenEngine)(nil)

// Generate implements engine.Tokens.
func (e *tokenEngine) Generate(ctx context.Context, req *infer.Request, attempt uint32, sink engine.Sink, leg *trace.Leg) (engine.Generation, error) {
	c := &call{engine: e, req: req, attempt: attempt, sink: sink}
	e.mu.Lock()
	e.calls = append(e.calls, c)
	e.mu.Unlock()
	if e.told != nil {
		e.told(leg)
	}
	leg.ToServer = trace.Now()
	if e.accept != nil {
		if err := e.accept(ctx, c); err != nil {
			return nil, err
		}
	}
	leg.Acked = trace.Now()
	return c, nil
}

// never is an accept that confirms nothing until its context ends.
func never(ctx context.Context, c *call) error {
	<-ctx.Done()
	c.Abort() // as an adapter does: the engine may have it
	if errors.Is(ctx.Err(), context.Canceled) {
		return c.engine.fault(infer.CodeCancelled, false)
	}
	return c.engine.fault(infer.CodeDeadline, true)
}

// refuse is an accept that refuses with an error.
func refuse(code infer.Code, retryable bool) func(context.Context, *call) error {
	return func(_ context.Context, c *call) error { return c.engine.fault(code, retryable) }
}

func (e *tokenEngine) fault(code infer.Code, retryable bool) *infer.Error {
	return &infer.Error{Code: code, Engine: e.name, Retryable: retryable, Message: "scripted failure"}
}

// Abort implements engine.Generation.
func (c *call) Abort() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.aborts++; c.aborts == 1 {
		c.abortedAt = time.Now()
	}
}

// Released is what engine.Released calls.
func (c *call) Released() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released = true
}

func (c *call) aborted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.aborts > 0
}

// offer pushes one delta.
func (c *call) offer(ids []uint32, finish *infer.Finish) {
	c.mu.Lock()
	c.total += len(ids)
	total := c.total
	c.mu.Unlock()
	c.raw(ids, total, finish)
}

// raw pushes a delta with any count.
func (c *call) raw(ids []uint32, total int, finish *infer.Finish) {
	d := &infer.Delta{Attempt: c.attempt, IDs: ids, Total: total, Received: trace.Now(), Finish: finish}
	if top := c.req.Logprobs; c.scores {
		d.Logprobs = scoreOf(*top, ids)
	}
	c.sink.Offer(d)
}

// send pushes ids and lets the gateway work on them until it waits.
func (c *call) send(ids ...uint32) {
	c.offer(ids, nil)
	synctest.Wait()
}

func ending(reason infer.Reason) *infer.Finish {
	return &infer.Finish{Reason: reason, PromptTokens: -1, CachedTokens: -1}
}

// end pushes the terminal delta with the last ids.
func (c *call) end(reason infer.Reason, ids ...uint32) {
	c.offer(ids, ending(reason))
	synctest.Wait()
}

// fail ends the generation with an error.
func (c *call) fail(code infer.Code, retryable bool, ids ...uint32) {
	f := ending(infer.ReasonError)
	f.Err = c.engine.fault(code, retryable)
	c.offer(ids, f)
	synctest.Wait()
}

// call gives the latest request handed to the engine, of n in all.
func (e *tokenEngine) call(t testing.TB, n int) *call {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.calls) != n {
		t.Fatalf("engine %s was handed %d requests, want %d", e.name, len(e.calls), n)
	}
	if n == 0 {
		return nil
	}
	return e.calls[n-1]
}

// handed gives what the engine was handed. The lock is needed in a bubble, too: what a timer
// starts does not happen after what the test has read, for all that the race detector knows.
func (e *tokenEngine) handed() []*call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

// count is how many requests the engine was handed.
func (e *tokenEngine) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.calls)
}

// relayEngine is a relay that a test plays by hand.
type relayEngine struct {
	beside bool // it serves the built-in model, beside engines that take ids
	name   string
	model  string // the name it knows "relayed" by
	lacks  []infer.Lack
	// reply, when set, refuses or answers; else the answer is a stream of
	// events whose head comes at once.
	reply  func(ctx context.Context, f *forward) (*engine.RelayResponse, error)
	polled bool // its answers can be polled
	most   int  // how many requests it is given at once; 0: nobody knows
	role   infer.Role
	meets  engine.Meets
	unsent bool // its requests are not written

	mu       sync.Mutex
	forwards []*forward
}

// forward is a request that was relayed, and the body of its answer.
type forward struct {
	engine *relayEngine
	req    *engine.RelayRequest
	ctx    context.Context
	chunks chan []byte // what each Read gives; closed at the end
	fault  chan error
	rest   []byte

	mu       sync.Mutex
	closed   bool
	closedAt time.Time
	fd       int // when it is polled
	ready    func(w *drive.Worker, hup bool)
	hup      bool
	// onEmpty runs in a TryRead that finds nothing, before that is known: what
	// happens then is as late in a turn as it can be.
	onEmpty func()
}

var (
	_ engine.Relay  = (*relayEngine)(nil)
	_ engine.Polled = (*forward)(nil)
)

// Forward implements engine.Relay.
func (e *relayEngine) Forward(ctx context.Context, req *engine.RelayRequest, leg *trace.Leg) (*engine.RelayResponse, error) {
	if req.Waits != nil {
		return e.deferred(ctx, req, leg)
	}
	return e.answers(ctx, req, leg)
}

// deferred is Forward where hanging up is held back.
func (e *relayEngine) deferred(ctx context.Context, req *engine.RelayRequest, leg *trace.Leg) (*engine.RelayResponse, error) {
	own, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	d := &deferredBody{ctx: ctx, waits: req.Waits, hangUp: func() { abandon(context.Cause(ctx)) }, came: make(chan deferredRead)}
	type head struct {
		resp *engine.RelayResponse
		err  error
		leg  trace.Leg
	}
	came := make(chan head, 1)
	go func() {
		h := head{leg: *leg}
		h.resp, h.err = e.answers(own, req, &h.leg)
		came <- h
	}()
	select {
	case h := <-came:
		*leg = h.leg
		if h.err != nil {
			req.Waits.End()
			return nil, h.err
		}
		d.forward, h.resp.Body = h.resp.Body.(*forward), d
		return h.resp, nil
	case <-ctx.Done():
		req.Waits.Abort(d.hangUp)
		go func() {
			if h := <-came; h.err == nil {
				d.forward = h.resp.Body.(*forward)
				d.drain()
			} else {
				req.Waits.End()
			}
		}()
		return nil, infer.AsError(context.Cause(ctx))
	}
}

// deferredBody is the body of an answer that is not hung up on before its first byte.
type deferredBody struct {
	*forward
	ctx    context.Context
	waits  *engine.Deferral
	hangUp func()
	begun  bool
	came   chan deferredRead
	asked  bool // a read is under way
}

type deferredRead struct {
	buf []byte
	err error
}

func (d *deferredBody) read() {
	buf := make([]byte, 1<<10)
	n, err := d.forward.Read(buf)
	d.waits.End()
	d.came <- deferredRead{buf[:n], err}
}

func (d *deferredBody) Read(p []byte) (int, error) {
	if d.begun {
		return d.forward.Read(p)
	}
	if !d.asked {
		d.asked = true
		go d.read()
	}
	select {
	case r := <-d.came:
		d.begun = true
		context.AfterFunc(d.ctx, d.hangUp)
		return copy(p, r.buf), r.err
	case <-d.ctx.Done():
		return 0, infer.AsError(context.Cause(d.ctx))
	}
}

// drain reads the first byte away, and hangs up.
func (d *deferredBody) drain() {
	if !d.asked {
		go d.read()
	}
	<-d.came
	d.forward.Close()
	d.hangUp()
}

func (d *deferredBody) Close() error {
	if d.begun {
		return d.forward.Close()
	}
	d.waits.Abort(d.hangUp)
	go d.drain()
	return nil
}

func (e *relayEngine) answers(ctx context.Context, req *engine.RelayRequest, leg *trace.Leg) (*engine.RelayResponse, error) {
	kept := *req
	kept.Header = sent(req, leg)
	f := &forward{engine: e, req: &kept, ctx: ctx, chunks: make(chan []byte, 4096), fault: make(chan error, 1)}
	e.mu.Lock()
	e.forwards = append(e.forwards, f)
	e.mu.Unlock()
	if !e.unsent {
		leg.ToServer = trace.Now()
	}
	if e.reply != nil {
		resp, err := e.reply(ctx, f)
		if err == nil {
			leg.Acked = trace.Now()
		}
		return resp, err
	}
	leg.Acked = trace.Now()
	return f.events(), nil
}

// events answers with a stream of events.
func (f *forward) events() *engine.RelayResponse {
	return f.response(http.StatusOK, "Content-Type", "text/event-stream; charset=utf-8")
}

// response answers with a head; the body is the forward itself.
func (f *forward) response(status int, headers ...string) *engine.RelayResponse {
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	return &engine.RelayResponse{Status: status, Fields: saidFields{h}, Framed: true, Length: -1, Body: f}
}

// saidFields implements engine.Fields.
type saidFields struct{ http.Header }

func (a saidFields) Put(h http.Header) { maps.Copy(h, a.Header) }

// sent are the fields that a relay engine gets.
func sent(req *engine.RelayRequest, leg *trace.Leg) http.Header {
	ends, own := relay.EndToEnd(req, leg)
	h := http.Header{}
	for name, values := range req.Header {
		if !ends.Omits(name) {
			h[name] = slices.Clone(values)
		}
	}
	for _, f := range own {
		if f.Name != "" {
			h.Set(f.Name, f.Value)
		}
	}
	return h
}

// Read implements the answer's body.
func (f *forward) Read(p []byte) (int, error) {
	if len(f.rest) == 0 {
		select {
		case chunk, ok := <-f.chunks:
			if !ok {
				select {
				case err := <-f.fault:
					return 0, err
				default:
					return 0, io.EOF
				}
			}
			f.rest = chunk
		case <-f.ctx.Done():
			return 0, infer.AsError(f.ctx.Err())
		}
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

// memFDs are the descriptors of answers in memory.
var memFDs struct {
	mu   sync.Mutex
	last int
	open map[int]*forward
}

// Detach implements engine.Polled.
func (f *forward) Detach() (fd int, ok bool) {
	if !f.engine.polled {
		return -1, false
	}
	memFDs.mu.Lock()
	defer memFDs.mu.Unlock()
	memFDs.last++
	if memFDs.open == nil {
		memFDs.open = map[int]*forward{}
	}
	f.fd = memFDs.last
	memFDs.open[f.fd] = f
	return f.fd, true
}

// TryRead implements engine.Polled: like a socket it gives all that is there,
// and the end by itself.
func (f *forward) TryRead(p []byte) (n int, drained bool, err error) {
	for n < len(p) {
		if len(f.rest) == 0 {
			select {
			case chunk, ok := <-f.chunks:
				if ok {
					f.rest = chunk
					continue
				}
				if n > 0 {
					return n, true, nil
				}
				select {
				case err := <-f.fault:
					f.fault <- err // again when asked again
					return 0, false, err
				default:
					return 0, false, io.EOF
				}
			default:
				if do := f.onEmpty; do != nil && n == 0 {
					f.onEmpty = nil
					do()
				}
				return n, true, nil
			}
		}
		k := copy(p[n:], f.rest)
		n, f.rest = n+k, f.rest[k:]
	}
	return n, false, nil
}

// memPolls polls answers in memory, edge by edge.
type memPolls struct{}

func (memPolls) Poll(fd int, ready func(w *drive.Worker, hup bool)) (stop func(), err error) {
	memFDs.mu.Lock()
	f := memFDs.open[fd]
	memFDs.mu.Unlock()
	f.mu.Lock()
	f.ready = ready
	f.mu.Unlock()
	go f.notify() // what is there already is an edge
	return func() {
		f.mu.Lock()
		f.ready = nil
		f.mu.Unlock()
		memFDs.mu.Lock()
		delete(memFDs.open, fd)
		memFDs.mu.Unlock()
	}, nil
}

// memDriver has workers that count what nobody looks at.
var memDriver = drive.New(&drive.Options{Batch: new(drive.Batch)}, -1, 0, nil, drive.Sockets{}, nil, metrics.New(), nil, nil)

// notify is an edge.
func (f *forward) notify() {
	f.mu.Lock()
	ready, hup := f.ready, f.hup
	f.mu.Unlock()
	if ready != nil {
		ready(memDriver.NewWorker(), hup)
	}
}

// Close implements the answer's body.
func (f *forward) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ready != nil {
		panic("closed while it is polled")
	}
	if !f.closed {
		f.closed, f.closedAt = true, time.Now()
	}
	return nil
}

func (f *forward) abandoned() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// send gives the gateway's next reads something.
func (f *forward) send(parts ...string) {
	for _, p := range parts {
		f.chunks <- []byte(p)
	}
	f.notify()
	synctest.Wait()
}

// end ends the body cleanly.
func (f *forward) end() {
	f.close()
	synctest.Wait()
}

// put sends bytes; notified says that the poller learns of them now.
func (f *forward) put(s string, notified bool) {
	f.chunks <- []byte(s)
	if notified {
		f.notify()
	}
}

// close ends the engine's side.
func (f *forward) close() {
	close(f.chunks)
	f.mu.Lock()
	f.hup = true
	f.mu.Unlock()
	f.notify()
}

// fail breaks the body after what was sent.
func (f *forward) fail(retryable bool) {
	f.fault <- f.engine.fault(retryable)
	f.end()
}

func (e *relayEngine) fault(retryable bool) *infer.Error {
	return &infer.Error{Code: infer.CodeEngine, Engine: e.name, Retryable: retryable, Message: "scripted break"}
}

// handed gives what the relay was handed.
func (e *relayEngine) handed() []*forward {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.forwards)
}

// forward gives the latest request relayed, of n in all.
func (e *relayEngine) forward(t testing.TB, n int) *forward {
	t.Helper()
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.forwards) != n {
		t.Fatalf("relay %s was handed %d requests, want %d", e.name, len(e.forwards), n)
	}
	if n == 0 {
		return nil
	}
	return e.forwards[n-1]
}
