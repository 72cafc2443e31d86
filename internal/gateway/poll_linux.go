package gateway

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/metrics"
	"weir/internal/sock"
)

// epolls polls the sockets of the streams that have left net/http: those of
// relay engines for what they send, those of clients for their hang-ups. Sockets
// that are ready are called back one by one, by one goroutine, and when there are
// too many for it by others beside it, up to one per core.
//
// The obvious way, a goroutine per stream blocked in a read, costs each event a
// wake-up, and a read that only learns that there is nothing more; and each
// stream a stack. An epoll instance is itself something to poll: between events
// its goroutine is parked in Go's own poller. Blocked in epoll_wait it would hold
// a thread, which the runtime takes out of a core and puts back for every wait.
// Between Go's poller and the sockets' instance stands a second one, the gate,
// which is open only while the goroutine is parked: otherwise every event would
// wake a thread of Go's poller, to find that somebody is at work already.
//
// Sockets are polled edge by edge. That loses nothing because a call back either
// reads until the socket is empty, or until it gave less than asked for with no
// end of the peer's side reported; such an end is an edge of its own.
type epolls struct {
	open    sync.Once // with the first socket
	err     error     // of opening
	helpers int
	metrics *metrics.Metrics
	fd      int
	gate    *os.File // in Go's poller
	raw     syscall.RawConn
	wake    chan struct{} // rouses a helper
	stop    chan struct{}
	done    sync.WaitGroup

	mu    sync.Mutex
	slots []pollSlot
	free  []uint32
}

// pollSlot is a socket's place. What the kernel hands back names a slot and its
// generation, so that an event of a socket that was left, read in one batch with
// its leaving, is nobody else's.
type pollSlot struct {
	generation uint32
	ready      func(w *worker, hup bool)
}

func newEpolls(cores int, m *metrics.Metrics) *epolls { return &epolls{helpers: cores - 1, metrics: m} }

func (e *epolls) start() (err error) {
	if e.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	gate, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(gate, true) // or Go's poller would not take it
	}
	if err == nil {
		err = unix.EpollCtl(gate, unix.EPOLL_CTL_ADD, e.fd, &unix.EpollEvent{})
	}
	if err == nil {
		e.gate = os.NewFile(uintptr(gate), "epoll")
		e.raw, err = e.gate.SyscallConn()
	}
	if err != nil {
		unix.Close(e.fd)
		unix.Close(gate) // fails when there is none
		return fmt.Errorf("epoll: %w", err)
	}
	e.wake, e.stop = make(chan struct{}, e.helpers), make(chan struct{})
	e.done.Go(e.run)
	for range e.helpers {
		e.done.Go(e.help)
	}
	return nil
}

// poll implements poller.
func (e *epolls) poll(fd int, ready func(w *worker, hup bool)) (stop func(), err error) {
	at, err := e.add(fd, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLET, ready)
	if err != nil {
		return nil, err
	}
	return at.stop, nil
}

func (e *epolls) add(fd int, events uint32, ready func(w *worker, hup bool)) (*polled, error) {
	if e.open.Do(func() { e.err = e.start() }); e.err != nil {
		return nil, e.err
	}
	slot, generation := e.take(ready)
	ev := unix.EpollEvent{Events: events, Fd: int32(slot), Pad: int32(generation)}
	if err := unix.EpollCtl(e.fd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		e.leave(slot, generation)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &polled{e, fd, slot, generation}, nil
}

// polled is a socket in its place.
type polled struct {
	e                *epolls
	fd               int
	slot, generation uint32
}

// stop ends the polling, before the socket is closed or handed on.
func (p *polled) stop() {
	p.e.leave(p.slot, p.generation)
	_ = unix.EpollCtl(p.e.fd, unix.EPOLL_CTL_DEL, p.fd, nil) // fails only if it is not there
}

func (e *epolls) take(ready func(w *worker, hup bool)) (slot, generation uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.free); n > 0 {
		slot, e.free = e.free[n-1], e.free[:n-1]
	} else {
		slot = uint32(len(e.slots))
		e.slots = append(e.slots, pollSlot{})
	}
	e.slots[slot].ready = ready
	return slot, e.slots[slot].generation
}

