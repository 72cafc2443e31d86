package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// activated are the listeners that systemd, or whoever speaks its protocol, has bound and hands
// over: LISTEN_FDS of them from descriptor 3 on, for the process LISTEN_PID, named by
// LISTEN_FDNAMES. They stay bound between one gateway and the next, and what connects meanwhile
// waits in them.
type activated struct{ api, admin net.Listener }

// The names that say which is the admin listener. Any other is the API's.
const adminSocket = "admin"

// listenFDs is the first of the descriptors that are handed over.
const listenFDs = 3

// takeActivated takes these listeners over, if there are any. It unsets the variables, so that
// no child process takes the listeners as its own.
func takeActivated() (a activated, err error) {
	pid, count, names := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS"), os.Getenv("LISTEN_FDNAMES")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // it is a name
	}
	if count == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) {
		return a, nil
	}
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > 2 {
		return a, wrongf("LISTEN_FDS=%s: want 1, the API's socket, or 2, the other one named admin (FileDescriptorName=admin)", count)
	}
	named := strings.Split(names, ":")
	for i := range n {
		l, err := inherited("LISTEN_FDS", listenFDs+i)
		if err != nil {
			return a, errors.Join(err, a.close())
		}
		to, what := &a.api, "the API's"
		if i < len(named) && named[i] == adminSocket {
			to, what = &a.admin, "the admin listener's"
		}
		if *to != nil {
			return a, errors.Join(wrongf("LISTEN_FDNAMES=%s: two sockets are %s; name the admin listener's admin (FileDescriptorName=admin)", names, what), l.Close(), a.close())
		}
		*to = newHandedOver(l)
	}
	return a, nil
}

// handedOver is a listener that outlives this process, so new connections can be left to the
// next process.
type handedOver struct {
	net.Listener
	out, shut sync.Once
	left      chan struct{} // Accept accepts no more
	closed    chan struct{}
}

func newHandedOver(l net.Listener) *handedOver {
	return &handedOver{Listener: l, left: make(chan struct{}), closed: make(chan struct{})}
}

// leave makes Accept stop accepting, but keeps the listener open.
func (l *handedOver) leave() {
	if of, ok := l.Listener.(interface{ SetDeadline(time.Time) error }); ok {
		_ = of.SetDeadline(time.Unix(1, 0)) // one that is closed accepts no more either
	}
}

// knockEvery is how often awaitLeft connects to the listener.
const knockEvery = 20 * time.Millisecond

// awaitLeft waits after leave until Accept accepts no more, for letInFor, or until another
// signal. Whoever hands the socket to the next process may make it blocking, for this process
// too. An Accept that began then does not notice the deadline: it takes one more connection,
// which must come before the server drains. If no client's does, one of awaitLeft's own does.
func (l *handedOver) awaitLeft(again <-chan struct{}) {
	tick := time.NewTicker(knockEvery)
	defer tick.Stop()
	for range letInFor / knockEvery {
		select {
		case <-l.left:
			return
		case <-again:
			return
		case <-tick.C:
		}
		if c, err := net.DialTimeout(l.Addr().Network(), l.Addr().String(), knockEvery); err == nil {
			c.Close() // another process may have it
		}
	}
}

// Accept implements net.Listener. After leave it returns only when Close is called.
func (l *handedOver) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		l.out.Do(func() { close(l.left) })
		<-l.closed
		err = net.ErrClosed
	}
	return c, err
}

// Close implements net.Listener.
func (l *handedOver) Close() error {
	l.shut.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

func (a *activated) close() (err error) {
	for _, l := range []net.Listener{a.api, a.admin} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	return err
}

// checkAddress refuses an address at which nothing can listen.
func checkAddress(flag, addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return fmt.Errorf("%s %s: want HOST:PORT, such as 127.0.0.1:8000", flag, addr)
	}
	return nil
}

// listen binds an address. Its error names the flag to change. If the address is shared,
// another gateway that shares it may bind it too.
func listen(flag, addr string, shared bool) (net.Listener, error) {
	if addr == "" { // which net.Listen takes for any port of all interfaces
		return nil, wrongf("%s has no address: give HOST:PORT, such as 127.0.0.1:0 for a free port", flag)
	}
	if err := checkAddress(flag, addr); err != nil {
		return nil, err
	}
	var config net.ListenConfig
	if shared {
		config.Control = sharePort
		config.SetMultipathTCP(false) // whose sockets cannot be given a program for the choice (giveWay)
	}
	l, err := config.Listen(context.Background(), "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		hint := ""
		if !shared {
			hint = "; a gateway that takes another one's place needs --reuse-port, at both"
		}
		return nil, fmt.Errorf("%s is in use by another program; choose another with %s (port 0 takes a free one)%s", addr, flag, hint)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", flag, addr, err)
	}
	return l, nil
}
