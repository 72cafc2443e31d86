package load

import (
	"context"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/trace"
	"weir/internal/wire/epoll"
	"weir/internal/wire/sock"
)

// poller reads plain TCP connections, all of them with one goroutine per two cores (package
// epoll), and takes the kernel's receive stamps. So an event's time is its arrival in the
// kernel, and not the time after a thousand other connections have been read; load
// generators without stamps measure themselves.
//
// A turn reads until a read brings less than it had room for or, if the peer has ended its
// side, until the end.
type poller struct {
	*epoll.Poller[*turner]
	delayAcks bool
	stop      func() // of the stamps
}

func newPoller(delayAcks bool) (*poller, error) {
	stop, err := sock.Stamps()
	if err != nil {
		return nil, err
	}
	p := epoll.New(max(1, runtime.GOMAXPROCS(0)/2), func() *turner { return new(turner) })
	return &poller{p, delayAcks, stop}, nil
}

// close ends the polling. All sockets have been closed.
func (p *poller) close() {
	p.Close()
	p.stop()
}

// turner implements epoll.Worker. It has nothing at hand.
type turner struct{}

// Idle implements epoll.Worker.
func (*turner) Idle() {}

// conn takes a connection out of Go's poller and into this one.
func (p *poller) conn(tcp *net.TCPConn) (*conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		_ = tcp.Close()
		return nil, err
	}
	s := &socket{room: make(chan struct{}, 1), delayAcks: p.delayAcks}
	if e := raw.Control(func(old uintptr) { s.fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err == nil {
		err = e
	}
	_ = tcp.Close() // the duplicate keeps the connection
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	if s.at, err = p.Reads(s.fd, s.ready); err != nil {
		unix.Close(s.fd)
		return nil, err
	}
	cn := &conn{socket: s}
	cn.slow.src = s
	cn.buf = buffer{src: s, data: make([]byte, readBuffer)}
	return cn, nil
}

// socket is a polled connection.
type socket struct {
	fd        int
	at        *epoll.Socket[*turner]
	delayAcks bool
	room      chan struct{} // told to who waits for it to write
	recv      sock.Receiver

	mu      sync.Mutex
	full    bool      // somebody waits for room
	x       *exchange // that awaits a response, nil while there is none
	cn      *conn
	empty   bool // the last read brought all there was
	hup     bool // the peer has ended its side, or all of it
	closed  bool
	arrived int64 // what was read last
	history arrivals
}

// ready gives a turn, and wakes who waits to write.
func (s *socket) ready(_ *turner, hup bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full {
		select {
		case s.room <- struct{}{}:
		default:
		}
	}
	s.hup = s.hup || hup
	s.empty = false
	if x := s.x; x != nil && !s.closed && x.turn(s.cn) {
		s.x = nil
		x.over <- struct{}{}
	}
}

// listen passes the turns of a response to an exchange. It runs a first turn itself,
// because no edge may be left to trigger it, and reports whether that ended the response.
func (s *socket) listen(x *exchange, cn *conn) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cn, s.empty, s.arrived = cn, false, x.sample.Sent
	s.history.begin(x.sample.Sent)
	if known, ok := sock.Arrived(s.fd); ok {
		s.history.count(known)
	}
	if x.turn(cn) {
		return true
	}
	s.x = x
	return false
}

// leave ends the turns, and reports whether the response is over nevertheless.
func (s *socket) leave(x *exchange) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.x == x {
		s.x = nil
		return false
	}
	<-x.over
	return true
}

// receive implements source: what has arrived, and when. The lock is held.
func (s *socket) receive(p []byte) (n int, at int64, err error) {
	if s.empty {
		return 0, 0, errAgain
	}
	n, stamp, err := s.recv.TryReceive(s.fd, p)
	now := time.Now()
	at = trace.At(now)
	switch {
	case err != nil:
		return 0, at, os.NewSyscallError("recvmsg", err)
	case n < 0:
		s.empty = true
		return 0, 0, errAgain
	case n == 0:
		return 0, at, io.EOF
	}
	// If the peer has closed, a short read does not prove that all was read: only the end
	// does.
	s.empty = n < len(p) && !s.hup
	late := int64(unstamped) // and then it arrived when it was read
	if stamp != 0 {
		// If the wall clock was set meanwhile, the stamp must not lie before the previous
		// read or after its own.
		late = min(max(0, now.UnixNano()-stamp), at-s.arrived)
		at -= late
	}
	if s.delayAcks {
		_ = sock.DelayAck(s.fd) // an ACK at once costs time, and is no error
	}
	s.arrived = at
	s.history.read(n, len(p), at, stamp != 0)
	s.cn.late = append(s.cn.late, late)
	return n, at, nil
}

// since implements source. The lock is held.
func (s *socket) since(at int64, last bool) int64 {
	h := &s.history
	if last && h.exact() {
		return at
	}
	if h.asked {
		return h.first
	}
	known, told := sock.Arrived(s.fd)
	return h.oldest(at, known, told)
}

// try writes as much as the socket takes at once.
func (s *socket) try(b []byte) (int, error) {
	n, err := sock.TryWrite(s.fd, b)
	if err != nil {
		return 0, os.NewSyscallError("send", err)
	}
	return max(n, 0), nil
}

// write writes the rest of a request, waiting where the socket is full.
func (s *socket) write(ctx context.Context, timeout *time.Timer, b []byte) error {
	for waited := false; len(b) > 0; {
		n, err := s.try(b)
		if err != nil {
			return err
		}
		b = b[n:]
		if n > 0 {
			continue
		}
		if !waited {
			waited = true
			s.await(true)
			defer s.await(false)
			if err := s.at.Room(); err != nil {
				return err
			}
		}
		select {
		case <-s.room:
		case <-timeout.C:
			return os.ErrDeadlineExceeded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// await reports whether somebody waits for room.
func (s *socket) await(room bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.full = room
}

// quiet reports whether the connection is open and has nothing to read.
func (s *socket) quiet() bool { return empty(s.fd) }

func (s *socket) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	err := unix.Close(s.fd) // which takes it out of the epoll instance too
	s.at.Forget()
	return os.NewSyscallError("close", err)
}
