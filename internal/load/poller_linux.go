package load

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/sock"
	"weir/internal/trace"
)

// poller reads plain TCP connections, all of them in one goroutine per two cores,
// together with the kernel's receive stamps.
//
// The obvious way, a goroutine per stream blocked in a read, costs each event a
// wake-up by Go's scheduler and a read that only learns that there is nothing
// more; and it stamps an event when a thousand others have been read, which is
// how load generators come to measure themselves. Here an event's time is that
// of its arrival in the kernel, and what the reading costs is a system call.
//
// Sockets are polled edge by edge: a turn reads until a read brings less than
// it had room for, or, where the peer has ended its side, until the end.
type poller struct {
	loops []*pollLoop
	mu    sync.Mutex
	next  int
	stop  func()
}

// pollLoop is one goroutine's epoll instance and its sockets.
type pollLoop struct {
	epoll, wake int
	done        chan struct{}
	delayAcks   bool

	mu    sync.Mutex
	slots []*socket
	free  []uint32
}

// wakeSlot is the place of the descriptor that ends a loop.
const wakeSlot = -1

func newPoller(delayAcks bool) (*poller, error) {
	stop, err := sock.Stamps()
	if err != nil {
		return nil, err
	}
	p := &poller{stop: stop}
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		l, err := newPollLoop(delayAcks)
		if err != nil {
			p.close()
			return nil, err
		}
		p.loops = append(p.loops, l)
	}
	return p, nil
}

func newPollLoop(delayAcks bool) (*pollLoop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: wakeSlot})
	}
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	l := &pollLoop{epoll: epoll, wake: wake, done: make(chan struct{}), delayAcks: delayAcks}
	go l.run()
	return l, nil
}

// waiters is the number of loops.
func (p *poller) waiters() int {
	if p == nil {
		return 0
	}
	return len(p.loops)
}

// close ends the loops. All sockets have been closed.
func (p *poller) close() {
	for _, l := range p.loops {
		_, _ = unix.Write(l.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // cannot fail: nobody else writes
		<-l.done
		unix.Close(l.wake)
		unix.Close(l.epoll)
	}
	p.stop()
}

func (l *pollLoop) run() {
	defer close(l.done)
	var events [256]unix.EpollEvent
	var ready [256]*socket
	for {
		n, err := sock.Ready(l.epoll, events[:])
		if n == 0 && err == nil {
			n, err = unix.EpollWait(l.epoll, events[:], -1)
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(fmt.Sprintf("load: epoll: %v", err)) // the instance is ours and open
		}
		l.mu.Lock()
		for i := range max(n, 0) {
			if events[i].Fd == wakeSlot {
				l.mu.Unlock()
				return
			}
			ready[i] = l.slots[events[i].Fd]
		}
		l.mu.Unlock()
		for i := range max(n, 0) {
			// One that has been closed since is gone; one that took its place reads in vain.
			if s := ready[i]; s != nil {
				s.ready(events[i].Events)
			}
		}
	}
}

// conn takes a connection out of Go's poller and into this one.
func (p *poller) conn(tcp *net.TCPConn) (*conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		_ = tcp.Close()
		return nil, err
	}
	s := &socket{writable: make(chan struct{}, 1)}
	if e := raw.Control(func(old uintptr) { s.fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); err == nil {
		err = e
	}
	_ = tcp.Close() // the duplicate keeps the connection
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	p.mu.Lock()
	s.loop = p.loops[p.next%len(p.loops)]
	p.next++
	p.mu.Unlock()
	if err := s.loop.add(s); err != nil {
		unix.Close(s.fd)
		return nil, err
	}
	cn := &conn{socket: s}
	cn.slow.src = s
	cn.buf = buffer{src: s, data: make([]byte, readBuffer)}
	return cn, nil
}

func (l *pollLoop) add(s *socket) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		s.slot, l.free = l.free[n-1], l.free[:n-1]
	} else {
		s.slot = uint32(len(l.slots))
		l.slots = append(l.slots, nil)
	}
	l.slots[s.slot] = s
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(s.slot)}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, s.fd, &ev); err != nil {
		l.leave(s)
		return fmt.Errorf("epoll: %w", err)
	}
	return nil
}

// leave frees the place of a socket. The caller holds the lock.
func (l *pollLoop) leave(s *socket) {
	l.slots[s.slot] = nil
	l.free = append(l.free, s.slot)
}

// socket is a polled connection.
type socket struct {
	fd       int
	loop     *pollLoop
	slot     uint32
	writable chan struct{}
	recv     sock.Receiver

	mu      sync.Mutex
	x       *exchange // that awaits a response, nil while there is none
	cn      *conn
	empty   bool // the last read brought all there was
	hup     bool // the peer has ended its side, or all of it
	closed  bool
	arrived int64 // what was read last
}

// ready serves what the kernel said of the socket.
func (s *socket) ready(events uint32) {
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		select {
		case s.writable <- struct{}{}:
		default:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hup = s.hup || events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	s.empty = false
	if x := s.x; x != nil && !s.closed && x.turn(s.cn) {
		s.x = nil
		x.over <- struct{}{}
	}
}

// listen gives the turns of a response to an exchange, after a first one, which
// no edge may be left to bring, and says whether the response is over with it.
func (s *socket) listen(x *exchange, cn *conn) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cn, s.empty, s.arrived = cn, false, x.sample.Sent
	if x.turn(cn) {
		return true
	}
	s.x = x
	return false
}

// leave ends the turns, and says whether the response is over all the same.
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
	// Of what came before an end that has been told, only the end itself tells that
	// it was all.
	s.empty = n < len(p) && !s.hup
	late := int64(unstamped) // and then it arrived when it was read
	if stamp != 0 {
		// A wall clock that was set meanwhile must not put a read before the one
		// before it, or after its own time.
		late = min(max(0, now.UnixNano()-stamp), at-s.arrived)
		at -= late
	}
	if s.loop.delayAcks {
		_ = sock.DelayAck(s.fd) // an ACK at once costs time, and is no error
	}
	s.arrived = at
	s.cn.late = append(s.cn.late, late)
	return n, at, nil
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
	for len(b) > 0 {
		n, err := sock.TryWrite(s.fd, b)
		if err != nil {
			return os.NewSyscallError("send", err)
		}
		if b = b[max(n, 0):]; n >= 0 {
			continue // an edge comes only once the socket was full
		}
		select {
		case <-s.writable:
		case <-timeout.C:
			return os.ErrDeadlineExceeded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// quiet says that the connection is open and has nothing to read.
func (s *socket) quiet() bool { return empty(s.fd) }

func (s *socket) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.loop.mu.Lock()
	s.loop.leave(s)
	s.loop.mu.Unlock()
	return os.NewSyscallError("close", unix.Close(s.fd)) // which takes it out of the epoll instance too
}
