package gateway

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// hangups notices that clients have hung up, for the streams that left
// net/http. One goroutine waits on one epoll instance for all of them: the
// obvious way, a goroutine per stream blocked in a read, costs each stream a
// stack and a read that must be interrupted before the connection's next
// request.
//
// Only the end of the client's side is watched for, never its data, so that
// what it sends ahead stays in the socket for its next request.
type hangups struct {
	open  sync.Once // with the first watch
	err   error     // of opening
	epoll int
	wake  int           // an eventfd that ends the wait
	done  chan struct{} // nil unless open

	mu    sync.Mutex
	next  uint64
	calls map[uint64]func()
}

// wakeID is the eventfd's; streams count from 1.
const wakeID = 0

func newHangups() *hangups { return &hangups{calls: map[uint64]func(){}} }

// start opens the epoll instance and starts its goroutine.
func (h *hangups) start() error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return fmt.Errorf("eventfd: %w", err)
	}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, event(unix.EPOLLIN, wakeID)); err != nil {
		unix.Close(epoll)
		unix.Close(wake)
		return fmt.Errorf("epoll: %w", err)
	}
	h.epoll, h.wake, h.done = epoll, wake, make(chan struct{})
	go h.run()
	return nil
}

// event carries an id in the 64 bits that the kernel hands back.
func event(events uint32, id uint64) *unix.EpollEvent {
	return &unix.EpollEvent{Events: events, Fd: int32(uint32(id)), Pad: int32(uint32(id >> 32))}
}

// watch implements watcher.
func (h *hangups) watch(conn net.Conn, gone func()) (stop func(), err error) {
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	c, err := sys.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("watch for a hang-up: %w", err)
	}
	if h.open.Do(func() { h.err = h.start() }); h.err != nil {
		return nil, h.err
	}
	h.mu.Lock()
	h.next++
	id := h.next
	h.calls[id] = gone
	h.mu.Unlock()
	var failed error
	err = c.Control(func(fd uintptr) {
		failed = unix.EpollCtl(h.epoll, unix.EPOLL_CTL_ADD, int(fd), event(unix.EPOLLRDHUP|unix.EPOLLONESHOT, id))
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		h.forget(id)
		return nil, fmt.Errorf("watch for a hang-up: %w", err)
	}
	return func() { h.stop(c, id) }, nil
}

func (h *hangups) forget(id uint64) func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	call := h.calls[id]
	delete(h.calls, id)
	return call
}

func (h *hangups) stop(c syscall.RawConn, id uint64) {
	h.forget(id)
	_ = c.Control(func(fd uintptr) {
		_ = unix.EpollCtl(h.epoll, unix.EPOLL_CTL_DEL, int(fd), nil) // fails only if it is not there
	})
}

func (h *hangups) run() {
	defer close(h.done)
	events := make([]unix.EpollEvent, 128)
	for {
		n, err := unix.EpollWait(h.epoll, events, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			panic(fmt.Sprintf("epoll wait: %v", err)) // the instance is ours and open
		}
		for _, e := range events[:n] {
			id := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if id == wakeID {
				return
			}
			if call := h.forget(id); call != nil {
				call()
			}
		}
	}
}

// close ends the goroutine, if there is one, and waits for it.
func (h *hangups) close() {
	h.open.Do(func() { h.err = net.ErrClosed })
	if h.done == nil {
		return
	}
	_, _ = unix.Write(h.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // cannot fail: it is ours and open
	<-h.done
	unix.Close(h.epoll)
	unix.Close(h.wake)
}
