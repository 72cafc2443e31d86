package cli

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// A gateway that leaves its place waits for all that has come to it, in each of the places where
// it can be, however long this takes to be read: and not for a connection that brings nothing.
func TestArriving(t *testing.T) {
	clients := func(n int) map[string]struct{} {
		m := map[string]struct{}{}
		for i := range n {
			m[fmt.Sprint(i)] = struct{}{}
		}
		return m
	}
	for name, c := range map[string]struct {
		queue, shaking, unread func(after time.Duration) int
		until                  time.Duration // at least
		left                   int
	}{
		"nothing":    {},
		"a queue":    {queue: func(d time.Duration) int { return max(0, 3-int(d/time.Second)) }, until: 3 * time.Second},
		"handshakes": {shaking: func(d time.Duration) int { return max(0, 2-int(d/time.Second)) }, until: 2 * time.Second},
		"unread":     {unread: func(d time.Duration) int { return max(0, 1-int(d/time.Second)) }, until: time.Second},
		"one after another": {
			shaking: func(d time.Duration) int { return max(0, 1-int(d/(100*time.Millisecond))) },
			queue:   func(d time.Duration) int { return max(0, 1-int(d/(200*time.Millisecond))) },
			unread:  func(d time.Duration) int { return max(0, 1-int(d/(300*time.Millisecond))) },
			until:   300 * time.Millisecond,
		},
		"silent": {unread: func(time.Duration) int { return 2 }, until: letInFor, left: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				at := func(f func(time.Duration) int) int {
					if f == nil {
						return 0
					}
					return f(time.Since(began))
				}
				a := arriving{
					bound: letInFor,
					queue: &acceptQueue{
						length:     func() (int, error) { return at(c.queue), nil },
						handshakes: func() (map[string]struct{}, error) { return clients(at(c.shaking)), nil },
					},
					unread: func(time.Time) int { return at(c.unread) },
				}
				left := a.wait(nil)
				if took := time.Since(began); left != c.left || took < c.until || took > c.until+100*time.Millisecond {
					t.Errorf("%d left after %v, want %d after %v", left, took, c.left, c.until)
				}
			})
		})
	}
	t.Run("another signal", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			again := make(chan struct{}, 1)
			again <- struct{}{}
			began := time.Now()
			(&arriving{bound: letInFor, unread: func(time.Time) int { return 1 }}).wait(again)
			if took := time.Since(began); took > 10*letInEvery {
				t.Errorf("it waited %v", took)
			}
		})
	})
}

// The kernel reports what it has for a listener. This one has it keep a connection in its
// handshake until the client sends something.
func TestKernelQueue(t *testing.T) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_DEFER_ACCEPT, 60) })
		return errors.Join(failed, err)
	}}
	l, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	q := queueOf(l)
	want := func(queued, shaking int) {
		t.Helper()
		n, err := q.length()
		if err != nil {
			t.Fatal(err)
		}
		clients, err := q.handshakes()
		if err != nil {
			t.Fatal(err)
		}
		if n != queued || len(clients) != shaking {
			t.Errorf("%d queued, %d in handshakes, want %d and %d", n, len(clients), queued, shaking)
		}
	}
	want(0, 0)
	conns := make([]net.Conn, 3)
	for i := range conns {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns[i] = c
	}
	want(0, 3)
	for _, c := range conns[:2] {
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Fatal(err)
		}
	}
	want(2, 1)
	for range 2 {
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	want(0, 1)
}

// Once a listener has given way, whatever connects goes to the one beside it.
func TestGiveWay(t *testing.T) {
	old, err := listen("--listen", "127.0.0.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	next, err := listen("--listen", old.Addr().String(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if err := giveWay(old); err != nil {
		t.Fatal(err)
	}
	const n = 32 // by turns, half of them would go to either
	for range n {
		c, err := net.Dial("tcp", old.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for l, want := range map[net.Listener]int{old: 0, next: n} {
		if got, err := queueOf(l).length(); err != nil || got != want {
			t.Errorf("%d connections, want %d (%v)", got, want, err)
		}
	}
}

// A process to which the socket was handed as well may have made it blocking. An Accept that is
// under way then is over before the server drains.
func TestHandedOverBlocks(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := tcp.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if failed := raw.Control(func(fd uintptr) { err = syscall.SetNonblock(int(fd), false) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	l := newHandedOver(tcp)
	over := make(chan error)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				over <- err
				return
			}
			c.Close()
		}
	}()
	c, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.ReadAll(c) // Accept was left, and is called again
	c.Close()
	l.leave()
	l.awaitLeft(nil)
	select {
	case <-l.left:
	default:
		t.Fatal("Accept goes on")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-over; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
