package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/lifetime"
	"weir/internal/trace"
	"weir/internal/wire/sock"
)

// conn is one connection to the engine. It belongs to one exchange or to the
// pool. Only abort and hangUp may be called from elsewhere.
type conn struct {
	net.Conn  // what is read and written: sock itself, or TLS over it
	sock      net.Conn
	secure    bool
	number    uint64        // among the client's connections, from 1
	fresh     bool          // it has not been in the pool yet
	reading   bool          // its present exchange, or the latest, is a reading of the engine
	open      bool          // what usable or ask has found
	unseen    bool          // whether it is open is for ask to find
	idle      time.Time     // since when it is in the pool
	keep      time.Duration // how long the engine keeps it; 0: not reported
	rested    time.Duration // for which it was idle when it was taken out of the pool
	sent      uint64        // bytes given to the socket, and what its system counts besides; 0: unknown, as with TLS
	acked     uint64        // sent, when it was taken out of the pool
	until     time.Time     // the deadline of reads; zero: there is none
	up        upload        // the request on its way
	*attached               // nil: the connection is detached

	gives givingUp // what giveUp does once an answer has begun

	mu     sync.Mutex
	giving givingUp
	left   bool // giveUp has ended the wait
	// bare is the socket once the connection is detached, when all above it is
	// closed; otherwise -1.
	bare int
}

// attached is what a connection needs while Go's poller has its socket.
type attached struct {
	raw  syscall.RawConn // of sock
	in   arrival         // what is being read
	try  trial           // what is being read without waiting
	out  departure       // what is being written
	trip trip            // the request that ask sends
	// Methods as the raw connection and contexts call them, made once: each exchange would make
	// them anew.
	givesUp            func()
	reads, peeks, goes func(fd uintptr) bool
	tries              func(fd uintptr)
}

func newConn(sock net.Conn) (*conn, error) {
	c := &conn{bare: -1}
	return c, c.over(sock)
}

// over makes the connection one over a socket.
func (c *conn) over(sock net.Conn) (err error) {
	sc, ok := sock.(syscall.Conn)
	if !ok {
		return os.ErrInvalid
	}
	c.Conn, c.sock = sock, sock
	c.attached = &attached{givesUp: c.giveUp, reads: c.readInto, peeks: c.peek, goes: c.goOut, tries: c.tryInto}
	c.raw, err = sc.SyscallConn()
	return err
}

// dup returns a second descriptor of the socket.
func (c *conn) dup() (fd int, err error) {
	fd = -1
	failed := c.raw.Control(func(old uintptr) {
		fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	})
	if failed != nil {
		return -1, failed
	}
	return fd, err
}

// detach leaves the connection with nothing but the descriptor that dup gave.
// Go's poller lets a socket go only when it closes its own descriptor; while it
// holds one it would wake for every event that somebody else polls for.
func (c *conn) detach(fd int) {
	_ = c.sock.Close() // the socket lives on in fd
	c.Conn, c.sock, c.attached = nil, nil, nil
	c.bare, c.until = fd, time.Time{}
}

// attach undoes detach. When it fails the connection can only be aborted.
func (c *conn) attach() error {
	if c.bare < 0 {
		return nil
	}
	f := os.NewFile(uintptr(c.bare), "engine")
	c.bare = -1
	sock, err := net.FileConn(f)
	if err == nil {
		err = f.Close()
	} else {
		_ = f.Close()
		return err
	}
	if err == nil {
		err = c.over(sock)
	}
	if err != nil {
		_ = sock.Close()
	}
	return err
}

// tryRead reads what is there; -1 is nothing, and all that TLS gives before the connection is
// detached.
func (c *conn) tryRead(p []byte) (n int, err error) {
	switch {
	case c.bare >= 0:
		n, err = sock.TryRead(c.bare, p)
	case c.secure:
		return -1, nil
	default:
		c.try = trial{p: p}
		closed := c.raw.Control(c.tries)
		n, err = c.try.n, c.try.err
		if c.try = (trial{}); closed != nil {
			return 0, closed
		}
	}
	switch {
	case err != nil:
		err = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("recv", err)}
	case n == 0:
		err = io.EOF
	}
	return n, err
}

// trial is what tryRead reads of a connection that is not detached.
type trial struct {
	p   []byte
	n   int
	err error
}

func (c *conn) tryInto(fd uintptr) { c.try.n, c.try.err = sock.TryRead(int(fd), c.try.p) }

