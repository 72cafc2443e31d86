package gateway

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"

	"weir/internal/observe/busy"
	"weir/internal/observe/metrics"
	"weir/internal/wire/epoll"
)

// sockets polls those of streams that have left net/http: relay engines' for what
// they send, clients' for their hang-ups. The kernel has one lock for what is ready in an
// epoll instance, which each event takes. So each instance has the sockets of a few cores.
type sockets []*epoll.Poller[*worker]

// pollCores is how many cores share an instance. Those that share one help each other.
const pollCores = 4

// relayKind is the kind of all relayed engines.
const relayKind = "openai"

func newSockets(cores int, m *metrics.Metrics, meter *busy.Meter) sockets {
	of := m.Receive(relayKind)
	worker := func() *worker { return &worker{metrics: m, meter: meter, reads: reads{of: of}} }
	s := make(sockets, max(1, cores/pollCores))
	for i := range s {
		s[i] = epoll.New(cores*(i+1)/len(s)-cores*i/len(s), worker)
	}
	return s
}

// of returns the instance of a socket. Descriptors are multiplied by a large odd number before
// they are divided among the instances, because those of clients and those of engines are given
// out in turn.
func (s sockets) of(fd int) *epoll.Poller[*worker] {
	return s[int(uint32(fd)*2654435769>>16)%len(s)]
}

// assist calls back what is ready in one of the instances.
func (s sockets) assist(w *worker) {
	if len(s) > 0 {
		s[rand.IntN(len(s))].Assist(w)
	}
}

// Close ends the polling.
func (s sockets) Close() {
	for _, p := range s {
		p.Close()
	}
}

// poll implements poller.
func (s sockets) poll(fd int, ready func(w *worker, hup bool)) (stop func(), err error) {
	at, err := s.of(fd).Reads(fd, ready)
	if err != nil {
		return nil, err
	}
	return at.Stop, nil
}

// watch implements watcher. Only the end of the client's side is watched for,
// never its data, so that what it sends ahead stays in the socket for its next
// request.
func (s sockets) watch(conn net.Conn, gone func()) (stop func(), err error) {
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	c, err := sys.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("watch for a hang-up: %w", err)
	}
	var at *epoll.Socket[*worker]
	closed := c.Control(func(fd uintptr) { at, err = s.of(int(fd)).HangUp(int(fd), gone) })
	if err = errors.Join(err, closed); err != nil {
		return nil, fmt.Errorf("watch for a hang-up: %w", err)
	}
	return func() {
		if c.Control(func(uintptr) { at.Stop() }) != nil {
			at.Forget() // closed already: the kernel has forgotten it
		}
	}, nil
}
