package epoll

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"weir/internal/wire/sock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// idle is a worker with nothing at hand.
type idle struct{}

func (*idle) Idle() {}

// socketpair returns two connected descriptors that do not block.
func socketpair(t *testing.T) (ours, theirs int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

// alone tries something with one core of Go's, a few times: on a busy machine Go's monitor may run
// the poller's goroutine at any moment, once the test's goroutine has had 10 ms.
func alone(t *testing.T, try func() error) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var err error
	for range 5 {
		if err = try(); err == nil {
			return
		}
	}
	t.Error(err)
}

// Assist calls back what is ready before the poller's goroutine gets to run,
// and only what is ready. After Close there is nothing.
func TestAssist(t *testing.T) {
	alone(t, func() error {
		p := New(1, func() *idle { return new(idle) })
		ours, theirs := socketpair(t)
		defer unix.Close(ours)
		defer unix.Close(theirs)
		var here atomic.Bool
		var calls, elsewhere atomic.Int64
		at, err := p.Reads(ours, func(*idle, bool) {
			calls.Add(1)
			if !here.Load() {
				elsewhere.Add(1)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for !p.instances[0].away.Load() {
			runtime.Gosched()
		}
		for range 3 {
			if _, err := unix.Write(theirs, []byte("x")); err != nil {
				t.Fatal(err)
			}
			here.Store(true)
			p.Assist(new(idle))
			here.Store(false)
		}
		p.Assist(new(idle))
		at.Stop()
		p.Close()
		p.Assist(new(idle))
		if n, other := calls.Load(), elsewhere.Load(); n != 3 || other > 0 {
			return fmt.Errorf("%d calls back for 3 writes, %d by the poller's goroutine", n, other)
		}
		return nil
	})
}

// While the poller's goroutine has yielded, because many sockets are ready, others call back what
// it has left. It keeps none that it has fetched.
func TestAssistYielded(t *testing.T) {
	const sockets = 5 * atOnce
	alone(t, func() error {
		p := New(1, func() *idle { return new(idle) })
		defer p.Close()
		var calls atomic.Int64
		var theirs [sockets]int
		for i := range theirs {
			var ours int
			ours, theirs[i] = socketpair(t)
			defer unix.Close(ours)
			defer unix.Close(theirs[i])
			at, err := p.Reads(ours, func(*idle, bool) { calls.Add(1) })
			if err != nil {
				t.Fatal(err)
			}
			defer at.Stop()
		}
		for !p.instances[0].away.Load() {
			runtime.Gosched()
		}
		for _, fd := range theirs {
			if _, err := unix.Write(fd, []byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		for calls.Load() == 0 {
			runtime.Gosched()
		}
		before := calls.Load()
		if before == sockets {
			return errors.New("the goroutine has not yielded")
		}
		for had := before; had < sockets; had += atOnce {
			if p.Assist(new(idle)); calls.Load() != min(had+atOnce, sockets) {
				return fmt.Errorf("%d calls back of %d ready, after %d by the goroutine that has yielded and %d by Assist", calls.Load(), sockets, before, had-before)
			}
		}
		return nil
	})
}

// Everything sent over many sockets at once is read, and each end is seen, by a
// reader that trusts the edges as a driven stream does.
func TestReads(t *testing.T) {
	for _, goroutines := range []int{1, 3, 17} {
		t.Run(fmt.Sprint(goroutines), func(t *testing.T) { reads(t, goroutines) })
	}
}

func reads(t *testing.T, goroutines int) {
	const sockets, rounds = 500, 40
	p := New(goroutines, func() *idle { return new(idle) })
	defer p.Close()
	type reader struct {
		fd, theirs int
		busy       atomic.Bool // a turn at a time, as claim sees to
		again      atomic.Bool
		hup        atomic.Bool
		got        int
		at         *Socket[*idle]
	}
	var ended sync.WaitGroup
	all := make([]*reader, sockets)
	for i := range all {
		r := &reader{}
		r.fd, r.theirs = socketpair(t)
		ended.Add(1)
		var over sync.Once
		turn := func() {
			var buf [16]byte
			for {
				n, err := sock.TryRead(r.fd, buf[:])
				if err != nil {
					t.Errorf("read: %v", err)
				}
				if n == 0 {
					over.Do(ended.Done)
					return
				}
				r.got += max(n, 0)
				if n < len(buf) && !(r.hup.Load() && n > 0) {
					return
				}
			}
		}
		var err error
		r.at, err = p.Reads(r.fd, func(_ *idle, hup bool) {
			if hup {
				r.hup.Store(true)
			}
			r.again.Store(true)
			for r.again.Load() && r.busy.CompareAndSwap(false, true) {
				r.again.Store(false)
				turn()
				r.busy.Store(false)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		all[i] = r
	}
	for round := range rounds {
		for i, r := range all {
			if _, err := unix.Write(r.theirs, make([]byte, 1+(i+round)%40)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, r := range all {
		unix.Close(r.theirs)
	}
	ended.Wait()
	for i, r := range all {
		want := 0
		for round := range rounds {
			want += 1 + (i+round)%40
		}
		if r.got != want {
			t.Errorf("socket %d: %d bytes, want %d", i, r.got, want)
		}
		r.at.Stop()
		// A call that was on its way when it stopped must not find the socket closed,
		// nor one that was opened since: none has a turn from here on.
		for !r.busy.CompareAndSwap(false, true) {
			runtime.Gosched()
		}
		unix.Close(r.fd)
	}
	spare := 0
	for i, in := range p.instances {
		if n := len(in.spare); n < sockets/len(p.instances)/2 {
			t.Errorf("instance %d of %d had %d of %d sockets at most", i, len(p.instances), n, sockets)
		}
		spare += len(in.spare)
	}
	if spare != sockets {
		t.Errorf("%d of %d places are free", spare, sockets)
	}
}

// A socket that was left is not called back, even if another one takes its place.
func TestStop(t *testing.T) {
	p := New(1, func() *idle { return new(idle) })
	defer p.Close()
	a, far := socketpair(t)
	defer unix.Close(far)
	at, err := p.Reads(a, func(*idle, bool) { t.Error("called back after it was left") })
	if err != nil {
		t.Fatal(err)
	}
	at.Stop()
	c, near := socketpair(t)
	defer unix.Close(near)
	called := make(chan bool, 8)
	at2, err := p.Reads(c, func(_ *idle, hup bool) { called <- hup })
	if err != nil {
		t.Fatal(err)
	}
	at.Stop() // twice is nothing
	if _, err := unix.Write(far, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(near, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if hup := <-called; hup {
		t.Error("a byte was taken for a hang-up")
	}
	unix.Shutdown(near, unix.SHUT_WR)
	if hup := <-called; !hup {
		t.Error("no hang-up")
	}
	at2.Stop()
	unix.Close(a)
	unix.Close(c)
}

// A socket whose turn ends with something unread is called back again if it asks.
func TestAgain(t *testing.T) {
	p := New(1, func() *idle { return new(idle) })
	defer p.Close()
	fd, far := socketpair(t)
	defer unix.Close(fd)
	defer unix.Close(far)
	calls, held := make(chan *Socket[*idle], 1), make(chan *Socket[*idle], 1)
	at, err := p.Reads(fd, func(*idle, bool) {
		at := <-held
		calls <- at
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Write(far, []byte("x")); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		held <- at
		if err := (<-calls).Again(); err != nil {
			t.Fatal(err)
		}
	}
	held <- at
	<-calls
	at.Stop()
}

func TestClosed(t *testing.T) {
	p := New(2, func() *idle { return new(idle) })
	p.Close()
	if _, err := p.Reads(0, nil); err != net.ErrClosed {
		t.Errorf("a closed poller says %v", err)
	}
}

// Who waits for room is called back once there is some, and at once if there is.
func TestRoom(t *testing.T) {
	p := New(1, func() *idle { return new(idle) })
	defer p.Close()
	fd, far := socketpair(t)
	defer unix.Close(fd)
	defer unix.Close(far)
	called := make(chan bool, 64)
	at, err := p.Reads(fd, func(_ *idle, hup bool) { called <- hup })
	if err != nil {
		t.Fatal(err)
	}
	if err := at.Room(); err != nil {
		t.Fatal(err)
	}
	<-called
	block := make([]byte, 1<<16)
	sent := 0
	for n := 0; n >= 0; sent += max(n, 0) {
		if n, err = sock.TryWrite(fd, block); err != nil {
			t.Fatal(err)
		}
	}
	for len(called) > 0 { // of the room there still was
		<-called
	}
	for got := 0; got < sent; {
		n, err := sock.TryRead(far, block)
		if err != nil || n <= 0 {
			t.Fatal(n, err)
		}
		got += n
	}
	if hup := <-called; hup {
		t.Error("room was taken for a hang-up")
	}
	at.Stop()
}

// A poller that finds too few descriptors when it is first asked keeps none of them, and works
// when there are some.
func TestDescriptorsRunOut(t *testing.T) {
	for few := range 4 { // two instances need four
		t.Run(fmt.Sprint(few), func(t *testing.T) { descriptorsRunOut(t, few) })
	}
}

func descriptorsRunOut(t *testing.T, few int) {
	fd, other := socketpair(t)
	defer unix.Close(fd)
	next := func() int {
		t.Helper()
		fd, err := unix.Dup(other)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
		return fd
	}
	first := next()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := limit
	low.Cur = uint64(first + few)
	e := New(2*share, func() *idle { return new(idle) })
	defer e.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	_, err := e.HangUp(fd, func() {})
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Fatalf("with %d descriptors: %v", few, err)
	}
	if n := next(); n != first {
		t.Errorf("the next descriptor is %d, %d before", n, first)
	}
	gone := make(chan struct{})
	at, err := e.HangUp(fd, func() { close(gone) })
	if err != nil {
		t.Fatalf("with descriptors again: %v", err)
	}
	unix.Close(other)
	<-gone
	at.Stop()
}
