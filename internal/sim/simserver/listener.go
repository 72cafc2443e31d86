package simserver

import (
	"context"
	"crypto/tls"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/sim"
)

// listener is a server's listener. On demand it refuses or ignores connections. It keeps
// the accepted ones, so that a fault can shape or break one.
type listener struct {
	net.Listener
	strike func() (sim.Fault, bool)
	gate   *gate

	restarting *atomic.Bool

	mu    sync.Mutex
	conns map[string]*conn // by remote address
	deaf  []net.Conn       // never read
	ended bool
}

func (e *Engine) listen(l net.Listener) *listener {
	tracked := &listener{Listener: l, strike: e.strikeConn, gate: &e.gate, restarting: &e.restart.underway, conns: map[string]*conn{}}
	e.restart.mu.Lock()
	defer e.restart.mu.Unlock()
	e.restart.listeners = append(e.restart.listeners, tracked)
	return tracked
}

func (e *Engine) strikeConn() (sim.Fault, bool) {
	e.faultsMu.Lock()
	defer e.faultsMu.Unlock()
	return e.faults.Connection()
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tracked := &conn{Conn: c, owner: l, closed: make(chan struct{})}
		if l.restarting.Load() {
			tracked.reset()
			continue
		}
		fault, struck := l.strike()
		switch {
		case !struck:
			l.mu.Lock()
			l.conns[c.RemoteAddr().String()] = tracked
			l.mu.Unlock()
			return tracked, nil
		case fault.Kind == sim.Refuse:
			tracked.reset()
		default:
			l.hold(c)
		}
	}
}

// hold keeps a connection that nobody reads until the server ends.
func (l *listener) hold(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		c.Close()
		return
	}
	l.deaf = append(l.deaf, c)
}

// resetAll resets all connections.
func (l *listener) resetAll() {
	l.mu.Lock()
	conns := slices.Collect(maps.Values(l.conns))
	l.mu.Unlock()
	for _, c := range conns {
		c.reset()
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, c := range l.deaf {
		c.Close()
	}
	l.deaf = nil
	return l.Listener.Close()
}

// conn returns the connection from a remote address, or nil.
func (l *listener) conn(remote string) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[remote]
}

// conn is an accepted connection.
type conn struct {
	net.Conn
	owner  *listener
	closed chan struct{}
	once   sync.Once
	shape  atomic.Pointer[shape]
}

// shape defines how writes are cut into pieces.
type shape struct {
	first int // bytes of the first piece; 0 is as the others
	bytes int // of each piece after it; 0 is all the rest
	delay time.Duration
	once  bool // of one write only
}

type connKey struct{}

// withConn is http.Server's ConnContext: handlers find their connection in
// their context.
func withConn(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// connOf returns a handler's connection, nil where it has none of ours.
func connOf(ctx context.Context) *conn {
	c, _ := ctx.Value(connKey{}).(*conn)
	return c
}

// mold sets how the connection's writes are cut from now on; nil is not at
// all.
func (c *conn) mold(s *shape) {
	if c != nil {
		c.shape.Store(s)
	}
}

// Read implements net.Conn. Data that arrives while the engine pauses is delivered
// afterwards.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.owner.gate.wait(c.closed)
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	c.owner.gate.wait(c.closed)
	s := c.shape.Load()
	if s == nil {
		return c.Conn.Write(b)
	}
	if s.once && !c.shape.CompareAndSwap(s, nil) {
		return c.Conn.Write(b)
	}
	return s.pieces(b, c.Conn.Write, c.closed)
}

// pieces writes b in pieces with pauses between, until closed is.
func (s *shape) pieces(b []byte, write func([]byte) (int, error), closed <-chan struct{}) (written int, err error) {
	size := s.bytes
	if s.first > 0 {
		size = s.first
	}
	for {
		rest := b[written:]
		if size > 0 && size < len(rest) {
			rest = rest[:size]
		}
		n, err := write(rest)
		if written += n; err != nil || written == len(b) {
			return written, err
		}
		size = s.bytes
		t := time.NewTimer(s.delay)
		select {
		case <-t.C:
		case <-closed:
			t.Stop()
		}
	}
}

// Close ends the connection with a FIN.
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.owner.mu.Lock()
	if key := c.RemoteAddr().String(); c.owner.conns[key] == c {
		delete(c.owner.conns, key)
	}
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// reset ends the connection with a RST, where it is one that can.
func (c *conn) reset() {
	if t, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		// An error means that the connection is gone already.
		_ = t.SetLinger(0)
	}
	c.Close()
}

// gate stops the whole engine for a time, as the system does with a process:
// connections stay, and nothing is read, computed or written.
type gate struct {
	mu   sync.Mutex
	open atomic.Pointer[chan struct{}] // nil while it is open; closed when it opens
	till time.Time
}

// shut closes the gate for d from now, or longer if it is shut already.
func (g *gate) shut(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if till := time.Now().Add(d); till.After(g.till) {
		g.till = till
	}
	if g.open.Load() != nil {
		return // whoever opens it looks at till
	}
	opens := make(chan struct{})
	g.open.Store(&opens)
	var later func()
	later = func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if left := time.Until(g.till); left > 0 {
			time.AfterFunc(left, later)
			return
		}
		g.open.Store(nil)
		close(opens)
	}
	time.AfterFunc(d, later)
}

// wait waits until the gate is open, or done is closed.
func (g *gate) wait(done <-chan struct{}) {
	if opens := g.open.Load(); opens != nil {
		select {
		case <-*opens:
		case <-done:
		}
	}
}
