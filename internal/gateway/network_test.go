package gateway

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The network of these tests is in memory, so that a synctest bubble can hold
// both of its ends and time passes only when nobody has anything to do. Unlike
// net.Pipe it has buffers, deadlines that move, and resets, as TCP has.

// memListener hands out the server's ends of dialled connections.
type memListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newMemListener() *memListener {
	return &memListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *memListener) Addr() net.Addr { return memAddr{} }

// dial connects. The client's receive buffer holds window bytes; the server's
// is large.
func (l *memListener) dial(window int) *memConn {
	up, down := newHalf(1<<20), newHalf(window)
	select {
	case l.conns <- &memConn{in: up, out: down}:
	case <-l.closed:
	}
	return &memConn{in: down, out: up}
}

type memAddr struct{}

func (memAddr) Network() string { return "mem" }
func (memAddr) String() string  { return "mem" }

// memConn is one end of a connection.
type memConn struct {
	in, out  *half
	discards atomic.Bool // what is written without waiting
}

func (c *memConn) Read(p []byte) (int, error) {
	n, err := c.in.read(p)
	return n, opError("read", err)
}

func (c *memConn) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	return n, opError("write", err)
}

// Unread is what sock.Unread gives.
func (c *memConn) Unread() int {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	return len(c.in.buf)
}

// TryWrite implements front.TryWriter.
func (c *memConn) TryWrite(p []byte) (int, error) {
	if c.discards.Load() {
		return len(p), nil
	}
	n, err := c.out.tryWrite(p)
	return n, opError("write", err)
}

func opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "mem", Addr: memAddr{}, Err: err}
}

// Close ends both directions. Closing with input unread resets the connection,
// which also destroys what the peer has not read yet.
func (c *memConn) Close() error {
	if c.in.shutRead() {
		c.out.reset()
	}
	c.out.shutWrite()
	return nil
}

// Reset breaks the connection at once.
func (c *memConn) Reset() {
	c.in.shutRead()
	c.out.reset()
	c.out.shutWrite()
}

func (c *memConn) CloseWrite() error                 { c.out.shutWrite(); return nil }
func (c *memConn) LocalAddr() net.Addr               { return memAddr{} }
func (c *memConn) RemoteAddr() net.Addr              { return memAddr{} }
func (c *memConn) SetReadDeadline(t time.Time) error { c.in.setDeadline(&c.in.readBy, t); return nil }
func (c *memConn) SetWriteDeadline(t time.Time) error {
	c.out.setDeadline(&c.out.writeBy, t)
	return nil
}
func (c *memConn) SetDeadline(t time.Time) error {
	_ = c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

// drain takes what has arrived without waiting, and says whether the peer has
// closed its side.
func (c *memConn) drain() (arrived []byte, closed bool) {
	h := c.in
	h.mu.Lock()
	defer h.mu.Unlock()
	arrived = h.buf
	h.buf = nil
	h.wake()
	return arrived, h.ended || h.broken
}

// half is one direction of a connection.
type half struct {
	mu              sync.Mutex
	changed         chan struct{} // closed and replaced at each change
	buf             []byte
	window          int
	ended           bool // the writer has closed
	broken          bool // reset
	gone            bool // the reader has closed
	readBy, writeBy time.Time
}

func newHalf(window int) *half { return &half{window: window, changed: make(chan struct{})} }

func (h *half) wake() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// wait gives the lock up until something changes or the deadline passes.
func (h *half) wait(deadline time.Time) {
	changed := h.changed
	h.mu.Unlock()
	defer h.mu.Lock()
	if deadline.IsZero() {
		<-changed
		return
	}
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	}
}

func passed(deadline time.Time) bool {
	return !deadline.IsZero() && !time.Now().Before(deadline)
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.gone:
			return 0, net.ErrClosed
		case passed(h.readBy):
			return 0, os.ErrDeadlineExceeded
		case h.broken:
			return 0, syscall.ECONNRESET
		case len(h.buf) > 0:
			n := copy(p, h.buf)
			if h.buf = h.buf[n:]; len(h.buf) == 0 {
				h.buf = nil // what was read is not held
			}
			h.wake()
			return n, nil
		case h.ended:
			return 0, io.EOF
		case len(p) == 0:
			return 0, nil
		}
		h.wait(h.readBy)
	}
}

func (h *half) write(p []byte) (n int, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.ended:
			return n, net.ErrClosed
		case passed(h.writeBy):
			return n, os.ErrDeadlineExceeded
		case h.gone || h.broken:
			return n, syscall.EPIPE
		}
		fits := min(len(p)-n, h.window-len(h.buf))
		h.buf = append(h.buf, p[n:n+fits]...)
		n += fits
		if fits > 0 {
			h.wake()
		}
		if n == len(p) {
			return n, nil
		}
		h.wait(h.writeBy)
	}
}

// tryWrite writes what fits at once.
func (h *half) tryWrite(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended:
		return 0, net.ErrClosed
	case passed(h.writeBy):
		return 0, os.ErrDeadlineExceeded
	case h.gone || h.broken:
		return 0, syscall.EPIPE
	}
	n := min(len(p), h.window-len(h.buf))
	if n > 0 {
		h.buf = append(h.buf, p[:n]...)
		h.wake()
	}
	return n, nil
}

func (h *half) setDeadline(which *time.Time, t time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	*which = t
	h.wake()
}

func (h *half) shutWrite() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.wake()
}

// shutRead says whether there was input unread.
func (h *half) shutRead() (unread bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.gone = true
	h.wake()
	return len(h.buf) > 0
}

func (h *half) reset() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.broken, h.buf = true, nil
	h.wake()
}

// memHangups watches connections in memory, as hangups does sockets. A watch
// costs a goroutine, which its stop waits for.
type memHangups struct{}

func (memHangups) Watch(c net.Conn, gone func()) (stop func(), err error) {
	h := c.(*memConn).in
	stopping, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			h.mu.Lock()
			over, changed := h.ended || h.broken, h.changed
			h.mu.Unlock()
			if over {
				gone()
				return
			}
			select {
			case <-changed:
			case <-stopping:
				return
			}
		}
	}()
	return func() { close(stopping); <-stopped }, nil
}
