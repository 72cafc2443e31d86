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
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/trace"
	"weir/internal/wire/sock"
)

// readBuffer is the size of a connection's read buffer. It bounds header lines
// and how much is read at once, not events.
const readBuffer = 8 << 10

// conn is one connection to the server and its read buffer. It belongs to one
// goroutine at a time.
type conn struct {
	net.Conn          // nil where the connection is polled
	socket   *socket  // nil where it is read by the goroutine of its request
	wire     *stamped // under TLS, where the kernel stamps
	raw      syscall.RawConn
	buf      buffer
	slow     throttle
	late     []int64 // of each read, ns since its last byte arrived, or unstamped
}

// unstamped is in place of the lateness of a read without a kernel's stamp.
const unstamped = -1

// Close closes the connection.
func (cn *conn) Close() error {
	if cn.socket != nil {
		return cn.socket.close()
	}
	return cn.Conn.Close()
}

// reading is a source that waits. Its bytes count as arrived when they were read.
type reading struct{ io.Reader }

func (r reading) receive(p []byte) (n int, at int64, err error) {
	n, err = r.Read(p)
	return n, trace.Now(), err
}

// since implements source. How long it had waited is not known.
func (r reading) since(at int64, _ bool) int64 { return at }

// throttle reads at a bounded rate when it has one.
type throttle struct {
	src  source
	rate int // bytes per second; 0 reads as fast as bytes come
}

// quantum is how often a throttled reader reads.
const quantum = 20 * time.Millisecond

// receive implements source.
func (t *throttle) receive(p []byte) (n int, at int64, err error) {
	if t.rate <= 0 {
		return t.src.receive(p)
	}
	most := max(1, int(float64(t.rate)*quantum.Seconds()))
	n, _, err = t.src.receive(p[:min(len(p), most)])
	time.Sleep(time.Duration(n) * time.Second / time.Duration(t.rate))
	return n, trace.Now(), err
}

// since implements source. Bytes that the plan reads late have the time of their reading.
func (t *throttle) since(at int64, last bool) int64 {
	if t.rate <= 0 {
		return t.src.since(at, last)
	}
	return at
}

// client keeps idle connections to one server.
type client struct {
	target *target
	rcvbuf int
	poller *poller      // nil where each connection is read by a goroutine
	stamps bool         // the kernel's, without a poller
	held   atomic.Int64 // bytes that answers hold above freeHeld

	mu   sync.Mutex
	idle []*conn
}

// get returns an idle connection that is still open, or a new one.
func (c *client) get(ctx context.Context) (cn *conn, reused bool, err error) {
	if cn = c.spare(); cn != nil {
		return cn, true, nil
	}
	cn, err = c.dial(ctx)
	return cn, false, err
}

// spare returns an idle connection that is still open, nil where there is none.
func (c *client) spare() *conn {
	for {
		c.mu.Lock()
		n := len(c.idle)
		if n == 0 {
			c.mu.Unlock()
			return nil
		}
		cn := c.idle[n-1]
		c.idle[n-1] = nil
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		if cn.quiet() {
			return cn
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
	d := net.Dialer{Control: c.prepare}
	plain, err := d.DialContext(ctx, "tcp", c.target.addr)
	if err != nil {
		return nil, err
	}
	cn := &conn{Conn: plain}
	tcp, isTCP := plain.(*net.TCPConn)
	if c.poller != nil && isTCP {
		return c.poller.conn(tcp)
	}
	if c.target.tls {
		if c.stamps && isTCP {
			if cn.wire, err = newStamped(tcp); err != nil {
				_ = plain.Close()
				return nil, err
			}
			plain = cn.wire
		}
		secure := tls.Client(plain, &tls.Config{ServerName: c.target.server, NextProtos: []string{"http/1.1"}})
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = plain.Close()
			return nil, err
		}
		cn.Conn = secure
		if cn.wire != nil {
			cn.slow.src = &records{Conn: secure, wire: cn.wire, cn: cn}
		}
	} else if isTCP {
		if cn.raw, err = tcp.SyscallConn(); err != nil {
			_ = plain.Close()
			return nil, err
		}
	}
	if cn.slow.src == nil {
		cn.slow.src = reading{cn.Conn}
	}
	cn.buf = buffer{src: &cn.slow, data: make([]byte, readBuffer)}
	return cn, nil
}

// smallSegment is the least segment every path carries, in bytes.
const smallSegment = 536

// prepare sets a socket's options before it connects.
func (c *client) prepare(_, _ string, raw syscall.RawConn) (err error) {
	if e := raw.Control(func(fd uintptr) {
		if c.poller != nil || c.stamps {
			err = sock.Stamp(int(fd))
		}
		if err == nil && c.rcvbuf > 0 {
			err = small(int(fd), c.rcvbuf)
		}
	}); e != nil {
		return e
	}
	return err
}

// small returns a socket small buffers. Its receive buffer bounds the window that it
// announces, and small segments bound what the sender's kernel keeps for it. On a loopback
// device with segments of 64 KB that would be 3 MB.
func small(fd, size int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size); err != nil {
		return fmt.Errorf("set receive buffer: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, smallSegment); err != nil {
		return fmt.Errorf("set segment size: %w", err)
	}
	return nil
}

// quiet reports whether an idle connection is open and has nothing to read. Unsolicited
// bytes and a closed connection both forbid another request. It peeks, so that a connection
// lost while idle does not count as a lost request.
func (cn *conn) quiet() bool {
	if cn.buf.start != cn.buf.end {
		return false
	}
	if cn.socket != nil {
		return cn.socket.quiet()
	}
	if cn.raw == nil {
		return true
	}
	nothing := false
	if err := cn.raw.Read(func(fd uintptr) bool {
		nothing = empty(int(fd))
		return true
	}); err != nil {
		return false
	}
	return nothing
}

// empty reports whether a socket is open and has nothing to read.
func empty(fd int) bool {
	var one [1]byte
	_, _, err := unix.Recvfrom(fd, one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return errors.Is(err, unix.EAGAIN)
}

// kindOf returns the kind of a transport error, early when it came before the
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
