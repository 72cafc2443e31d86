package gateway

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"weir/internal/dialect"
	"weir/internal/gateway/record"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/trace"
)

// exchange is one request on its way through the stages. It belongs to the one
// goroutine that serves the request, or has its turn.
type exchange struct {
	// Fields that each turn of a stream uses are together, because with thousands of
	// streams each of their cache lines is a miss.
	turns
	g         *Gateway
	rec       record.Request
	ctx       lifetime.Context // ends when the client hangs up, or at Cut: by end
	abortable abortable
	gathers   *gathering // nil: there is no flush interval, or nothing was written yet
	attempt
	response response

	spends  spending
	err     *infer.Error    // how the request ended
	mailbox *stream.Mailbox // of all attempts; token engines only
	request
	routing
	continuing
	expiry *time.Timer // ends ctx when the whole request must be over; nil: never
}

// start opens the exchange and its record.
func (g *Gateway) start(w http.ResponseWriter, r *http.Request) *exchange {
	c := connOf(r.Context())
	if direct, ok := w.(*directWriter); ok {
		c = direct.conn
	}
	x := &exchange{g: g}
	x.endpoint = g.endpointOf(r.URL.Path)
	g.recorder.Open(&x.rec, g.ids.request(), r.Header, arrival(w, c))
	x.rec.RequestID, x.rec.Endpoint = requestID(first(r.Header, "X-Request-Id"), x.rec.ID), r.URL.Path
	x.rec.PendingAtArrival = int32(g.Pending())
	caller, err := g.callerOf(r)
	x.caller, x.unknown, x.err = caller, err != nil, infer.AsError(err)
	x.rec.Key, x.rec.Tenant = dialect.Clip(x.caller.Key, maxCaller), dialect.Clip(x.caller.Tenant, maxCaller)
	carrier := &httpCarrier{front: front{w: w, rc: *http.NewResponseController(w), r: r}, spare: g.buffers}
	x.response = response{carrier: carrier, conn: c, front: &carrier.front}
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		x.rec.Client = g.opts.Front.Proxies.Client(peer.Addr().Unmap(), r.Header["X-Forwarded-For"])
	}
	if g.leaving.Load() || len(r.TransferEncoding) > 0 && c.ambiguous() {
		r.Close = true // and nothing that follows on the connection is taken for a request
		w.Header().Set("Connection", "close")
	}
	x.response.heed(g, func() { x.End(nil) })
	if bound := g.opts.Front.RequestTimeout; bound > 0 {
		x.expiry = time.AfterFunc(bound-time.Duration(trace.Now()-x.rec.Arrival), func() { x.End(expired(bound)) })
	}
	g.recorder.Enter(x)
	if g.base.Err() != nil { // Cut may not have found it
		x.End(context.Cause(g.base))
	}
	setRequestID(w.Header(), x.endpoint, x.rec.RequestID)
	g.opts.Metrics.Received(g.services.label(r.URL.Path))
	x.rec.Delay(trace.Read)
	return x
}

// Account implements record.Stream.
func (x *exchange) Account() *record.Request { return &x.rec }

// End ends the request's context, and what waits for the client. No cause means that the client
// has hung up. It implements record.Stream.
func (x *exchange) End(cause error) {
	x.ctx.End(cause)
	x.abortable.wake()
	within := -time.Second
	if cause != nil {
		within = lastWords
	}
	if x.response.conn == nil { // a write over HTTP/2 may be under way, for which this would wait
		go x.response.breaking.breakOff(within)
		return
	}
	x.response.breaking.breakOff(within)
}

// arrival is when the request's first byte came, as far as that is known.
func arrival(w http.ResponseWriter, c *conn) int64 {
	if s, ok := w.(*http2Writer); ok {
		return s.arrival
	}
	return c.arrival()
}

// breakable is a ResponseWriter that bounds its writes by what ends them; nil: nothing does.
type breakable interface{ boundBy(*breaking) }

// heed has hungUp called when the client hangs up, and a write that waits for the
// client end by breaking.
func (r *response) heed(g *Gateway, hungUp func()) {
	if r.conn == nil {
		r.breaking.begin(&r.rc)
		r.stopFollowing = context.AfterFunc(r.r.Context(), hungUp)
		return
	}
	r.breaking.begin(r.conn)
	if w, ok := r.w.(breakable); ok {
		w.boundBy(&r.breaking)
	}
	err := r.conn.follow(g.hangups, hungUp)
	r.watched = err == nil
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		g.starved("watch", err)
	}
	if !r.watched || r.conn.tls { // whose end may come before the socket's
		r.stopFollowing = context.AfterFunc(r.r.Context(), hungUp)
	}
}

// admitClient counts the request as its client's, if it comes through a proxy, whose
// connections are many clients'. done, which may be nil, is called at its end.
func (g *Gateway) admitClient(client netip.Addr, remote string) (done func(), err error) {
	if g.opts.Front.Conns.PerClient == 0 || !client.IsValid() || g.opts.Front.Proxies.Trusts(client) {
		return nil, nil
	}
	if peer, err := netip.ParseAddrPort(remote); err != nil || !g.opts.Front.Proxies.Trusts(peer.Addr()) {
		return nil, nil
	}
	if done, err = g.conns.Request(client); err != nil {
		return nil, &infer.Error{Code: infer.CodeOverloaded, RetryAfter: time.Second, Reason: "max_connections_per_client", Message: err.Error() + "; try again later"}
	}
	return done, nil
}

// expired is why a request ends that has taken too long.
func expired(bound time.Duration) *infer.Error {
	return infer.Errorf(infer.CodeExpired, "the request took longer than %v (--request-timeout)", bound)
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