// leave frees a slot, if it is still the generation's.
func (e *epolls) leave(slot, generation uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := &e.slots[slot]; s.generation == generation {
		s.generation++
		s.ready = nil
		e.free = append(e.free, slot)
	}
}

// batch is what is fetched at once.
type batch struct {
	events [64]unix.EpollEvent
	ready  [64]func(w *worker, hup bool)
}

// serve calls back what is ready, and says whether anything was.
func (e *epolls) serve(b *batch, w *worker) bool {
	n := e.fetch(e.fd, b.events[:])
	if n == 0 {
		return false
	}
	if n == len(b.events) {
		select {
		case e.wake <- struct{}{}: // there are probably more
		default:
		}
	}
	e.mu.Lock()
	for i := range n {
		slot, generation := uint32(b.events[i].Fd), uint32(b.events[i].Pad)
		b.ready[i] = nil
		if s := &e.slots[slot]; s.generation == generation {
			b.ready[i] = s.ready
		}
	}
	e.mu.Unlock()
	for i := range n {
		if b.ready[i] != nil {
			b.ready[i](w, b.events[i].Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0)
			w.yield(e.metrics)
		}
	}
	return true
}

// run serves until the gate's deadline passes, which close sets.
func (e *epolls) run() {
	var b batch
	var w worker
	var opened [1]unix.EpollEvent
	err := e.raw.Read(func(gate uintptr) bool {
		e.fetch(int(gate), opened[:]) // what opened the gate shuts it, once it is fetched
		for e.serve(&b, &w) {
		}
		w.report(e.metrics)
		// An event that is there by now opens the gate at once.
		if err := unix.EpollCtl(int(gate), unix.EPOLL_CTL_MOD, e.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}); err != nil {
			panic(fmt.Sprintf("epoll: open the gate: %v", err)) // both instances are ours and open
		}
		return false
	})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		panic(fmt.Sprintf("epoll: wait for events: %v", err))
	}
}

// help serves beside run, when it is woken.
func (e *epolls) help() {
	var b batch
	var w worker
	for {
		select {
		case <-e.wake:
		case <-e.stop:
			return
		}
		for e.serve(&b, &w) {
		}
		w.report(e.metrics)
	}
}

func (e *epolls) fetch(fd int, events []unix.EpollEvent) int {
	n, err := sock.Ready(fd, events)
	if err != nil {
		panic(fmt.Sprintf("epoll: fetch events: %v", err)) // the instance is ours and open
	}
	return n
}

// close ends the goroutines, if there are any, and waits for them.
func (e *epolls) close() {
	e.open.Do(func() { e.err = net.ErrClosed })
	if e.err != nil {
		return
	}
	_ = e.gate.SetReadDeadline(time.Unix(1, 0)) // cannot fail: it is ours and open
	close(e.stop)
	e.done.Wait()
	e.gate.Close()
	unix.Close(e.fd)
}

// hangups notices the hang-ups of clients over sockets. Only the end of the
// client's side is watched for, never its data, so that what it sends ahead
// stays in the socket for its next request.
type hangups struct{ polls *epolls }

func newHangups(p *epolls) hangups { return hangups{p} }

// watch implements watcher.
func (h hangups) watch(conn net.Conn, gone func()) (stop func(), err error) {
	sys, ok := conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	c, err := sys.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("watch for a hang-up: %w", err)
	}
	var at *polled
	closed := c.Control(func(fd uintptr) {
		at, err = h.polls.add(int(fd), unix.EPOLLRDHUP|unix.EPOLLONESHOT, func(*worker, bool) { gone() })
	})
	if err = errors.Join(err, closed); err != nil {
		return nil, fmt.Errorf("watch for a hang-up: %w", err)
	}
	return func() {
		if c.Control(func(uintptr) { at.stop() }) != nil {
			at.e.leave(at.slot, at.generation) // closed already: the kernel has forgotten it
		}
	}, nil
}
