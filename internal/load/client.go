package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// readBuffer is the size of a connection's read buffer. It bounds header lines
// and how much is read at once, not events.
const readBuffer = 8 << 10

// conn is one connection to the server and its read buffer. It belongs to one
// goroutine at a time.
type conn struct {
	net.Conn
	raw  syscall.RawConn // nil over TLS
	buf  buffer
	slow throttle
}

// throttle reads at a bounded rate when it has one.
type throttle struct {
	src  io.Reader
	rate int // bytes per second; 0 reads as fast as bytes come
}

// quantum is how often a throttled reader reads.
const quantum = 20 * time.Millisecond

// Read implements io.Reader.
func (t *throttle) Read(p []byte) (int, error) {
	if t.rate <= 0 {
		return t.src.Read(p)
	}
	most := max(1, int(float64(t.rate)*quantum.Seconds()))
	n, err := t.src.Read(p[:min(len(p), most)])
	time.Sleep(time.Duration(n) * time.Second / time.Duration(t.rate))
	return n, err
}

// client keeps idle connections to one server.
type client struct {
	target *target
	rcvbuf int

	mu   sync.Mutex
	idle []*conn
}

// get gives an idle connection that is still open, or a new one.
func (c *client) get(ctx context.Context) (cn *conn, reused bool, err error) {
	for {
		c.mu.Lock()
		n := len(c.idle)
		if n == 0 {
			c.mu.Unlock()
			cn, err = c.dial(ctx)
			return cn, false, err
		}
		cn = c.idle[n-1]
		c.idle[n-1] = nil
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		if cn.quiet() {
			return cn, true, nil
		}
		_ = cn.Close()
	}
}

// put takes back a connection whose response was read to its end.
func (c *client) put(cn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = append(c.idle, cn)
}

// close closes the idle connections.
func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cn := range c.idle {
		_ = cn.Close()
	}
	c.idle = nil
}

func (c *client) dial(ctx context.Context) (*conn, error) {
	d := net.Dialer{Control: c.small}
	plain, err := d.DialContext(ctx, "tcp", c.target.addr)
	if err != nil {
		return nil, err
	}
	cn := &conn{Conn: plain}
	tcp, isTCP := plain.(*net.TCPConn)
	if c.target.tls {
		secure := tls.Client(plain, &tls.Config{ServerName: c.target.server, NextProtos: []string{"http/1.1"}})
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = plain.Close()
			return nil, err
		}
		cn.Conn = secure
	} else if isTCP {
		if cn.raw, err = tcp.SyscallConn(); err != nil {
			_ = plain.Close()
			return nil, err
		}
	}
	cn.slow.src = cn.Conn
	cn.buf = buffer{src: &cn.slow, data: make([]byte, readBuffer)}
	return cn, nil
}

// smallSegment is the least segment every path carries, in bytes.
const smallSegment = 536

// small makes a socket hold little, where that was asked for, before it
// connects: its receive buffer bounds the window it announces, and small
// segments bound what the sender's kernel keeps for it, which over a loopback
// device with its segments of 64 KB would be 3 MB.
func (c *client) small(_, _ string, raw syscall.RawConn) error {
	if c.rcvbuf == 0 {
		return nil
	}
	var buffer, segment error
	if err := raw.Control(func(fd uintptr) {
		buffer = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, c.rcvbuf)
		segment = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_MAXSEG, smallSegment)
	}); err != nil {
		return err
	}
	if buffer != nil {
		return fmt.Errorf("set receive buffer: %w", buffer)
	}
	if segment != nil {
		return fmt.Errorf("set segment size: %w", segment)
	}
	return nil
}

// quiet says that an idle connection is open and has nothing to read: what a
// server sends unasked, and its closing, both forbid another request. It looks
// without taking, so that a connection lost while idle is not mistaken for a
// request lost.
func (cn *conn) quiet() bool {
	if cn.buf.start != cn.buf.end {
		return false
	}
	if cn.raw == nil {
		return true
	}
	var one [1]byte
	var err error
	if e := cn.raw.Read(func(fd uintptr) bool {
		_, _, err = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	}); e != nil {
		return false
	}
	return errors.Is(err, unix.EAGAIN)
}

// kindOf gives the kind of a transport error, early when it came before the
// response's head.
func kindOf(err error, early bool) Kind {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return KindTimeout
	case errors.Is(err, errFraming), errors.Is(err, errFull):
		return KindFraming
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return KindReset
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		if early {
			return KindNoResponse
		}
		return KindCut
	}
	return KindIO
}
