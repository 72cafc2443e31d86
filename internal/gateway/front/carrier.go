package front

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"syscall"
	"time"

	"weir/internal/gateway/freelist"
	"weir/internal/wire/sock"
)

// Carrier writes a response to the caller. There are two. Every response begins on the
// carrier over net/http, and one that is whole at its first write ends there. A stream of
// events over plain HTTP/1.1 leaves it otherwise, with its first write, and continues on the
// bare connection (see Response.Detach), where a write is one system call and no state of net/http is
// kept for the life of the stream.
type Carrier interface {
	// Send sends the part of b that can be sent without waiting, after the response
	// head if that is still due. last is set if b completes the response. If a part of
	// b remains, whole is false and the carrier keeps the rest. The frame is a buffer that it
	// may use until it returns, and replace by a larger one.
	Send(frame *[]byte, b []byte, last bool) (whole bool, err error)
	// Rest waits until what Send kept is sent.
	Rest() error
	// SetDeadline bounds writes.
	SetDeadline(time.Time)
	// End is called once after the response. Unless it was whole, its
	// connection is broken, so that it never looks complete. unread says that
	// the client may not have read all that was written, and still may.
	End(whole, unread bool)
}

// HTTPCarrier answers through net/http, whose server owns the connection. It cannot
// write without waiting.
type HTTPCarrier struct {
	served  Served
	status  int // of the head, if that is still due
	buffers *freelist.List[*[]byte]
	buf     *[]byte // of spare, while something is kept
	Kept    []byte
	last    bool      // kept completes the response
	until   time.Time // the deadline of writes
}

func (c *HTTPCarrier) Send(_ *[]byte, b []byte, last bool) (whole bool, err error) {
	if c.buf == nil {
		c.buf = c.buffers.Take()
		c.Kept = (*c.buf)[:0]
	}
	c.Kept, c.last = append(c.Kept, b...), last
	return false, nil
}

// Release gives back the memory of what was kept.
func (c *HTTPCarrier) Release() {
	if c.buf != nil {
		c.buffers.Give(c.buf)
		c.buf, c.Kept = nil, nil
	}
}

// atOnce is a ResponseWriter that can send what it is given, with the head if that is due and
// the end if it is last, without keeping a copy.
type atOnce interface {
	WriteAtOnce(b []byte, last bool) error
}

func (c *HTTPCarrier) Rest() error {
	if c.status != 0 {
		if h := c.served.Writer.Header(); c.last && h["Content-Length"] == nil {
			h["Content-Length"] = []string{strconv.Itoa(len(c.Kept))} // net/http would write the end by itself
		}
		c.served.Writer.WriteHeader(c.status)
		c.status = 0
	}
	var err error
	if w, ok := c.served.Writer.(atOnce); ok {
		err = w.WriteAtOnce(c.Kept, c.last)
	} else if _, err = c.served.Writer.Write(c.Kept); err == nil {
		err = c.served.Controller.Flush()
	}
	c.Release()
	if errors.Is(err, os.ErrDeadlineExceeded) && !time.Now().Before(c.until) {
		return errUnread // and not broken off before
	}
	return err
}

// SetDeadline cannot do more than try: a writer that has no deadlines is not a
// socket, and does not block for ever.
func (c *HTTPCarrier) SetDeadline(t time.Time) {
	c.until = t
	_ = c.served.Controller.SetWriteDeadline(t)
}

func (c *HTTPCarrier) End(whole, unread bool) {
	if whole {
		return
	}
	if w, ok := c.served.Writer.(*directWriter); ok {
		w.abort(!unread)
		return
	}
	panic(http.ErrAbortHandler) // net/http breaks the connection and says nothing
}

// bareCarrier answers over a connection taken over from net/http, in chunks.
type bareCarrier struct {
	conn *conn
	head []byte // due before the first chunk

	// Fields that each write uses: 32 bytes of one cache line, if the struct is aligned
	// to a multiple of 32.
	socket    TryWriter    // &fd, but where the connection writes by itself
	fd        socketWriter // of its socket
	due       bool         // the head
	torn      bool         // a chunk was sent in part: nothing can follow it
	keepAlive bool

	kept     []byte
	returned *ReturnedConns
}

