package simserver

import (
	"net"
	"sync"
)

// listener is a face's listener: it refuses connections when told to, and
// knows those it accepted, so that a fault can break one.
type listener struct {
	net.Listener
	refuse func() bool

	mu    sync.Mutex
	conns map[string]*conn // by remote address
}

func (e *Engine) listen(l net.Listener) *listener {
	return &listener{Listener: l, refuse: e.refuseConn, conns: map[string]*conn{}}
}

func (e *Engine) refuseConn() bool {
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
		tracked := &conn{Conn: c, owner: l}
		if l.refuse() {
			tracked.reset()
			continue
		}
		l.mu.Lock()
		l.conns[c.RemoteAddr().String()] = tracked
		l.mu.Unlock()
		return tracked, nil
	}
}

// conn gives the connection from a remote address, or nil.
func (l *listener) conn(remote string) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns[remote]
}

// conn is an accepted connection.
type conn struct {
	net.Conn
	owner *listener
}

// Close ends the connection with a FIN.
func (c *conn) Close() error {
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
