package epoll

import (
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Supported says whether sockets can be polled on this system.
const Supported = true

// Poller polls sockets and calls back the owners of ready ones. Its goroutines form
// instances of a few each, and every socket belongs to one instance. One goroutine of an
// instance calls the owners one after the other, and the others help when it cannot keep
// up. The zero value is not usable.
type Poller[W Worker] struct {
	goroutines int
	worker     func() W

	opening   sync.Mutex
	open      atomic.Bool // from the first socket on
	closed    bool
	instances []*instance[W]

	assists sync.RWMutex // held for reading by Assist, and by Close
}

// share is how many goroutines have an instance together. Those that share one help each
// other, and the kernel takes the instance's lock for each event.
const share = 4

// New makes a poller of up to so many goroutines, which begin with the first
// socket. Each has a worker of its own.
func New[W Worker](goroutines int, worker func() W) *Poller[W] {
	return &Poller[W]{goroutines: goroutines, worker: worker}
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

func (e *Poller[W]) start() error {
	all := make([]*instance[W], max(1, e.goroutines/share))
	for i := range all {
		in, err := newInstance[W]()
		if err != nil {
			for _, in := range all[:i] {
				in.free()
			}
			return err
		}
		all[i] = in
	}
	for i, in := range all {
		in.start(e.goroutines*(i+1)/len(all)-e.goroutines*i/len(all), e.worker)
	}
	e.instances = all
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
	// Clients' descriptors and engines' alternate, so their last bits are mixed.
	in := e.instances[int(uint32(fd)*2654435769>>16)%len(e.instances)]
	return in.add(fd, events, ready)
}

// Socket is a socket that is polled.
type Socket[W Worker] struct {
	in               *instance[W]
	fd               int
	events           uint32
	slot, generation uint32
}

// Stop ends the polling, before the socket is closed or handed on. A call back
// that is under way may still come.
func (p *Socket[W]) Stop() {
	p.Forget()
	_ = unix.EpollCtl(p.in.fd, unix.EPOLL_CTL_DEL, p.fd, nil) // fails only if it is not there
}

// Forget is Stop for a socket that is closed already, or is about to be.
func (p *Socket[W]) Forget() { p.in.leave(p.slot, p.generation) }

// Again calls back once more, behind all others that are ready, if there is
// something to read or the peer has ended.
func (p *Socket[W]) Again() error {
	ev := unix.EpollEvent{Events: p.events, Fd: int32(p.slot), Pad: int32(p.generation)}
	return unix.EpollCtl(p.in.fd, unix.EPOLL_CTL_MOD, p.fd, &ev)
}

// Room calls back from now on also when there is room to write again, and at once
// if there is some. It is for one who does not call Again.
func (p *Socket[W]) Room() error {
	ev := unix.EpollEvent{Events: p.events | unix.EPOLLOUT, Fd: int32(p.slot), Pad: int32(p.generation)}
	return unix.EpollCtl(p.in.fd, unix.EPOLL_CTL_MOD, p.fd, &ev)
}

// Assist calls back what is ready in one of the instances whose goroutine waits or has yielded.
// Go's scheduler looks for ready sockets only when it has no goroutine left to run, and one that
// has yielded comes behind all others, so that goroutine may have to wait for all those that can
// run. These call Assist before they begin other work. A system call is its price where nothing
// is ready.
func (e *Poller[W]) Assist(w W) {
	if !e.open.Load() || !e.assists.TryRLock() {
		return
	}
	defer e.assists.RUnlock()
	first := rand.IntN(len(e.instances))
	for i := range e.instances {
		if in := e.instances[(first+i)%len(e.instances)]; in.away.Load() {
			in.assist(w)
			return
		}
	}
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
	e.assists.Lock() // for good: nobody assists a poller that is closed
	for _, in := range e.instances {
		in.stop()
	}
}