// TryWriter writes as much as a connection accepts without waiting; n is -1 if it
// accepts nothing. Only one goroutine may use it at a time, and only while the
// connection cannot be closed.
type TryWriter interface {
	TryWrite(p []byte) (n int, err error)
}

// tryWriterOf returns a connection's own, or that of its socket.
func tryWriterOf(c net.Conn) (w TryWriter, ok bool) {
	if own, ok := c.(TryWriter); ok {
		return own, true
	}
	sys, ok := c.(syscall.Conn)
	if !ok {
		return nil, false
	}
	raw, err := sys.SyscallConn()
	if err != nil {
		return nil, false
	}
	if raw.Control(func(fd uintptr) { w = socketWriter(fd) }) != nil {
		return nil, false
	}
	return w, true
}

// TryWriter returns that of the connection.
func (c *conn) tryWriter() (w TryWriter, ok bool) {
	if c.peer != nil { // which has it already
		return c.peer.writer, true
	}
	return tryWriterOf(c.socket)
}

// socketWriter is the TryWriter of a socket.
type socketWriter int

func (fd socketWriter) TryWrite(p []byte) (n int, err error) { return sock.TryWrite(int(fd), p) }

// Watcher notices that the peers of connections have hung up.
type Watcher interface {
	// Watch calls gone once when the peer has ended its side of the connection
	// or broken it, also if it already has. gone must not block. stop ends the
	// watch; it must be called when the connection is about to be closed.
	Watch(c net.Conn, gone func()) (stop func(), err error)
}

// frame appends a chunk.
func (c *bareCarrier) frame(out, b []byte, last bool) []byte {
	if c.due {
		out = append(out, c.head...)
		c.due, c.head = false, nil
	}
	return appendChunk(out, b, last)
}

// appendChunk appends a part of a body in chunks, and if it is the last one their end.
func appendChunk(out, b []byte, last bool) []byte {
	if len(b) > 0 {
		out = strconv.AppendInt(out, int64(len(b)), 16)
		out = append(out, "\r\n"...)
		out = append(out, b...)
		out = append(out, "\r\n"...)
	}
	if last {
		out = append(out, "0\r\n\r\n"...)
	}
	return out
}

// errTorn is why nothing can be sent after a chunk that was sent in part.
var errTorn = errors.New("the response was cut inside a chunk")

func (c *bareCarrier) Send(frame *[]byte, b []byte, last bool) (whole bool, err error) {
	if c.torn {
		return false, errTorn
	}
	out := c.frame((*frame)[:0], b, last)
	*frame = out
	n, err := c.socket.TryWrite(out)
	whole = n == len(out)
	if !whole && err == nil {
		c.kept = bytes.Clone(out[max(n, 0):])
	}
	return whole, err
}

func (c *bareCarrier) Rest() error {
	rest := c.kept
	c.kept = nil
	_, err := c.conn.Write(rest)
	c.torn = err != nil
	return err
}

func (c *bareCarrier) SetDeadline(t time.Time) { _ = c.conn.SetWriteDeadline(t) } // fails only on a closed connection, as writes will

func (c *bareCarrier) End(whole, unread bool) {
	switch {
	case whole && c.keepAlive:
		if c.conn.SetDeadline(time.Time{}) == nil && c.returned.give(c.conn) {
			return
		}
		c.conn.Close()
	case whole || unread:
		c.conn.linger()
	default:
		// Nobody reads: what is in the socket's buffer is dropped, not held for
		// minutes by the kernel.
		if tcp, ok := c.conn.socket.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		c.conn.Close()
	}
}

// linger ends our side and reads on for a moment before it closes: closing
// with unread bytes in the socket would reset the connection, and the reset
// would overtake the last event.
func (c *conn) linger() {
	if half, ok := c.socket.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = c.readOn(LingerTime) // however it ends, the connection is closed
	}
	c.Close()
}

// readOn drops what the client sends within a time. The error is why it ended before lingerBytes.
func (c *conn) readOn(within time.Duration) error {
	_ = c.SetReadDeadline(time.Now().Add(within)) // fails only on a closed connection, as reads will
	_, err := io.CopyN(io.Discard, c, lingerBytes)
	return err
}
