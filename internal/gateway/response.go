package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"weir/internal/gateway/answer"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/internal/wire/sock"
)

// response is the way back to the caller, and how far it has come.
type response struct {
	carrier
	begun    bool  // its head was decided: the request cannot be retried
	bounded  bool  // a write deadline is set
	watched  bool  // the hang-up is noticed by conn
	unread   bool  // more of its request's body may come, which nobody wants
	events   bool  // it is a stream of events
	deadline int64 // and when it is, on trace's clock
	blocked  int   // bytes of the write that is under way

	conn   *conn // nil when it is not one of Listener's
	*front       // nil: the response has left it

	breaking breaking
}

// front is net/http's side of a response, or that of direct, which serves like it.
type front struct {
	w             http.ResponseWriter
	rc            http.ResponseController
	r             *http.Request
	stopFollowing func() bool // its notice of the hang-up, where that is needed
}

// breaking ends a write that waits for the client, and a read of its body, when the request's
// context ends. After a hang-up they end at once. Otherwise the client is there and is to get
// an error, which cannot follow a write that was broken off, so the write has some time left.
type breaking struct {
	mu    sync.Mutex
	w     deadlined // nil: it has not begun, or is over
	by    uint32    // when ended: breakOff ends the writes by then, in milliseconds of trace's clock modulo 2^32
	ended bool      // by breakOff
	reads bool      // the body may be being read
}

// deadlined is a connection whose reads and writes can end by a deadline.
type deadlined interface {
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// broken is a deadline that has passed.
var broken = time.Unix(1, 0)

// lastWords bounds a write that was under way when something other than a hang-up ended its
// request, and the error that follows it.
const lastWords = 5 * time.Second

// begin has breakOff end the writes to w.
func (b *breaking) begin(w deadlined) {
	b.mu.Lock()
	b.w, b.ended, b.reads = w, false, false
	b.mu.Unlock()
}

// reading says whether the body is being read. A read that begins after breakOff does not end
// by it.
func (b *breaking) reading(reads bool) {
	b.mu.Lock()
	b.reads = reads
	b.mu.Unlock()
}

// bound bounds a write to w, by the end of the writes at the latest: a deadline of its own would
// undo that.
func (b *breaking) bound(w deadlined, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		if by := deadlineAt(b.by); by.Before(until) {
			until = by
		}
	}
	_ = w.SetWriteDeadline(until) // fails only on a closed connection, as writes will
}

// soon is a time from now as breaking keeps it, in few bytes because an exchange fills its size
// class.
func soon(left time.Duration) uint32 { return uint32((trace.Now() + int64(left)) / 1e6) }

// deadlineAt is such a time as a deadline.
func deadlineAt(by uint32) time.Time {
	return time.Now().Add(time.Duration(int32(by-soon(0))) * time.Millisecond)
}

// breakOff ends the writes within a time, and a read of the body at once.
func (b *breaking) breakOff(within time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.w == nil {
		return
	}
	if by := soon(within); !b.ended || int32(by-b.by) < 0 {
		b.by, b.ended = by, true
		_ = b.w.SetWriteDeadline(deadlineAt(by)) // fails only on a closed connection, as writes will
	}
	if b.reads {
		_ = b.w.SetReadDeadline(broken) // likewise
	}
}

// end ends it. From here on deadlines are the caller's own, and w need not live.
func (b *breaking) end() { b.begin(nil) }

// left reports whether the response has left net/http.
func (r *response) left() bool { return r.front == nil }

// extendDeadline keeps the write deadline between one and one and a half timeouts
// ahead, so that it is not set for every write. It reports whether it was set.
func (r *response) extendDeadline(now int64, timeout time.Duration) (extended bool) {
	if r.bounded && r.deadline-now >= int64(timeout) {
		return false
	}
	ahead := timeout + timeout/2
	r.bounded, r.deadline = true, now+int64(ahead)
	r.setDeadline(time.Now().Add(ahead))
	return true
}

