package front

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/fleet/admission"
	"weir/internal/trace"
	"weir/internal/wire/sock"
)

// conn stamps the first read after a request was taken. It is armed anew by
// the next request's end, so that reads of a body do not count; a pipelined
// request, already read by then, has no stamp of its own.
type conn struct {
	net.Conn
	socket net.Conn        // Conn itself, or what lies under it
	entry  *admission.Conn // in the book of connections
	first  atomic.Int64    // 0: armed
	ahead  []byte          // sent ahead of a detached stream's end; read first
	// returned is set while the connection waits for the request after a
	// detached stream.
	returned atomic.Pointer[ReturnedConns]
	tls      bool // what is read here is records, handshakes among them
	head     headScan
	peer     *peer                      // nil: only net/http serves it
	http2    *http2Conn                 // nil: it speaks HTTP/1
	turn     atomic.Pointer[handshakes] // while its handshake computes

	mu      sync.Mutex
	unwatch func() // nil: nobody watches for the hang-up
	hungUp  bool
	closed  bool
	gone    func() // ends the request under way; nil between requests
}

func (c *conn) Close() error {
	c.leave()
	c.mu.Lock()
	unwatch := c.unwatch
	c.unwatch, c.closed = nil, true
	c.mu.Unlock()
	c.endTurn()
	if unwatch != nil {
		unwatch()
	}
	c.entry.Close()
	return c.Conn.Close()
}

// follow has gone called if the client hangs up before the request's done, at once
// if it has already. gone must not block.
//
// net/http notices a hang-up by a read of one byte, and a client that sends so much
// as a byte ahead makes it blind. So the socket itself is watched, from the
// connection's first request until it is closed, and never read: a watch costs one
// system call per connection.
func (c *conn) follow(w Watcher, gone func()) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone = gone; c.hungUp {
		gone()
	}
	if c.unwatch != nil || c.hungUp || c.closed {
		return nil
	}
	var err error
	c.unwatch, err = w.Watch(c.socket, c.hangUp)
	return err
}

// hangUp is called when the client has ended its side.
func (c *conn) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hungUp = true; c.gone != nil {
		c.gone()
	}
}

// look looks whether the client of a connection's first request has hung up by now, and reports it.
// On a busy machine many of those have who hang up soon, and the watch reports it only when its
// poller has run. A client that has used its connection for another request is not looked for.
func (c *conn) look() (hungUp bool) {
	if c == nil || c.peer == nil || c.peer.looked {
		return false
	}
	c.peer.looked = true
	if fd, ok := c.peer.writer.(socketWriter); !ok || !sock.Ended(int(fd)) {
		return false
	}
	c.hangUp()
	return true
}

// leave ends the wait for the next request. It returns false if the connection is closed
// with those that wait.
func (c *conn) leave() (open bool) {
	if c.returned.Load() == nil {
		return true // nearly always: one of many reads
	}
	if r := c.returned.Swap(nil); r != nil {
		return r.busy(c)
	}
	return true
}

func (c *conn) Read(p []byte) (int, error) {
	var n int
	var err error
	if len(c.ahead) > 0 && len(p) > 0 {
		n = copy(p, c.ahead)
		c.ahead = c.ahead[n:]
	} else {
		if c.http2 != nil {
			c.http2.intake.asks(c.unread)
		}
		n, err = c.Conn.Read(p)
		if c.http2 != nil {
			c.http2.intake.arrived(n, err)
		}
	}
	if n > 0 {
		if c.first.Load() == 0 {
			c.head.read(p[:n])
		}
		c.stamp()
	}
	return n, err
}

// unread is how much the client has sent that was not read.
func (c *conn) unread() int { return sock.Unread(c.socket) }

// headScan detects a request that declares the length of its body twice, by
// Content-Length and by chunked coding, which net/http does not report. net/http uses
// the chunks, and a proxy before it may use the length. The rest of the body to one is
// then the next request to the other (RFC 9112, section 6.3). Only a head that arrives
// in one read is scanned.
type headScan struct {
	whole    bool // the read had all of the head, from its first line on
	declared bool
}

var contentLengthField = []byte("content-length")

// read takes the first read after a request.
func (h *headScan) read(p []byte) {
	end := bytes.Index(p, []byte("\r\n\r\n"))
	method, _, _ := bytes.Cut(p, []byte(" "))
	*h = headScan{whole: end >= 0 && len(bytes.Trim(method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")) == 0}
	for line := range bytes.Lines(p[:max(end, 0)]) {
		h.declared = h.declared || len(line) > len(contentLengthField) && bytes.EqualFold(line[:len(contentLengthField)], contentLengthField)
	}
}

// ambiguous reports whether a request in chunks may have declared a length as well.
func (c *conn) ambiguous() bool {
	return c == nil || c.tls || c.first.Load() == 0 || !c.head.whole || c.head.declared
}

// KeepAliveTimeout bounds the wait of a kept connection for its next request.
const KeepAliveTimeout = 5 * time.Minute

// SetReadDeadline implements net.Conn. A returned connection is new to
// net/http, which bounds the wait for a request's head from the start. Until
// the head's first byte it is idle like any kept connection, and bounded so.
func (c *conn) SetReadDeadline(t time.Time) error {
	if c.returned.Load() != nil && !t.IsZero() {
		t = time.Now().Add(KeepAliveTimeout)
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	if c.peer != nil {
		c.peer.late.Store(true)
	}
	return c.Conn.SetWriteDeadline(t)
}

// stamp is called after a read that brought something.
func (c *conn) stamp() {
	if r := c.returned.Load(); r != nil {
		c.leave()
		_ = c.Conn.SetReadDeadline(time.Now().Add(r.headTimeout)) // fails only on a closed connection, as reads will
	}
	if c.first.Load() == 0 {
		now := trace.Now()
		if c.peer != nil && c.peer.began != 0 {
			now, c.peer.began = c.peer.began, 0
		}
		c.first.Store(now)
	}
}

type connKey struct{}

// ConnContext is for http.Server.
func ConnContext(ctx context.Context, nc net.Conn) context.Context {
	c := connFrom(nc)
	if c == nil {
		return ctx
	}
	_, c.tls = nc.(*tls.Conn)
	return context.WithValue(ctx, connKey{}, c)
}

// connFrom returns the connection that net/http serves, or nil when it is not one of
// ours.
func connFrom(nc net.Conn) *conn {
	if over, ok := nc.(interface{ NetConn() net.Conn }); ok { // TLS, or HTTP/2
		return connFrom(over.NetConn())
	}
	c, _ := nc.(*conn)
	return c
}

// connOf returns the connection of a request, or nil when it is not one of ours.
func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// arrival is the stamp of the request's first byte, or now when the connection
// does not know.
func (c *conn) arrival() int64 {
	if c != nil && !c.tls {
		if at := c.first.Load(); at != 0 {
			return at
		}
	}
	return trace.Now()
}

// done marks the end of the request: a hang-up no longer concerns it, and the next read
// is stamped.
func (c *conn) done() {
	if c == nil {
		return
	}
	c.mu.Lock()
	c.gone = nil
	c.mu.Unlock()
	c.first.Store(0)
}
