package epoll

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/wire/sock"
)

// Supported says whether sockets can be polled on this system.
const Supported = true

// Poller polls sockets and calls the owners of ready ones, one after the other, from
// one goroutine. If that cannot keep up, more goroutines help. The zero value is not
// usable.
type Poller[W Worker] struct {
	opening sync.Mutex
	open    atomic.Bool // from the first socket on
	closed  bool
	waits   atomic.Bool  // the goroutine waits for the gate
	assists sync.RWMutex // held for reading by Assist, and by Close
	helpers int
	worker  func() W
	fd      int
	gate    *os.File // in Go's poller
	raw     syscall.RawConn
	wake    chan struct{} // rouses a helper
	stop    chan struct{}
	done    sync.WaitGroup

	mu    sync.Mutex
	slots []place[W]
	free  []uint32
}

// place is the slot of a socket. The kernel's events name a slot and its generation. An
// event of a socket that was removed in the same batch is therefore not taken for
// another socket's.
type place[W Worker] struct {
	generation uint32
	ready      func(w W, hup bool)
}

// New makes a poller of up to so many goroutines, which begin with the first
// socket. Each has a worker of its own.
func New[W Worker](goroutines int, worker func() W) *Poller[W] {
	return &Poller[W]{helpers: goroutines - 1, worker: worker}
}

// begin starts the poller with the first socket. One that cannot be started, for want of
// descriptors, is tried again with the next.
func (e *Poller[W]) begin() error {
	if e.open.Load() {
		return nil
	}
	e.opening.Lock()
	defer e.opening.Unlock()
	switch {
	case e.closed:
		return net.ErrClosed
	case e.open.Load():
		return nil
	}
	if err := e.start(); err != nil {
		return err
	}
	e.open.Store(true)
	return nil
}

func (e *Poller[W]) start() (err error) {
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

// Reads polls for input. The callback's argument reports whether the peer's end was
// reported as well. The polling must be stopped before the socket is closed.
func (e *Poller[W]) Reads(fd int, ready func(w W, hup bool)) (*Socket[W], error) {
	return e.add(fd, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLET, ready)
}

// HangUp polls for the end of the peer's side, and for nothing that it sends.
func (e *Poller[W]) HangUp(fd int, gone func()) (*Socket[W], error) {
	return e.add(fd, unix.EPOLLRDHUP|unix.EPOLLONESHOT, func(W, bool) { gone() })
}

func (e *Poller[W]) add(fd int, events uint32, ready func(w W, hup bool)) (*Socket[W], error) {
	if err := e.begin(); err != nil {
		return nil, err
	}
	slot, generation := e.take(ready)
	ev := unix.EpollEvent{Events: events, Fd: int32(slot), Pad: int32(generation)}
	if err := unix.EpollCtl(e.fd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		e.leave(slot, generation)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &Socket[W]{e, fd, events, slot, generation}, nil
}

// Socket is a socket that is polled.
type Socket[W Worker] struct {
	e                *Poller[W]
	fd               int
	events           uint32
	slot, generation uint32
}

// Stop ends the polling, before the socket is closed or handed on. A call back
// that is under way may still come.
func (p *Socket[W]) Stop() {
	p.Forget()
	_ = unix.EpollCtl(p.e.fd, unix.EPOLL_CTL_DEL, p.fd, nil) // fails only if it is not there
}

// Forget is Stop for a socket that is closed already.
func (p *Socket[W]) Forget() { p.e.leave(p.slot, p.generation) }

// Again calls back once more, behind all others that are ready, if there is
// something to read or the peer has ended.
func (p *Socket[W]) Again() error {
	ev := unix.EpollEvent{Events: p.events, Fd: int32(p.slot), Pad: int32(p.generation)}
	return unix.EpollCtl(p.e.fd, unix.EPOLL_CTL_MOD, p.fd, &ev)
}

// Room calls back from now on also when there is room to write again, and at once
// if there is some. It is for one who does not call Again.
func (p *Socket[W]) Room() error {
	ev := unix.EpollEvent{Events: p.events | unix.EPOLLOUT, Fd: int32(p.slot), Pad: int32(p.generation)}
	return unix.EpollCtl(p.e.fd, unix.EPOLL_CTL_MOD, p.fd, &ev)
}

func (e *Poller[W]) take(ready func(w W, hup bool)) (slot, generation uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.free); n > 0 {
		slot, e.free = e.free[n-1], e.free[:n-1]
	} else {
		slot = uint32(len(e.slots))
		e.slots = append(e.slots, place[W]{})
	}
	e.slots[slot].ready = ready
	return slot, e.slots[slot].generation
}

// leave frees a slot, if it is still the generation's.
func (e *Poller[W]) leave(slot, generation uint32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := &e.slots[slot]; s.generation == generation {
		s.generation++
		s.ready = nil
		e.free = append(e.free, slot)
	}
}

// batch is what is fetched at once.
type batch[W Worker] struct {
	events [64]unix.EpollEvent
	ready  [64]func(w W, hup bool)
}

// serve calls back what is ready, and says whether anything was.
func (e *Poller[W]) serve(b *batch[W], w W) bool {
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
			w.Turned()
		}
	}
	return true
}

// run serves until the gate's deadline passes, which close sets.
func (e *Poller[W]) run() {
	var b batch[W]
	w := e.worker()
	var opened [1]unix.EpollEvent
	err := e.raw.Read(func(gate uintptr) bool {
		e.waits.Store(false)
		e.fetch(int(gate), opened[:]) // what opened the gate shuts it, once it is fetched
		for e.serve(&b, w) {
		}
		w.Idle()
		e.waits.Store(true)
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

// Assist calls back what is ready, if the poller's goroutine waits. Go's scheduler looks for
// ready sockets only when it has no goroutine left to run, so the poller's goroutine may
// have to wait for all those that can run. These call Assist before they begin other work.
// A system call is its price where nothing is ready.
func (e *Poller[W]) Assist(w W) {
	if !e.waits.Load() || !e.assists.TryRLock() {
		return
	}
	defer e.assists.RUnlock()
	var b batch[W]
	if e.serve(&b, w) {
		w.Idle()
	}
}

// help serves beside run, when it is woken.
func (e *Poller[W]) help() {
	var b batch[W]
	w := e.worker()
	for {
		select {
		case <-e.wake:
		case <-e.stop:
			return
		}
		for e.serve(&b, w) {
		}
		w.Idle()
	}
}

func (e *Poller[W]) fetch(fd int, events []unix.EpollEvent) int {
	n, err := sock.Ready(fd, events)
	if err != nil {
		panic(fmt.Sprintf("epoll: fetch events: %v", err)) // the instance is ours and open
	}
	return n
}

// Close ends the goroutines, if there are any, and waits for them. Nothing may
// be polled any more.
func (e *Poller[W]) Close() {
	e.opening.Lock()
	e.closed = true
	open := e.open.Load()
	e.opening.Unlock()
	if !open {
		return
	}
	e.assists.Lock()                            // for good: nobody assists a poller that is closed
	_ = e.gate.SetReadDeadline(time.Unix(1, 0)) // cannot fail: it is ours and open
	close(e.stop)
	e.done.Wait()
	e.gate.Close()
	unix.Close(e.fd)
}
