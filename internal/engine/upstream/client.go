// Package upstream is the HTTP/1.1 client that adapters reach their engines
// with. It is made for thousands of answers that stay open for minutes and
// arrive a few bytes at a time.
package upstream

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"weir/internal/engine"
	"weir/internal/engine/access"
	"weir/internal/infer"
	"weir/internal/lifetime"
	"weir/internal/trace"
	"weir/internal/wire/http1"
)

// Options configure the client of one engine. URL is needed.
type Options struct {
	URL *url.URL // scheme, host and an optional base path
	// ConnectTimeout bounds connecting, TLS included; 0 means 5 s.
	ConnectTimeout time.Duration
	// HeadTimeout bounds the wait for a response's head; 0 means 10 min.
	HeadTimeout time.Duration
	// ReadTimeout bounds the reading of a page of the engine's; 0 means 5 s.
	ReadTimeout time.Duration
	// Access is what the engine is shown and known by.
	Access *access.Access
	// Panicked is called for panics while the engine's output is processed, each of
	// which ends only one exchange; it may be nil.
	Panicked func(*infer.Panic)
}

// Client is the HTTP/1.1 client of one engine. An exchange runs in its
// caller's goroutine alone, down to the read from the socket, because
// thousands of them are open at once and each token passes here: a second
// goroutine would cost a wake-up per event, and a buffer per stream more
// memory than all else. Two moments are left to others: context.AfterFunc
// closes the connection when the caller gives up, and what an engine does not
// take of a large body at once is written by a goroutine that the response's
// body waits for.
type Client struct {
	network, addr  string
	host           string                  // as the engine is addressed
	prefix         string                  // of every path
	name           string                  // that the server's certificate is for; empty: there is no TLS
	tls            atomic.Pointer[secured] // of the connections that are made
	access         *access.Access
	panicked       func(*infer.Panic)
	dialer         net.Dialer
	unbound        net.Dialer // without a timeout
	literal        bool       // the host is an address, and no name to resolve
	connectTimeout time.Duration
	headTimeout    time.Duration
	readTimeout    time.Duration
	pool           pool
	spare          *buffers // spares
	dials          atomic.Uint64
	readOver       atomic.Uint64 // the number of a connection
	life           atomic.Uint64 // counts the processes that have ended, as far as was noticed
	doubt          chan struct{} // has one when a connection ended in a way in which a process's end would end it
}

// idleTime is how long a connection is kept for the next request. Python's
// HTTP servers close theirs after 5 s; to be first spares requests that cross
// with the closing. An engine that says that it closes them sooner is left sooner.
const idleTime = 4 * time.Second

// keepAlive is how long an engine that says when it closes an idle connection
// ("Keep-Alive: timeout=5", in seconds) is given another request on it; 0 when it does
// not say.
func keepAlive(said http1.Fields) time.Duration {
	for field := range said.Values("Keep-Alive") {
		for part := range strings.SplitSeq(field, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
			if seconds, err := strconv.ParseUint(value, 10, 16); err == nil && strings.EqualFold(name, "timeout") {
				return max(time.Duration(seconds)*time.Second-time.Second, time.Second/2)
			}
		}
	}
	return 0
}

// keepAliveProbes is the time between the probes that TCP sends over a connection on which
// nothing comes.
const keepAliveProbes = 15 * time.Second

// maxIdle bounds the connections kept. Every live stream holds one; when a
// burst ends they are worth keeping for the next.
const maxIdle = 4096

// New makes a client; it connects when first used.
func New(opts Options) *Client {
	if opts.ConnectTimeout == 0 {
		opts.ConnectTimeout = 5 * time.Second
	}
	if opts.HeadTimeout == 0 {
		opts.HeadTimeout = 10 * time.Minute
	}
	u := opts.URL
	c := &Client{
		network: "tcp", addr: address(u), host: authority(u), access: opts.Access, panicked: opts.Panicked,
		prefix:         strings.TrimSuffix(u.EscapedPath(), "/"),
		dialer:         net.Dialer{Timeout: opts.ConnectTimeout, KeepAlive: keepAliveProbes},
		unbound:        net.Dialer{KeepAlive: keepAliveProbes},
		literal:        net.ParseIP(u.Hostname()) != nil,
		connectTimeout: opts.ConnectTimeout,
		headTimeout:    opts.HeadTimeout,
		readTimeout:    cmp.Or(opts.ReadTimeout, 5*time.Second),
		pool:           pool{max: maxIdle, keep: idleTime},
		spare:          &spares,
		doubt:          make(chan struct{}, 1),
	}
	if u.Scheme == "https" {
		c.name = u.Hostname()
	}
	return c
}