// handshake puts TLS over the connection.
func (c *conn) handshake(ctx context.Context, config *tls.Config) error {
	secure := tls.Client(c.sock, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return err
	}
	c.Conn, c.secure, c.sent = secure, true, 0
	return nil
}

// abort ends the connection at once: what is blocked in it returns, and the
// engine learns that nobody listens. It does not wait for TLS to say goodbye.
//
// The connection is reset. A plain close would leave its port unusable for a minute
// (TIME_WAIT), and requests given up at 500 a second would leave none to connect from.
//
// A detached connection may only be aborted by who reads it.
func (c *conn) abort() {
	if c.bare >= 0 {
		_ = unix.SetsockoptLinger(c.bare, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // its errors change nothing
	} else if tcp, ok := c.sock.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.end()
}

// end closes the connection.
func (c *conn) end() {
	if c.bare >= 0 {
		_ = unix.Close(c.bare)
		c.bare = -1
	} else if c.sock != nil {
		_ = c.sock.Close() // its errors change nothing
	}
}

// The effect of giveUp, while the connection has an exchange.
type givingUp uint8

const (
	closing givingUp = iota // it closes the connection
	ending                  // it ends reads and writes; whoever makes them aborts the connection
	leaving                 // it only ends the wait for the engine
	nothing
)

// giveUp is what the end of the caller's context does. Unless it closes the connection, it
// makes no system call.
func (c *conn) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.giving {
	case closing:
		c.abort()
	case ending:
		c.left, c.until = true, time.Unix(1, 0)
		_ = c.sock.SetDeadline(c.until) // fails only on a closed connection, as reads will
	case leaving:
		c.left, c.until = true, time.Unix(1, 0)
		_ = c.sock.SetReadDeadline(c.until)
	}
}

// follow gives up when the caller's context ends, and until an answer begins only leaves if it
// must not close before. A caller with a context of package lifetime reads the body on after its
// end, to an error, or closes it. Only then is the connection closed.
func (c *conn) follow(ctx context.Context, leaves bool) (stop func() bool) {
	own := lifetime.Of(ctx)
	if c.gives = closing; own != nil {
		c.gives = ending
	}
	if c.giveUpBy(c.gives); leaves {
		c.giveUpBy(leaving)
	}
	if own != nil {
		return own.AtEnd(c.givesUp)
	}
	return context.AfterFunc(ctx, c.givesUp)
}

// giveUpBy reports what giveUp does from now on. When it returns nothing else is under way.
func (c *conn) giveUpBy(what givingUp) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.giving, c.left = what, false
}

// hangUp ends the side that is written to. It does not wait for TLS to say goodbye.
func (c *conn) hangUp() {
	if c.bare >= 0 {
		_ = unix.Shutdown(c.bare, unix.SHUT_WR) // its errors change nothing
		return
	}
	if half, ok := c.sock.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
}

// close ends a connection that nothing is going on on.
func (c *conn) close() { _ = c.Conn.Close() }

// bound sets how long waiting for the engine's answer may take; 0 removes the bound. A bound
// that was set before stays if it is at most a little earlier. TLS has to bound its writing
// too, the rest of a plain one is bounded by the reading.
func (c *conn) bound(within time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return nil
	}
	var t time.Time
	if within > 0 {
		t = time.Now().Add(within)
		if early := t.Sub(c.until); early >= 0 && early <= min(within/64, time.Second) {
			return nil
		}
	} else if c.until.IsZero() {
		return nil
	}
	c.until = t
	if c.secure {
		return c.SetDeadline(t)
	}
	return c.SetReadDeadline(t)
}

// unboundFor removes a bound that might pass within a time.
func (c *conn) unboundFor(d time.Duration) error {
	if c.until.IsZero() || time.Until(c.until) >= d {
		return nil
	}
	return c.bound(0)
}

// usable reports whether an idle connection can carry another exchange: the engine has
// neither closed it nor sent anything unrequested. It does not wait.
func (c *conn) usable() bool {
	c.open = false
	return c.raw.Read(c.peeks) == nil && c.open
}

// peek looks at what usable asks. It never waits.
func (c *conn) peek(fd uintptr) bool {
	c.open, _ = sock.TryPeek(int(fd))
	if c.acked = c.sent; c.secure && c.open {
		c.acked, _ = sock.Acknowledged(int(fd))
	}
	return true
}

// count begins to count what is sent. The system counts the beginning of the connection too.
func (c *conn) count() {
	_ = c.raw.Control(func(fd uintptr) { // otherwise it stays unknown
		c.sent, _ = sock.Acknowledged(int(fd))
	})
}