// arm bounds the write to come. When it has moved the deadline the context is looked
// at: its end may have moved it before (leave), so that a write does not wait.
func (r *response) arm(ctx context.Context, now int64, timeout time.Duration) error {
	if r.extendDeadline(now, timeout) && ctx.Err() != nil {
		return gone(ctx)
	}
	return nil
}

// carrier writes a response to the caller. There are two. Every response begins on the
// carrier over net/http, and one that is whole at its first write ends there. A stream of
// events over plain HTTP/1.1 leaves it otherwise, with its first write, and continues on the
// bare connection (see leave), where a write is one system call and no state of net/http is
// kept for the life of the stream.
type carrier interface {
	// send sends the part of b that can be sent without waiting, after the response
	// head if that is still due. last is set if b completes the response. If a part of
	// b remains, whole is false and the carrier keeps the rest.
	send(w *worker, b []byte, last bool) (whole bool, err error)
	// rest waits until what send kept is sent.
	rest() error
	// setDeadline bounds writes.
	setDeadline(time.Time)
	// end is called once after the response. Unless it was whole, its
	// connection is broken, so that it never looks complete. unread says that
	// the client may not have read all that was written, and still may.
	end(whole, unread bool)
}

// httpCarrier answers through net/http, whose server owns the connection. It cannot
// write without waiting.
type httpCarrier struct {
	front
	status int // of the head, if that is still due
	spare  *spare[*[]byte]
	buf    *[]byte // of spare, while something is kept
	kept   []byte
	last   bool      // kept completes the response
	until  time.Time // the deadline of writes
}

func (c *httpCarrier) send(_ *worker, b []byte, last bool) (whole bool, err error) {
	if c.buf == nil {
		c.buf = c.spare.take()
		c.kept = (*c.buf)[:0]
	}
	c.kept, c.last = append(c.kept, b...), last
	return false, nil
}

// release gives back the memory of what was kept.
func (c *httpCarrier) release() {
	if c.buf != nil {
		c.spare.give(c.buf)
		c.buf, c.kept = nil, nil
	}
}

// atOnce is a ResponseWriter that can send what it is given, with the head if that is due and
// the end if it is last, without keeping a copy.
type atOnce interface {
	WriteAtOnce(b []byte, last bool) error
}

func (c *httpCarrier) rest() error {
	if c.status != 0 {
		if h := c.w.Header(); c.last && h["Content-Length"] == nil {
			h["Content-Length"] = []string{strconv.Itoa(len(c.kept))} // net/http would write the end by itself
		}
		c.w.WriteHeader(c.status)
		c.status = 0
	}
	var err error
	if w, ok := c.w.(atOnce); ok {
		err = w.WriteAtOnce(c.kept, c.last)
	} else if _, err = c.w.Write(c.kept); err == nil {
		err = c.rc.Flush()
	}
	c.release()
	if errors.Is(err, os.ErrDeadlineExceeded) && !time.Now().Before(c.until) {
		return errUnread // and not broken off before
	}
	return err
}

// setDeadline cannot do more than try: a writer that has no deadlines is not a
// socket, and does not block for ever.
func (c *httpCarrier) setDeadline(t time.Time) {
	c.until = t
	_ = c.rc.SetWriteDeadline(t)
}

