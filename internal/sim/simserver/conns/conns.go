// Package conns has the connections of a simulated engine's servers, which faults refuse, shape and
// break, and the gate at which all of them stand still.
package conns

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

// Listener is a server's listener. On demand it refuses or ignores connections. It keeps
// the accepted ones, so that a fault can shape or break one.
type Listener struct {
	net.Listener
	strike func() (sim.Fault, bool)
	gate   *Gate

	restarting *atomic.Bool

	mu    sync.Mutex
	conns map[string]*Conn // by remote address
	deaf  []net.Conn       // never read
	ended bool
}

// New makes a listener of l, whose connections stand still while the gate is shut. strike
// draws the fault of each; none is taken while the engine restarts.
func New(l net.Listener, gate *Gate, restarting *atomic.Bool, strike func() (sim.Fault, bool)) *Listener {
	return &Listener{Listener: l, strike: strike, gate: gate, restarting: restarting, conns: map[string]*Conn{}}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		tracked := &Conn{Conn: c, owner: l, closed: make(chan struct{})}
		if l.restarting.Load() {
			tracked.Reset()
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
			tracked.Reset()
		default:
			l.hold(c)
		}
	}
}

// hold keeps a connection that nobody reads until the server ends.
func (l *Listener) hold(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		c.Close()
		return
	}
	l.deaf = append(l.deaf, c)
}

// ResetAll resets all connections.
func (l *Listener) ResetAll() {
	l.mu.Lock()
	conns := slices.Collect(maps.Values(l.conns))
	l.mu.Unlock()
	for _, c := range conns {
		c.Reset()
	}
}

// Close implements net.Listener.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	for _, c := range l.deaf {
		c.Close()
	}
	l.deaf = nil
	return l.Listener.Close()
}

// Conn returns the connection from a remote address, or nil.
func (l *Listener) Conn(remote string) *Conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[remote]
}

// Conn is an accepted connection.
type Conn struct {
	net.Conn
	owner  *Listener
	closed chan struct{}
	once   sync.Once
	shape  atomic.Pointer[Shape]
}

// Shape defines how writes are cut into pieces.
type Shape struct {
	First int // bytes of the first piece; 0 is as the others
	Bytes int // of each piece after it; 0 is all the rest
	Delay time.Duration
	Once  bool // of one write only
}

type connKey struct{}

// With is http.Server's ConnContext: handlers find their connection in
// their context.
func With(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// Of returns a handler's connection, nil where it has none of ours.
func Of(ctx context.Context) *Conn {
	c, _ := ctx.Value(connKey{}).(*Conn)
	return c
}

// Mold sets how the connection's writes are cut from now on; nil is not at
// all.
func (c *Conn) Mold(s *Shape) {
	if c != nil {
		c.shape.Store(s)
	}
}

// Read implements net.Conn. Data that arrives while the engine pauses is delivered
// afterwards.
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.owner.gate.Wait(c.closed)
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(b []byte) (int, error) {
	c.owner.gate.Wait(c.closed)
	s := c.shape.Load()
	if s == nil {
		return c.Conn.Write(b)
	}
	if s.Once && !c.shape.CompareAndSwap(s, nil) {
		return c.Conn.Write(b)
	}
	return s.Pieces(b, c.Conn.Write, c.closed)
}

// Pieces writes b in pieces with pauses between, until closed is.
func (s *Shape) Pieces(b []byte, write func([]byte) (int, error), closed <-chan struct{}) (written int, err error) {
	size := s.Bytes
	if s.First > 0 {
		size = s.First
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
		size = s.Bytes
		t := time.NewTimer(s.Delay)
		select {
		case <-t.C:
		case <-closed:
			t.Stop()
		}
	}
}

// Close ends the connection with a FIN.
func (c *Conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.owner.mu.Lock()
	if key := c.RemoteAddr().String(); c.owner.conns[key] == c {
		delete(c.owner.conns, key)
	}
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// Reset ends the connection with a RST, where it is one that can.
func (c *Conn) Reset() {
	if t, ok := c.Conn.(interface{ SetLinger(int) error }); ok {
		// An error means that the connection is gone already.
		_ = t.SetLinger(0)
	}
	c.Close()
}

// Gate stops the whole engine for a time, as the system does with a process:
// connections stay, and nothing is read, computed or written.
type Gate struct {
	mu   sync.Mutex
	open atomic.Pointer[chan struct{}] // nil while it is open; closed when it opens
	till time.Time
}

// Shut closes the gate for d from now, or longer if it is shut already.
func (g *Gate) Shut(d time.Duration) {
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

// Wait waits until the gate is open, or done is closed.
func (g *Gate) Wait(done <-chan struct{}) {
	if opens := g.open.Load(); opens != nil {
		select {
		case <-*opens:
		case <-done:
		}
	}
}