// unread says of a connection from the pool whose engine has ended its side without
// an answer (err is what the read gave) that the engine had none of the request when
// it did. The end of its side would have acknowledged what it had.
//
// It is what happens to a request that crosses with the closing of an idle
// connection. A reset proves nothing: an engine that dies with a part of a request
// unread sends one.
func (c *conn) unread(err error) bool {
	if c.fresh || c.acked == 0 || !errors.Is(err, io.ErrUnexpectedEOF) {
		return false
	}
	none := false
	err = c.raw.Control(func(fd uintptr) {
		now, ok := sock.Acknowledged(int(fd))
		none = ok && now <= c.acked
	})
	return err == nil && none
}

// buffer is borrowed while bytes are at hand and given back before a wait.
type buffer struct{ data []byte }

const bufferSize = 16 << 10

// buffers are spare ones.
type buffers struct{ pool sync.Pool }

// spares are those of all engines: a thousand engines that are only probed would otherwise keep
// two each, for a probe of a millisecond in ten seconds.
var spares buffers

func (p *buffers) take() *buffer {
	if b, ok := p.pool.Get().(*buffer); ok {
		return b
	}
	return &buffer{make([]byte, bufferSize)}
}

func (p *buffers) give(b *buffer) {
	if cap(b.data) == bufferSize { // one that had to grow is not kept
		b.data = b.data[:bufferSize]
		p.pool.Put(b)
	}
}

// await waits for the engine's next bytes and reads them into a buffer, which
// it takes only when they are there: a request that waits for its engine holds
// none.
func (c *conn) await(spare *buffers) (*buffer, int, error) {
	if c.secure {
		return c.awaitSecure(spare)
	}
	var err error
	if c.trip.back {
		err, c.trip = c.trip.err, trip{}
	} else {
		c.in = arrival{spare: spare}
		err = c.raw.Read(c.reads)
	}
	b, n, got := c.in.buf, c.in.n, c.in.err
	c.in = arrival{}
	switch {
	case err != nil:
	case got != nil:
		err = &net.OpError{Op: "read", Net: "tcp", Addr: c.RemoteAddr(), Err: os.NewSyscallError("read", got)}
	case n <= 0:
		err = io.EOF
	default:
		return b, n, nil
	}
	if b != nil {
		spare.give(b)
	}
	return nil, 0, err
}

// arrival is what await reads.
type arrival struct {
	spare *buffers
	buf   *buffer // nil: nothing is there
	n     int
	err   error
}

// readInto reads what is there, and says whether there was anything.
func (c *conn) readInto(fd uintptr) bool {
	in := &c.in
	in.buf = in.spare.take()
	if in.n, in.err = sock.TryRead(int(fd), in.buf.data); in.n >= 0 {
		return true
	}
	in.spare.give(in.buf)
	in.buf = nil
	return false
}

// awaitSecure waits with room for one byte; the rest of its record is then in
// TLS's own buffer.
func (c *conn) awaitSecure(spare *buffers) (*buffer, int, error) {
	var one [1]byte
	n, err := c.Read(one[:])
	if n == 0 {
		if err == nil {
			err = io.ErrNoProgress
		}
		return nil, 0, err
	}
	b := spare.take()
	b.data[0] = one[0]
	return b, 1, nil
}

// upload is a request on its way to the engine.
type upload struct {
	written atomic.Int64  // when its last byte was handed to the socket, 0 before
	err     error         // why it failed, when it was not left to a goroutine
	done    chan struct{} // closed by the goroutine; nil when there is none
}

// finished waits at most d for the last byte to be handed to the socket. An
// answer nearly always comes after that, but perhaps before the goroutine that
// wrote it has run on.
func (u *upload) finished(d time.Duration) bool {
	if u.done == nil {
		return true
	}
	select {
	case <-u.done:
		return true
	default:
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-u.done:
		return true
	case <-t.C:
		return false
	}
}

// wait returns once nothing of the request is touched any more. The connection
// must have been aborted or the upload have ended.
func (u *upload) wait() {
	if u.done != nil {
		<-u.done
	}
}

// inline is what TLS may write without a goroutine: it fits into what the
// socket of an idle connection takes without waiting.
const inline = bufferSize