// secured is a configuration that was made of that of the access.
type secured struct{ of, config *tls.Config }

// secure returns the configuration of the next connection over TLS. It is another one, without
// sessions to go on with, only if that of the access is.
func (c *Client) secure() *tls.Config {
	of := c.access.TLS()
	if s := c.tls.Load(); s != nil && s.of == of {
		return s.config
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if of != nil {
		config = of.Clone()
	}
	config.ServerName = cmp.Or(config.ServerName, c.name)
	config.NextProtos = []string{"http/1.1"}
	if config.ClientSessionCache == nil {
		config.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	}
	c.tls.Store(&secured{of, config})
	return config
}

// address returns what to dial for a URL.
func address(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = "80"
		if u.Scheme == "https" {
			port = "443"
		}
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// authority returns the Host field for a URL. The zone of an IPv6 address means nothing
// to the other side (RFC 6874).
func authority(u *url.URL) string {
	if from := strings.IndexByte(u.Host, '%'); from >= 0 {
		if to := strings.LastIndexByte(u.Host, ']'); to > from {
			return u.Host[:from] + u.Host[to:]
		}
	}
	return u.Host
}

// ReadTimeout is the longest time that the reading of a page takes.
func (c *Client) ReadTimeout() time.Duration { return c.readTimeout }

// URL returns the whole address of a path, for messages.
func (c *Client) URL(path string) string {
	scheme := "http"
	if c.name != "" {
		scheme = "https"
	}
	return scheme + "://" + c.host + c.prefix + path
}

// Request is one to send. Its leg takes the stamps.
type Request struct {
	Method, Path string // the path with the query
	Header       http.Header
	Omit         func(name string) bool // which of Header's are not sent; nil: none
	Own          [3]http1.Field         // sent in place of Header's; without a name: none
	Fields       string                 // further ones, as lines
	Body         []byte
	Leg          *trace.Leg
	// Alone gives it a connection of its own, which is not used again.
	Alone bool
	// Reading marks a GET by which the engine is watched: it may use a connection that has been
	// idle for longer than others may trust.
	Reading bool
	// Waits holds back that its connection is closed before its answer begins; nil: nothing does.
	Waits *engine.Deferral
}

// Response is an answer whose head was read. Body must be closed.
type Response struct {
	http1.Response
	Body *Body
}

// TakeBody returns the body and lets go of the head, which its caller has read.
func (r *Response) TakeBody() *Body {
	r.Response = http1.Response{}
	return r.Body
}

// errUnused is behind the errors of a reused connection that turned out to be
// closed before the engine had anything of the request.
var errUnused = errors.New("the connection was closed before it was used again")

// Do sends a request and waits for the head of its answer. Between two
// requests an engine may close a connection at the moment the second one is
// sent; that is no failure of the engine, and such a request is sent once
// more, on a connection of its own.
//
// That is all that is sent twice. An engine that closes a connection after it had
// something of the request may have begun with it, or have died of it: what is to be
// done then is the caller's to decide. A request that changes nothing, a GET, is sent
// once more whatever became of it.
func (c *Client) Do(ctx context.Context, req *Request) (*Response, error) {
	head, err := c.render(req)
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		c.spare.give(head)
		return nil, context.Cause(ctx)
	}
	var cn *conn
	if req.Reading {
		cn = c.pool.takeKept()
	}
	if cn == nil && !req.Alone {
		cn = c.pool.next()
	}
	for cn != nil {
		cn.reading = req.Reading
		resp, err := c.exchange(ctx, cn, head, req)
		if err == errGone {
			cn = c.pool.next()
			continue
		}
		if !errors.Is(err, errUnused) {
			return resp, err
		}
		if head, err = c.render(req); err != nil {
			return nil, err
		}
		break
	}
	cn, err = c.dial(ctx)
	if err != nil {
		c.doubts(req)
		c.spare.give(head)
		return nil, ended(ctx, err)
	}
	cn.reading = req.Reading
	return c.exchange(ctx, cn, head, req)
}

// render writes the request's head into a borrowed buffer.
func (c *Client) render(req *Request) (*buffer, error) {
	b := c.spare.take()
	head := http1.Request{Method: req.Method, Target: c.prefix + req.Path, Host: c.host,
		Header: req.Header, Omit: req.Omit, Own: [4]http1.Field{req.Own[0], req.Own[1], req.Own[2]}, Fields: req.Fields, Length: int64(len(req.Body))}
	if key := c.access.Authorization(); key != "" {
		head.Own[3] = http1.Field{Name: "Authorization", Value: key}
	}
	text, err := head.Append(b.data[:0])
	if err != nil {
		c.spare.give(b)
		return nil, &infer.Error{Code: infer.CodeInvalid, Cause: err,
			Message: "the request cannot be passed on to an engine: a header or the path holds what HTTP does not allow"}
	}
	b.data = text
	return b, nil
}

// dial makes a connection.
func (c *Client) dial(ctx context.Context) (*conn, error) {
	late := time.Now().Add(c.connectTimeout)
	plain, err := c.connect(ctx, late)
	if err != nil {
		if timedOut(err) {
			err = fmt.Errorf("no connection within %v (--connect-timeout): %w", c.connectTimeout, err)
		}
		return nil, err
	}
	cn, err := newConn(plain)
	if err == nil {
		cn.count()
	}
	if err == nil && c.name != "" {
		ctx, cancel := context.WithDeadline(ctx, late)
		defer cancel()
		err = cn.handshake(ctx, c.secure())
	}
	if err != nil {
		_ = plain.Close()
		return nil, err
	}
	cn.fresh, cn.number = true, c.dials.Add(1)
	return cn, nil
}

// connect makes a connection's socket.
func (c *Client) connect(ctx context.Context, late time.Time) (net.Conn, error) {
	whole := lifetime.Of(ctx)
	if whole == nil || !c.literal {
		return c.dialer.DialContext(ctx, c.network, c.addr)
	}
	d := &dialing{late: late}
	d.Part.Of(whole)
	defer d.End(nil)
	return c.unbound.DialContext(d, c.network, c.addr)
}

// dialing is the context in which a connection to an address is made. It has a deadline and does
// not end by it: package net ends what it does at the deadline itself, and resolves no name here.
// A context that ends by a timer would leave a timer, a channel and a map in the request's context
// for as long as its stream waits for the engine.
type dialing struct {
	lifetime.Part
	late time.Time
}

// Deadline implements context.Context.
func (d *dialing) Deadline() (time.Time, bool) { return d.late, true }

// doubts has the engine looked at soon, because a request found that it has closed a connection, or
// refuses one: another process may be there. A reading, which is such a look, raises no doubts.
func (c *Client) doubts(req *Request) {
	if req != nil && req.Reading {
		return
	}
	select {
	case c.doubt <- struct{}{}:
	default:
	}
}

// exchange sends a request on a connection and reads the head of its answer.
// The connection is the response's, or closed. The head's buffer is given back
// once it is sent, unless errGone says that nothing was.
func (c *Client) exchange(ctx context.Context, cn *conn, head *buffer, req *Request) (_ *Response, failed error) {
	stop := cn.follow(ctx, req.Waits != nil)
	defer func() {
		if p := infer.Caught(recover(), c.panicked); p != nil {
			stop()
			cn.abort()
			req.Waits.End()
			failed = p.Failed("")
		}
	}()
	up, err := c.send(cn, head, req.Body)
	if err == errGone {
		c.pool.closed(cn.rested)
		c.doubts(req)
		stop()
		cn.abort()
		return nil, err
	}
	req.Leg.ToServer = up.written.Load()
	in := reader{conn: cn, spare: c.spare}
	var resp http1.Response
	if err == nil {
		resp, err = in.head()
	}
	if err == nil && cn.secure {
		err = cn.bound(0)
	}
	req.Leg.Acked = in.first
	if err != nil && req.Waits != nil && timedOut(err) {
		(&Body{ctx: ctx, client: c, in: in, up: up, stop: stop, waits: req.Waits, headless: true}).linger()
		return nil, ended(ctx, err)
	}
	if err != nil {
		closed := !cn.fresh && in.first == 0 && ctx.Err() == nil && !timedOut(err)
		if closed {
			c.pool.closed(cn.rested)
			c.doubts(req)
		}
		again := closed && (req.Method == http.MethodGet || cn.unread(err))
		stop()
		cn.abort()
		up.wait()
		if req.Leg.ToServer == 0 { // who gives up is to know whether the engine may have it
			req.Leg.ToServer = up.written.Load()
		}
		in.release()
		if up.err != nil && in.first == 0 {
			err = up.err
		}
		if again {
			err = fmt.Errorf("%w: %w", errUnused, err)
		} else {
			req.Waits.End()
		}
		return nil, ended(ctx, err)
	}
	if req.Leg.ToServer == 0 && up.finished(time.Millisecond) {
		req.Leg.ToServer = up.written.Load()
	}
	cn.keep = keepAlive(resp.Fields)
	if req.Reading {
		c.readOver.Store(cn.number)
	}
	r := &struct { // one allocation
		Response
		body Body
	}{
		Response: Response{Response: resp},
		body: Body{ctx: ctx, client: c, in: in, up: up, stop: stop, framing: resp.Framing, left: resp.Length, waits: req.Waits,
			reusable: !resp.Close && up.err == nil && !req.Alone},
	}
	r.Body = &r.body
	return &r.Response, nil
}

// send sends a request, and bounds the wait for its answer. err is that of the bound, or errGone.
func (c *Client) send(cn *conn, head *buffer, body []byte) (up *upload, err error) {
	if cn.secure {
		up = cn.sendSecure(head.data, body)
		c.spare.give(head)
	} else {
		err = cn.bound(c.headTimeout)
		var failed error
		if up, failed = cn.ask(head, body, c.spare); failed != nil {
			return up, failed
		}
	}
	switch {
	case up.err != nil: // The engine closed. It may have said why before it did.
		err = cn.bound(time.Second)
	case cn.secure:
		err = cn.bound(c.headTimeout)
	}
	return up, err
}

// ended returns the reason why a caller gave up, where that is what failed.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func timedOut(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}

// reader reads from a connection what is there. It holds a buffer only while
// there are bytes in it that nobody has taken yet.
type reader struct {
	conn  *conn
	spare *buffers
	buf   *buffer
	rest  []byte // of buf, not taken yet
	first int64  // when the answer's first byte was read
}

func (r *reader) release() {
	if r.buf != nil {
		r.spare.give(r.buf)
		r.buf, r.rest = nil, nil
	}
}

// more reads on, behind the rest.
func (r *reader) more() error {
	if r.buf == nil {
		b, n, err := r.conn.await(r.spare)
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
		if r.first == 0 {
			r.first = trace.Now()
		}
		r.buf, r.rest = b, b.data[:n]
		return nil
	}
	n := len(r.rest)
	if n == len(r.buf.data) {
		larger := &buffer{make([]byte, min(2*n, http1.MaxHead))}
		copy(larger.data, r.rest)
		r.spare.give(r.buf)
		r.buf = larger
	} else {
		copy(r.buf.data, r.rest)
	}
	k, err := r.conn.Read(r.buf.data[n:])
	r.rest = r.buf.data[:n+k]
	if k > 0 {
		return nil // an error comes again
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

var (
	errLargeHead = &http1.Error{What: "the response head is too large"}
	errSwitch    = &http1.Error{What: "the answer switches to a protocol nobody asked for"}
)

// head reads the head of the answer, past informational ones.
func (r *reader) head() (http1.Response, error) {
	budget, seen := http1.MaxHead, 0
	for {
		if len(r.rest) == seen {
			if seen >= budget {
				return http1.Response{}, errLargeHead
			}
			if seen == 0 {
				r.release()
			}
			if err := r.more(); err != nil {
				return http1.Response{}, err
			}
		}
		n, err := http1.HeadLen(r.rest, seen)
		if err != nil {
			return http1.Response{}, err
		}
		if n > budget {
			return http1.Response{}, errLargeHead
		}
		if n == 0 {
			seen = len(r.rest)
			continue
		}
		resp, err := http1.ParseResponse(r.rest[:n])
		if err != nil {
			return http1.Response{}, err
		}
		r.rest, seen, budget = r.rest[n:], 0, budget-n
		if !resp.Informational() {
			if len(r.rest) == 0 {
				r.release()
			}
			return resp, nil
		}
		if resp.Status == http.StatusSwitchingProtocols {
			return http1.Response{}, errSwitch
		}
	}
}

// CloseIdle closes the connections that wait for another exchange.
func (c *Client) CloseIdle() { c.pool.closeIdle() }
