package front

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// ReturnedConns is a listener whose connections come from detached streams
// that have ended: the HTTP server serves their next requests. Until the next
// one's first byte the server takes such a connection for a new one, which its
// Shutdown would wait for; so those are closed with the listener.
type ReturnedConns struct {
	conns       chan net.Conn
	closed      chan struct{}
	Serving     atomic.Bool // somebody accepts
	direct      *direct
	headTimeout time.Duration // of a request's head, once it has begun

	mu   sync.Mutex
	idle map[*conn]struct{} // nil once closed
	late map[*conn]struct{} // whose next request had come before that
}

func newReturnedConns(headTimeout time.Duration) *ReturnedConns {
	return &ReturnedConns{headTimeout: headTimeout, conns: make(chan net.Conn), closed: make(chan struct{}), idle: map[*conn]struct{}{}}
}

// rest notes that a connection waits for its next request. It returns false if none is
// accepted any more.
func (r *ReturnedConns) rest(c *conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.idle == nil {
		return false
	}
	r.idle[c] = struct{}{}
	c.returned.Store(r)
	return true
}

// give passes the next request of a connection on to be served. It returns false if none
// is accepted any more.
func (r *ReturnedConns) give(c *conn) bool {
	c.entry.Idle(time.Now())
	if c.peer != nil {
		c.peer.bounded = time.Time{} // the stream has taken the deadlines away
		r.direct.serve(c, KeepAliveTimeout)
		return true
	}
	return r.rest(c) && r.hand(c)
}

// hand hands a connection over to net/http.
func (r *ReturnedConns) hand(c *conn) bool {
	select {
	case r.conns <- c:
		return true
	case <-r.closed:
		return false
	}
}

// busy reports that a connection has its next request, or has ended. It returns false once
// all that wait are closed.
func (r *ReturnedConns) busy(c *conn) (open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.idle, c)
	_, late := r.late[c]
	return late || r.idle != nil
}

// Accept implements net.Listener.
func (r *ReturnedConns) Accept() (net.Conn, error) {
	r.Serving.Store(true)
	select {
	case c := <-r.conns:
		return c, nil
	case <-r.closed:
		return nil, net.ErrClosed
	}
}

// lateTime bounds the wait for a request that has begun to come when the listener is closed.
const lateTime = time.Second

// Close implements net.Listener. A connection whose next request has come, and was not read yet
// on a busy machine, is not closed: the request would be lost without an answer.
func (r *ReturnedConns) Close() error {
	r.mu.Lock()
	idle := r.idle
	r.idle = nil
	if idle == nil {
		r.mu.Unlock()
		return nil
	}
	r.late = map[*conn]struct{}{}
	for c := range idle {
		if c.peer != nil && c.unread() > 0 {
			r.late[c] = struct{}{}
			delete(idle, c)
			_ = c.Conn.SetReadDeadline(time.Now().Add(lateTime)) // fails only on a closed connection, as reads will
		}
	}
	r.mu.Unlock()
	close(r.closed)
	for c := range idle {
		c.Close()
	}
	return nil
}

// Addr implements net.Listener.
func (r *ReturnedConns) Addr() net.Addr { return returnedAddr{} }

type returnedAddr struct{}

func (returnedAddr) Network() string { return "internal" }
func (returnedAddr) String() string  { return "returned connections" }