// sendSecure writes a request over TLS: head, then body. It leaves a large one to a goroutine.
func (c *conn) sendSecure(head, body []byte) *upload {
	u := &c.up
	*u = upload{}
	if len(head)+len(body) > inline {
		c.sendLater(u, append([]byte(nil), head...), body)
		return u
	}
	if _, u.err = c.Write(append(head, body...)); u.err == nil {
		u.written.Store(trace.Now())
	}
	return u
}

// errGone reports that the engine had closed an idle connection, or written to it, before anything of
// the request was sent.
var errGone = errors.New("the connection was closed while it was idle")

// trip is a request that ask sends.
type trip struct {
	head  *buffer // nil: it was given back
	body  []byte
	rest  []byte // of the head
	spare *buffers
	sent  bool  // all is
	back  bool  // await gives what has come, or err
	err   error // of the poller
}

// ask sends a request over a plain socket: head, then body. It directly writes the bytes that the
// socket accepts at once, which is nearly always everything. If the engine reads more slowly, a
// goroutine writes the rest, so that an answer before the end of the request is noticed, as from an
// engine that refuses a body as too large. The goroutine ends when all is written or the connection
// is aborted; wait waits for it.
//
// If all was written, ask also waits for the first bytes of the answer, which await returns, in the
// same use of Go's poller. If it looked whether the connection is open, the socket held nothing when
// the request went, so it is not read before the poller reports something. The poller forgets its
// earlier reports at the beginning of that use, so it reports again what comes after the look. ask
// gives the head's buffer back unless it returns errGone.
func (c *conn) ask(head *buffer, body []byte, spare *buffers) (*upload, error) {
	u := &c.up
	*u = upload{}
	// One write for small requests, two for large ones.
	fits := min(cap(head.data)-len(head.data), len(body))
	c.trip = trip{head: head, rest: append(head.data, body[:fits]...), body: body[fits:], spare: spare}
	c.in, c.open = arrival{spare: spare}, true
	err := c.raw.Read(c.goes)
	t := c.trip
	c.trip = trip{}
	if t.sent {
		c.trip = trip{back: true, err: err}
		return u, nil
	}
	if !c.open {
		return u, errGone
	}
	if failed := c.out.err; failed != nil {
		u.err = c.writeError(failed)
	} else if err != nil {
		u.err = err
	} else { // head's buffer is given back before the goroutine is done with it
		c.sendLater(u, append([]byte(nil), t.rest...), t.body)
	}
	c.out = departure{}
	spare.give(t.head)
	return u, nil
}

// goOut does ask's part with the socket. It reports whether there is nothing to wait for.
func (c *conn) goOut(fd uintptr) bool {
	t := &c.trip
	if t.sent {
		return c.readInto(fd)
	}
	if c.unseen {
		if c.peek(fd); !c.open {
			return true
		}
	}
	for _, part := range [...]*[]byte{&t.rest, &t.body} {
		c.out = departure{rest: *part}
		c.writeOut(fd)
		if *part = c.out.rest; len(*part) > 0 {
			return true
		}
	}
	t.sent = true
	c.out = departure{}
	c.up.written.Store(trace.Now())
	t.spare.give(t.head)
	t.head = nil
	if c.unseen {
		return false
	}
	return c.readInto(fd)
}

func (c *conn) writeError(err error) error {
	return &net.OpError{Op: "write", Net: "tcp", Addr: c.RemoteAddr(), Err: os.NewSyscallError("write", err)}
}

// departure is what writeOut writes.
type departure struct {
	rest []byte
	err  error
}

// maxWrite bounds a write of which Go's scheduler is not informed, in bytes.
const maxWrite = 256 << 10

// writeOut writes what the socket takes. It never waits.
func (c *conn) writeOut(fd uintptr) {
	out := &c.out
	for len(out.rest) > 0 {
		n, err := sock.TryWrite(int(fd), out.rest[:min(len(out.rest), maxWrite)])
		if out.err = err; err != nil || n < 0 {
			return
		}
		out.rest = out.rest[n:]
		c.wrote(n)
	}
}

// wrote counts what was sent. A goroutine that sends ends before the connection is used again.
func (c *conn) wrote(n int) {
	if c.sent > 0 {
		c.sent += uint64(n)
	}
}

func (c *conn) sendLater(u *upload, head, body []byte) {
	u.done = make(chan struct{})
	go func() {
		defer close(u.done)
		parts := net.Buffers{head, body}
		n, err := parts.WriteTo(c.Conn)
		if c.wrote(int(n)); err == nil {
			u.written.Store(trace.Now())
		}
	}()
}