func (c *httpCarrier) end(whole, unread bool) {
	if whole {
		return
	}
	if w, ok := c.w.(*directWriter); ok {
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
	socket    tryWriter    // &fd, but where the connection writes by itself
	fd        socketWriter // of its socket
	due       bool         // the head
	torn      bool         // a chunk was sent in part: nothing can follow it
	keepAlive bool

	kept     []byte
	returned *returnedConns
}

// tryWriter writes as much as a connection accepts without waiting; n is -1 if it
// accepts nothing. Only one goroutine may use it at a time, and only while the
// connection cannot be closed.
type tryWriter interface {
	tryWrite(p []byte) (n int, err error)
}

// tryWriterOf returns a connection's own, or that of its socket.
func tryWriterOf(c net.Conn) (w tryWriter, ok bool) {
	if own, ok := c.(tryWriter); ok {
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

// tryWriter returns that of the connection.
func (c *conn) tryWriter() (w tryWriter, ok bool) {
	if c.peer != nil { // which has it already
		return c.peer.writer, true
	}
	return tryWriterOf(c.socket)
}

// socketWriter is the tryWriter of a socket.
type socketWriter int

func (fd socketWriter) tryWrite(p []byte) (n int, err error) { return sock.TryWrite(int(fd), p) }

// watcher notices that the peers of connections have hung up.
type watcher interface {
	// watch calls gone once when the peer has ended its side of the connection
	// or broken it, also if it already has. gone must not block. stop ends the
	// watch; it must be called when the connection is about to be closed.
	watch(c net.Conn, gone func()) (stop func(), err error)
}

// poller notices that sockets have something to read.
type poller interface {
	// poll calls ready, on a worker's goroutine, whenever a socket that is read without
	// waiting has input; hup is set if the peer has also ended its side, or if the
	// connection broke. ready must not block. stop ends the polling, although a call
	// may still be under way; it must be called before the socket is closed or handed
	// on.
	poll(fd int, ready func(w *worker, hup bool)) (stop func(), err error)
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

func (c *bareCarrier) send(w *worker, b []byte, last bool) (whole bool, err error) {
	if c.torn {
		return false, errTorn
	}
	w.frame = c.frame(w.frame[:0], b, last)
	n, err := c.socket.tryWrite(w.frame)
	whole = n == len(w.frame)
	if !whole && err == nil {
		c.kept = bytes.Clone(w.frame[max(n, 0):])
	}
	return whole, err
}

func (c *bareCarrier) rest() error {
	rest := c.kept
	c.kept = nil
	_, err := c.conn.Write(rest)
	c.torn = err != nil
	return err
}

func (c *bareCarrier) setDeadline(t time.Time) { _ = c.conn.SetWriteDeadline(t) } // fails only on a closed connection, as writes will

func (c *bareCarrier) end(whole, unread bool) {
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

// The time and bytes that a closed connection is read on for.
const (
	lingerTime  = 500 * time.Millisecond
	lingerBytes = 256 << 10
)

// linger ends our side and reads on for a moment before it closes: closing
// with unread bytes in the socket would reset the connection, and the reset
// would overtake the last event.
func (c *conn) linger() {
	if half, ok := c.socket.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerTime))
		_, _ = io.CopyN(io.Discard, c, lingerBytes) // however it ends, the connection is closed
	}
	c.Close()
}

// open decides on the response's head, by the first part of the answer.
func (x *exchange) open(first answer.Part) {
	h := x.response.w.Header()
	status, events := x.leg.head(h, first)
	setRequestID(h, x.endpoint, x.rec.RequestID)
	x.rec.PutTiming(h)
	x.begin(status, events)
}

// begin begins the response. From here on the request cannot be retried.
func (x *exchange) begin(status int, events bool) {
	r := &x.response
	r.begun, r.events = true, events
	r.carrier.(*httpCarrier).status = status
	x.rec.Status = int32(status)
	x.forget()
	x.forgetAsking()
}

// leaver is a ResponseWriter from which a stream can leave without Hijack, also after its head
// was sent. ok is false if it cannot now.
type leaver interface{ leave() (sent, ok bool) }

// leave takes the stream off net/http, if it can: before its first write, which the carrier that
// it returns has kept, or between two writes of a writer that lets it go. From here on another
// carrier has it. That frees the buffers of 10 KB and the two goroutines that net/http held for
// the request. It leaves responses where they are that it cannot serve: those that are no
// streams, HTTP/2, HTTP/1.0, TLS, and systems without epoll.
//
// From here on weir does the work of net/http: serving the connection's next request
// (returnedConns gives it back, with what the client sent ahead), ending on shutdown
// (the gateway waits for live requests, and Cut), and closing so that a last event
// arrives (linger). Noticing the hang-up was weir's before (conn.follow).
func (r *response) leave(g *Gateway) (was *httpCarrier, ok bool) {
	was, ok = r.carrier.(*httpCarrier)
	if !ok {
		return nil, false
	}
	w, direct := r.w.(leaver)
	if was.status == 0 && !direct || !r.events || !r.r.ProtoAtLeast(1, 1) || r.r.TLS != nil || !g.returned.serving.Load() || !r.watched {
		return nil, false
	}
	c := r.conn
	socket, ok := c.tryWriter()
	if !ok {
		return nil, false
	}
	sent := false
	if direct {
		if sent, ok = w.leave(); !ok {
			return nil, false
		}
	} else {
		_, rw, err := r.rc.Hijack()
		if err != nil {
			return nil, false
		}
		if n := rw.Reader.Buffered(); n > 0 {
			ahead, _ := rw.Reader.Peek(n) // buffered, so it cannot fail
			c.ahead = append(bytes.Clone(ahead), c.ahead...)
		}
	}
	bare := &bareCarrier{conn: c, socket: socket, keepAlive: !r.r.Close, returned: g.returned}
	if fd, ok := socket.(socketWriter); ok {
		bare.fd, bare.socket = fd, &bare.fd
	}
	if !sent {
		h := r.w.Header()
		delete(h, "Content-Length")
		bare.due, bare.head = true, appendResponseHead(make([]byte, 0, 512), h, was.status, bare.keepAlive, true)
	}
	r.carrier = bare
	r.bounded = false // net/http has taken the deadline away
	// net/http's buffers live as long as anything of its request does.
	r.front = nil
	g.tidy.leave()
	return was, true
}

// lost is why a write failed.
func lost(ctx context.Context, err error, timeout time.Duration) error {
	if ctx.Err() != nil && !errors.Is(err, errUnread) {
		return gone(ctx)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &infer.Error{Code: infer.CodeSlowClient, Cause: err, Message: "the client did not read for " + timeout.String()}
	}
	return &infer.Error{Code: infer.CodeCancelled, Message: "the client closed the connection", Cause: err}
}

// returnedConns is a listener whose connections come from detached streams
// that have ended: the HTTP server serves their next requests. Until the next
// one's first byte the server takes such a connection for a new one, which its
// Shutdown would wait for; so those are closed with the listener.
type returnedConns struct {
	conns       chan net.Conn
	closed      chan struct{}
	serving     atomic.Bool // somebody accepts
	direct      *direct
	headTimeout time.Duration // of a request's head, once it has begun

	mu   sync.Mutex
	idle map[*conn]struct{} // nil once closed
	late map[*conn]struct{} // whose next request had come before that
}

func newReturnedConns(headTimeout time.Duration) *returnedConns {
	return &returnedConns{headTimeout: headTimeout, conns: make(chan net.Conn), closed: make(chan struct{}), idle: map[*conn]struct{}{}}
}

// rest notes that a connection waits for its next request. It returns false if none is
// accepted any more.
func (r *returnedConns) rest(c *conn) bool {
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
func (r *returnedConns) give(c *conn) bool {
	c.entry.Idle(time.Now())
	if c.peer != nil {
		c.peer.bounded = time.Time{} // the stream has taken the deadlines away
		r.direct.serve(c, keepAliveTimeout)
		return true
	}
	return r.rest(c) && r.hand(c)
}

// hand hands a connection over to net/http.
func (r *returnedConns) hand(c *conn) bool {
	select {
	case r.conns <- c:
		return true
	case <-r.closed:
		return false
	}
}

// busy reports that a connection has its next request, or has ended. It returns false once
// all that wait are closed.
func (r *returnedConns) busy(c *conn) (open bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.idle, c)
	_, late := r.late[c]
	return late || r.idle != nil
}

// Accept implements net.Listener.
func (r *returnedConns) Accept() (net.Conn, error) {
	r.serving.Store(true)
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
func (r *returnedConns) Close() error {
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
func (r *returnedConns) Addr() net.Addr { return returnedAddr{} }

type returnedAddr struct{}

func (returnedAddr) Network() string { return "internal" }
func (returnedAddr) String() string  { return "returned connections" }
