package gateway

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"sync/atomic"
	"time"

	"weir/internal/dialect"
	"weir/internal/fleet/admission"
	"weir/internal/gateway/answer"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/drive"
	"weir/internal/gateway/front"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/internal/trace"
)

// exchange is one request on its way through the stages. It belongs to the one
// goroutine that serves the request, or has its turn.
type exchange struct {
	stream drive.Stream
	g      *Gateway
	try    attempt.Attempt

	spends   tenancy.Spending
	rid      string          // the caller's own id of it, by which it may be aborted
	caller   *tenancy.Caller // who sends the request; never nil
	endpoint dialect.Endpoint
	room     admission.Body // the share of its body in what bodies may take
	uncount  func()         // ends its count as a client's; nil: its connection counts
	prepared prepare.Prepared
	need     place.Need  // as the fleet is now, and as what became of attempts has changed it
	expiry   *time.Timer // ends ctx when the whole request must be over; nil: never
}

// start opens the exchange and its record.
func (g *Gateway) start(w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{g: g}
	g.driver.Open(&x.stream, x)
	g.attempts.Open(&x.try, &x.stream, &x.prepared, &x.need)
	g.front.Open(&x.stream.Response, w, r)
	x.endpoint = g.preparer.Endpoint(r.URL.Path)
	g.recorder.Open(&x.stream.Record, g.ids.request(), r.Header, x.stream.Response.Arrival())
	x.stream.Record.RequestID, x.stream.Record.Endpoint = requestID(r.Header.Get("X-Request-Id"), x.stream.Record.ID), r.URL.Path
	x.stream.Record.PendingAtArrival = int32(g.Pending())
	caller, err := g.preparer.Caller(r)
	x.caller, x.stream.Err = caller, infer.AsError(err)
	x.stream.Record.Key, x.stream.Record.Tenant = dialect.Clip(x.caller.Key, maxCaller), dialect.Clip(x.caller.Tenant, maxCaller)
	x.stream.Record.Client = g.front.Client(r)
	if g.leaving.Load() || x.stream.Response.Ambiguous() {
		r.Close = true // and nothing that follows on the connection is taken for a request
		w.Header().Set("Connection", "close")
	}
	g.front.Heed(&x.stream.Response, func() { x.End(nil) })
	if bound := g.opts.Front.RequestTimeout; bound > 0 {
		x.expiry = time.AfterFunc(bound-time.Duration(trace.Now()-x.stream.Record.Arrival), func() { x.End(front.Expired(bound)) })
	}
	g.recorder.Enter(x)
	if g.base.Err() != nil { // Cut may not have found it
		x.End(context.Cause(g.base))
	}
	setRequestID(w.Header(), x.endpoint, x.stream.Record.RequestID)
	g.opts.Metrics.Received(g.preparer.Services.Label(r.URL.Path))
	x.stream.Record.Delay(trace.Read)
	return x
}

// open decides on the response's head, by the first part of the answer.
func (x *exchange) open(first answer.Part) {
	h := x.stream.Response.Served.Writer.Header()
	status, events := x.stream.Leg.Head(h, first)
	setRequestID(h, x.endpoint, x.stream.Record.RequestID)
	x.stream.Record.PutTiming(h)
	x.begin(status, events)
}

// begin begins the response. From here on the request cannot be retried.
func (x *exchange) begin(status int, events bool) {
	x.stream.Response.Begin(status, events)
	x.stream.Record.Status = int32(status)
	x.prepared.Forget()
	x.prepared.ForgetAsking()
	x.room.Leave()
}

// Begins implements drive.Owner.
func (x *exchange) Begins(part answer.Part) (out []byte, err error) {
	begun := x.stream.Response.Begun
	if out, err = x.try.Begins(part); err == nil && !begun {
		x.open(part)
	}
	return out, err
}

// Parked implements record.Stream.
func (x *exchange) Parked() bool { return x.stream.Parked() }

// Tokens implements record.Stream.
func (x *exchange) Tokens() (n int, ok bool) {
	if x.stream.Record.IsDriven() {
		if !x.stream.Hold() {
			return 0, false // somebody else has its turn
		}
		n = x.try.Tokens()
		x.stream.Release()
		return n, true
	}
	if box := x.try.Mailbox(); box != nil {
		return box.Received()
	}
	return 0, false
}

// Account implements record.Stream.
func (x *exchange) Account() *record.Request { return &x.stream.Record }

// End ends the request's context, and what waits for the client. No cause means that the client
// has hung up. It implements record.Stream.
func (x *exchange) End(cause error) {
	x.stream.Ctx.End(cause)
	x.try.Wake()
	within := -time.Second
	if cause != nil {
		within = front.LastWords
	}
	x.stream.Response.BreakOff(within)
}

// gone is why a request's context has ended.
func gone(ctx context.Context) error { return infer.AsError(context.Cause(ctx)) }

// requestIDs makes ids that are unique over gateways and restarts and all of
// one length, because some engines match aborts by prefix.
type requestIDs struct {
	instance string
	count    atomic.Uint64
}

func newRequestIDs() *requestIDs {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return &requestIDs{instance: hex.EncodeToString(b[:])}
}

func (ids *requestIDs) next() string { return ids.make("") }

// make makes an id with a short prefix.
func (ids *requestIDs) make(prefix string) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], ids.count.Add(1))
	var buf [64]byte
	id := append(append(buf[:0], prefix...), ids.instance...)
	return string(hex.AppendEncode(id, b[2:]))
}

// request makes the id of a request.
func (ids *requestIDs) request() string { return ids.make("req-") }

// requestID returns the client's id if it can be used unchanged in headers and logs,
// and otherwise a new one. Other callers may use the same id, so it is not sent to
// engines.
func requestID(given, own string) string {
	if given == "" || len(given) > 128 {
		return own
	}
	for _, c := range []byte(given) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '-', c == '_', c == '.', c == ':':
		default:
			return own
		}
	}
	return given
}

// setRequestID puts a request's id into a response's head: where every caller
// finds it, and where those of the endpoint's dialect look for it.
func setRequestID(h http.Header, e dialect.Endpoint, id string) {
	if v := h["X-Request-Id"]; len(v) != 1 || v[0] != id {
		h["X-Request-Id"] = []string{id}
	}
	if field := e.Traits().RequestIDField; field != "" {
		h.Set(field, id)
	}
}

// maxCaller bounds the names of keys and tenants in records, in bytes.
const maxCaller = 128
