package epoll

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/wire/sock"
)

// instance is an epoll instance and the goroutines that call back what is ready in it.
type instance[W Worker] struct {
	away atomic.Bool // the first goroutine waits for the gate, or has yielded
	fd   int
	gate *os.File // in Go's poller
	raw  syscall.RawConn
	wake chan struct{} // rouses a helper
	end  chan struct{}
	done sync.WaitGroup

	mu    sync.Mutex
	slots []place[W]
	spare []uint32
}

// place is the slot of a socket. The kernel's events name a slot and its generation. An
// event of a socket that was removed in the same batch is therefore not taken for
// another socket's.
type place[W Worker] struct {
	generation uint32
	ready      func(w W, hup bool)
}

// newInstance makes an instance without goroutines, which start begins.
func newInstance[W Worker]() (*instance[W], error) {
	in := new(instance[W])
	var err error
	if in.fd, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	gate, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(gate, true) // or Go's poller would not take it
	}
	if err == nil {
		err = unix.EpollCtl(gate, unix.EPOLL_CTL_ADD, in.fd, &unix.EpollEvent{})
	}
	if err == nil {
		in.gate = os.NewFile(uintptr(gate), "epoll")
		in.raw, err = in.gate.SyscallConn()
	}
	if err != nil {
		unix.Close(in.fd)
		unix.Close(gate) // fails when there is none
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return in, nil
}

// free gives back the descriptors of an instance that has no goroutines.
func (in *instance[W]) free() {
	in.gate.Close()
	unix.Close(in.fd)
}

func (in *instance[W]) start(goroutines int, worker func() W) {
	in.wake, in.end = make(chan struct{}, goroutines-1), make(chan struct{})
	in.done.Go(func() { in.run(worker()) })
	for range goroutines - 1 {
		in.done.Go(func() { in.help(worker()) })
	}
}

// stop ends the goroutines and waits for them.
func (in *instance[W]) stop() {
	_ = in.gate.SetReadDeadline(time.Unix(1, 0)) // cannot fail: it is ours and open
	close(in.end)
	in.done.Wait()
	in.free()
}

func (in *instance[W]) add(fd int, events uint32, ready func(w W, hup bool)) (*Socket[W], error) {
	slot, generation := in.take(ready)
	ev := unix.EpollEvent{Events: events, Fd: int32(slot), Pad: int32(generation)}
	if err := unix.EpollCtl(in.fd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		in.leave(slot, generation)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	return &Socket[W]{in, fd, events, slot, generation}, nil
}

func (in *instance[W]) take(ready func(w W, hup bool)) (slot, generation uint32) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if n := len(in.spare); n > 0 {
		slot, in.spare = in.spare[n-1], in.spare[:n-1]
	} else {
		slot = uint32(len(in.slots))
		in.slots = append(in.slots, place[W]{})
	}
	in.slots[slot].ready = ready
	return slot, in.slots[slot].generation
}

// leave frees a slot, if it is still the generation's.
func (in *instance[W]) leave(slot, generation uint32) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if s := &in.slots[slot]; s.generation == generation {
		s.generation++
		s.ready = nil
		in.spare = append(in.spare, slot)
	}
}

// atOnce is how many sockets are called back before a goroutine yields. That is 100 us to a third
// of a millisecond of work. Under load it never waits, and new requests must not wait for all
// streams. No more are fetched at once: while the goroutine has yielded it has none that only it
// could call back.
const atOnce = 32

// batch is what is fetched at once, and what its goroutine has done before.
type batch[W Worker] struct {
	events [atOnce]unix.EpollEvent
	ready  [atOnce]func(w W, hup bool)
	calls  int  // since the goroutine last waited or yielded
	full   bool // as many were ready as there is room for
}

// serve calls back what is ready, and says whether anything was.
func (in *instance[W]) serve(b *batch[W], w W) bool {
	n := in.fetch(in.fd, b.events[:])
	if n == 0 {
		return false
	}
	before := b.full
	if b.full = n == atOnce; b.full && before {
		select {
		case in.wake <- struct{}{}: // there are probably more
		default:
		}
	}
	in.mu.Lock()
	for i := range n {
		slot, generation := uint32(b.events[i].Fd), uint32(b.events[i].Pad)
		b.ready[i] = nil
		if s := &in.slots[slot]; s.generation == generation {
			b.ready[i] = s.ready
		}
	}
	in.mu.Unlock()
	for i := range n {
		if b.ready[i] != nil {
			b.ready[i](w, b.events[i].Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0)
		}
	}
	b.calls += n
	return true
}

// yields reports whether the goroutine is to yield. It is called after each batch.
func (b *batch[W]) yields() bool {
	if b.calls < atOnce {
		return false
	}
	b.calls = 0
	return true
}

// run serves until the gate's deadline passes, which close sets.
func (in *instance[W]) run(w W) {
	var b batch[W]
	var opened [1]unix.EpollEvent
	err := in.raw.Read(func(gate uintptr) bool {
		in.away.Store(false)
		in.fetch(int(gate), opened[:]) // what opened the gate shuts it, once it is fetched
		for in.serve(&b, w) {
			if b.yields() {
				w.Idle()
				in.away.Store(true)
				runtime.Gosched()
				in.away.Store(false)
			}
		}
		w.Idle()
		b.calls = 0
		in.away.Store(true)
		// An event that is there by now opens the gate at once.
		if err := unix.EpollCtl(int(gate), unix.EPOLL_CTL_MOD, in.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}); err != nil {
			panic(fmt.Sprintf("epoll: open the gate: %v", err)) // both instances are ours and open
		}
		return false
	})
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		panic(fmt.Sprintf("epoll: wait for events: %v", err))
	}
}

// assist serves once, in place of the goroutine that is away.
func (in *instance[W]) assist(w W) {
	var b batch[W]
	if in.serve(&b, w) {
		w.Idle()
	}
}

// help serves beside run, when it is woken.
func (in *instance[W]) help(w W) {
	var b batch[W]
	for {
		select {
		case <-in.wake:
		case <-in.end:
			return
		}
		for in.serve(&b, w) {
			if b.yields() {
				w.Idle()
				runtime.Gosched()
			}
		}
		w.Idle()
		b.calls = 0
	}
}

func (in *instance[W]) fetch(fd int, events []unix.EpollEvent) int {
	n, err := sock.Ready(fd, events)
	if err != nil {
		panic(fmt.Sprintf("epoll: fetch events: %v", err)) // the instance is ours and open
	}
	return n
}
