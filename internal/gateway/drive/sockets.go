package drive

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"weir/internal/observe/busy"
	"weir/internal/observe/metrics"
	"weir/internal/wire/epoll"
)

// Poller notices that sockets have something to read.
type Poller interface {
	// Poll calls ready, on a worker's goroutine, whenever a socket that is read without
	// waiting has input; hup is set if the peer has also ended its side, or if the
	// connection broke. ready must not block. stop ends the polling, although a call
	// may still be under way; it must be called before the socket is closed or handed
	// on.
	Poll(fd int, ready func(w *Worker, hup bool)) (stop func(), err error)
}

// RelayKind is the kind of all relayed engines.
const RelayKind = "openai"

// Sockets polls those of streams that have left net/http: relay engines' for what
// they send, clients' for their hang-ups.
type Sockets struct{ *epoll.Poller[*Worker] }

// NewSockets makes the pollers of so many cores.
func NewSockets(cores int, m *metrics.Metrics, meter *busy.Meter) Sockets {
	of := m.Receive(RelayKind)
	return Sockets{epoll.New(cores, func() *Worker { return &Worker{metrics: m, meter: meter, reads: reads{of: of}} })}
}

// Poll implements Poller.
func (s Sockets) Poll(fd int, ready func(w *Worker, hup bool)) (stop func(), err error) {
	at, err := s.Reads(fd, ready)
	if err != nil {
		return nil, err
	}
	return at.Stop, nil
}

// Watch implements front.Watcher. Only the end of the client's side is watched for,
// never its data, so that what it sends ahead stays in the socket for its next
// request.
func (s Sockets) Watch(conn net.Conn, gone func()) (stop func(), err error) {
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	c, err := sys.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("watch for a hang-up: %w", err)
	}
	var at *epoll.Socket[*Worker]
	closed := c.Control(func(fd uintptr) { at, err = s.HangUp(int(fd), gone) })
	if err = errors.Join(err, closed); err != nil {
		return nil, fmt.Errorf("watch for a hang-up: %w", err)
	}
	return at.Forget, nil // the kernel forgets it when it is closed
}
