package sock

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A socket is connected to a peer on the same machine before package net connects it, which
// then goes on with it. An error is the one of package net.
func TestBeginConnect(t *testing.T) {
	for _, network := range []string{"tcp4", "tcp6"} {
		at := map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"}[network]
		l, err := net.Listen(network, at)
		if err != nil {
			t.Logf("%s: %v", network, err) // a machine without IPv6
			continue
		}
		early := false
		d := net.Dialer{Timeout: 10 * time.Second, Control: func(network, address string, c syscall.RawConn) error {
			if err := BeginConnect(network, address, c); err != nil {
				return err
			}
			return c.Control(func(fd uintptr) {
				_, err := unix.Getpeername(int(fd))
				early = err == nil
			})
		}}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(network, err)
		}
		if !early {
			t.Errorf("%s: package net had to connect it", network)
		}
		peer, err := l.Accept()
		if err != nil {
			t.Fatal(network, err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(network, err)
		}
		if n, err := peer.Read(make([]byte, 2)); n != 1 || err != nil {
			t.Fatal(network, n, err)
		}
		peer.Close()
		c.Close()
		l.Close()
		if c, err := d.Dial("tcp", l.Addr().String()); err == nil {
			c.Close()
			t.Errorf("%s: connected to nobody", network)
		} else if !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v", network, err)
		}
	}
}
