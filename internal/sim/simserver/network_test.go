package simserver

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
)

// A network joins clients to listeners in memory, so that all of it stands
// inside a bubble of testing/synctest. Nothing is buffered: a write returns when
// the other side has read it.
type network struct {
	mu        sync.Mutex
	listeners map[string]*listening
	dialled   atomic.Int64
}

type address string

func (a address) Network() string { return "memory" }
func (a address) String() string  { return string(a) }

// listening is a listener of a network.
type listening struct {
	addr   address
	dials  chan net.Conn
	closed chan struct{}
	close  func()
}

func (n *network) listen(addr string) net.Listener {
	l := &listening{addr: address(addr), dials: make(chan net.Conn), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() { close(l.closed) })
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = map[string]*listening{}
	}
	n.listeners[addr] = l
	return l
}

func (n *network) dial(ctx context.Context, _, addr string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[addr]
	n.mu.Unlock()
	if l == nil {
		return nil, syscall.ECONNREFUSED
	}
	here, there := net.Pipe()
	name := address("client-" + strconv.FormatInt(n.dialled.Add(1), 10))
	reset := new(atomic.Bool)
	select {
	case l.dials <- &end{Conn: there, local: l.addr, remote: name, reset: reset}:
		return &end{Conn: here, local: name, remote: l.addr, reset: reset}, nil
	case <-l.closed:
		return nil, syscall.ECONNREFUSED
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *listening) Accept() (net.Conn, error) {
	select {
	case c := <-l.dials:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listening) Close() error   { l.close(); return nil }
func (l *listening) Addr() net.Addr { return l.addr }

// An end is one side of a connection. It resets the other as a TCP connection
// does that is closed without linger.
type end struct {
	net.Conn
	local, remote address
	reset         *atomic.Bool // of both ends
}

func (c *end) LocalAddr() net.Addr  { return c.local }
func (c *end) RemoteAddr() net.Addr { return c.remote }

func (c *end) SetLinger(int) error {
	c.reset.Store(true)
	return nil
}

func (c *end) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && c.reset.Load() {
		err = &net.OpError{Op: "read", Net: "memory", Err: syscall.ECONNRESET}
	}
	return n, err
}
