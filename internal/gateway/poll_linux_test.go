package gateway

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/metrics"
	"weir/internal/sock"
)

// socketpair gives two connected descriptors that do not block.
func socketpair(t *testing.T) (ours, theirs int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fds[0], fds[1]
}

// Everything sent over many sockets at once is read, and each end is seen, by a
// reader that trusts the edges as a driven stream does.
func TestEpolls(t *testing.T) {
	const sockets, rounds = 500, 40
	p := newEpolls(3, metrics.New())
	defer p.close()
	type reader struct {
		fd, theirs int
		busy       atomic.Bool // a turn at a time, as claim sees to
		again      atomic.Bool
		hup        atomic.Bool
		got        int
		stop       func()
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
		r.stop, err = p.poll(r.fd, func(_ *worker, hup bool) {
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
		r.stop()
		// A call that was on its way when it stopped must not find the socket closed,
		// nor one that was opened since: none has a turn from here on.
		for !r.busy.CompareAndSwap(false, true) {
			runtime.Gosched()
		}
		unix.Close(r.fd)
	}
	if len(p.free) != sockets {
		t.Errorf("%d of %d places are free", len(p.free), sockets)
	}
}

// What was left is not called back, also when its place is taken by another.
func TestEpollsLeave(t *testing.T) {
	p := newEpolls(1, metrics.New())
	defer p.close()
	a, far := socketpair(t)
	defer unix.Close(far)
	stop, err := p.poll(a, func(*worker, bool) { t.Error("called back after it was left") })
	if err != nil {
		t.Fatal(err)
	}
	stop()
	c, near := socketpair(t)
	defer unix.Close(near)
	called := make(chan bool, 8)
	stop2, err := p.poll(c, func(_ *worker, hup bool) { called <- hup })
	if err != nil {
		t.Fatal(err)
	}
	stop() // twice is nothing
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
	stop2()
	unix.Close(a)
	unix.Close(c)
}

func TestHangupsOverSockets(t *testing.T) {
	p := newEpolls(2, metrics.New())
	defer p.close()
	h := newHangups(p)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, hangUp := range map[string]func(*net.TCPConn){
		"close": func(c *net.TCPConn) { c.Close() },
		"half":  func(c *net.TCPConn) { c.CloseWrite() },
		"reset": func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
	} {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		gone := make(chan struct{})
		stop, err := h.watch(server, func() { close(gone) })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Write([]byte("ahead")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-gone:
			t.Errorf("%s: what the client sent ahead was taken for a hang-up", name)
		case <-time.After(10 * time.Millisecond):
		}
		hangUp(client.(*net.TCPConn))
		<-gone
		stop()
		server.Close()
		client.Close()
		stop() // after the close is late, and harmless
	}
	if n := len(p.slots) - len(p.free); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

func TestEpollsClosed(t *testing.T) {
	p := newEpolls(2, metrics.New())
	p.close()
	if _, err := p.poll(0, nil); err != net.ErrClosed {
		t.Errorf("a closed poller says %v", err)
	}
}
