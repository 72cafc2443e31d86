// Package front is how clients reach the gateway: it accepts connections, by TLS and HTTP/2
// too, reads plain requests itself and has net/http read the others, and writes the responses.
// It knows neither engines nor models.
//
// A request begins in a handler, which opens its Response. It is written by a Carrier: over
// net/http or a writer like it first, and for a stream that has left that, over the bare
// connection (Response.Detach).
package front

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"weir/internal/fleet/admission"
	"weir/internal/gateway/freelist"
	"weir/internal/infer"
	"weir/internal/observe/logs"
	"weir/internal/observe/metrics"
)

// Options configure what a client sees of its connection.
type Options struct {
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
}

// Defaults replaces the zero values that mean another one.
func (o *Options) Defaults() {
	o.MaxBody = cmp.Or(o.MaxBody, 32<<20)
	o.MaxBodyMemory = cmp.Or(o.MaxBodyMemory, 1<<30)
	o.BodyTimeout = cmp.Or(o.BodyTimeout, 30*time.Second)
	o.UploadTimeout = cmp.Or(o.UploadTimeout, 5*time.Minute)
	o.UploadRate = cmp.Or(o.UploadRate, 4096)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
}

// Front is what the connections of a gateway's clients have in common.
type Front struct {
	// Hangups notices that clients have hung up.
	Hangups Watcher

	opts       *Options
	metrics    *metrics.Metrics
	log        *slog.Logger
	base       context.Context // of each request; its end ends the reading of bodies that nobody wants
	conns      *admission.Conns
	handshakes handshakes
	buffers    *freelist.List[*[]byte]
	tidy       *tidy
	returned   *ReturnedConns

	starving  *logs.Throttle // of descriptors
	crowded   *logs.Throttle // by connections
	resetting *logs.Throttle // by streams of HTTP/2 that are reset as they begin
	failing   *logs.Throttle // handshakes
}

// New makes a front for a number of cores. Base is the context of each request.
func New(o *Options, m *metrics.Metrics, log *slog.Logger, base context.Context, hangups Watcher, cores int) *Front {
	return &Front{
		Hangups: hangups, opts: o, metrics: m, log: log, base: base, conns: admission.NewConns(o.Conns), handshakes: newHandshakes(cores),
		buffers: newBuffers(), tidy: newTidy(), returned: newReturnedConns(o.BodyTimeout),
		starving: logs.NewThrottle(log), crowded: logs.NewThrottle(log), resetting: logs.NewThrottle(log), failing: logs.NewThrottle(log),
	}
}

// ServePlain has the front serve plain requests to paths by a handler. The server's handler
// serves the others.
func (f *Front) ServePlain(handler http.Handler, paths iter.Seq[string]) {
	f.returned.direct = newDirect(f, handler, paths)
}

// Conns returns the counts of connections.
func (f *Front) Conns() admission.ConnStats { return f.conns.Stats() }

// Unread returns how many connections were accepted since a time and have had no request yet.
func (f *Front) Unread(since time.Time) int { return f.conns.Fresh(since) }

// Detached returns how many streams have left net/http since their garbage was collected last.
func (f *Front) Detached() int {
	f.tidy.mu.Lock()
	defer f.tidy.mu.Unlock()
	return f.tidy.left
}

// Close closes the connections that wait for their next request.
func (f *Front) Close() { f.returned.Close() }

// Wait waits for the goroutines that serve plain requests.
func (f *Front) Wait() {
	f.returned.direct.serving.Wait()
	f.tidy.stop()
}

// Server returns an http.Server for the handler of the API with its bounds set. It speaks
// HTTP/1.1, and HTTP/2 over TLS. It must serve Returned beside its listeners, or
// streams stay with net/http.
func (f *Front) Server(handler http.Handler) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	server := &http.Server{
		Handler:           f.HTTP1Only(handler),
		ConnContext:       ConnContext,
		ConnState:         f.connState,
		ErrorLog:          f.serverErrors(),
		ReadHeaderTimeout: f.opts.BodyTimeout,
		IdleTimeout:       KeepAliveTimeout,
		MaxHeaderBytes:    64 << 10,
		Protocols:         protocols,
		HTTP2:             http2Config(f.opts.WriteTimeout),
		// net/http would answer OPTIONS * behind the request's body, without a bound of time.
		DisableGeneralOptionsHandler: true,
	}
	var once sync.Once
	server.BaseContext = func(net.Listener) context.Context {
		once.Do(func() { f.takeHTTP2(server) }) // net/http has set up its HTTP/2 by now
		return context.Background()
	}
	return server
}

// sentAway reports a connection that was told to go away.
func (f *Front) sentAway(why error) {
	f.metrics.SentAway()
	f.resetting.Error("a client's HTTP/2 connection was told to go away", why)
}

// Returned is the listener of connections whose streams left net/http and have
// ended.
func (f *Front) Returned() *ReturnedConns { return f.returned }

// Client returns the address of a request's client, as far as it is known.
func (f *Front) Client(r *http.Request) netip.Addr {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return f.opts.Proxies.Client(peer.Addr().Unmap(), r.Header["X-Forwarded-For"])
}

// Admit counts a request as its client's, if it comes through a proxy, whose
// connections are many clients'. done, which may be nil, is called at its end.
func (f *Front) Admit(client netip.Addr, remote string) (done func(), err error) {
	if f.opts.Conns.PerClient == 0 || !client.IsValid() || f.opts.Proxies.Trusts(client) {
		return nil, nil
	}
	if peer, err := netip.ParseAddrPort(remote); err != nil || !f.opts.Proxies.Trusts(peer.Addr()) {
		return nil, nil
	}
	if done, err = f.conns.Request(client); err != nil {
		return nil, &infer.Error{Code: infer.CodeOverloaded, RetryAfter: time.Second, Reason: "max_connections_per_client", Message: err.Error() + "; try again later"}
	}
	return done, nil
}
