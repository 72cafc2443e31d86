package sock

import (
	"io"
	"net"
	"testing"
	"time"
)

// A writer to a peer that does not read waits when the kernel has taken what it may, and goes on
// when the peer reads.
func TestLimitUnsent(t *testing.T) {
	taken := func(limited bool) (n int) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		peer, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		if err := peer.(*net.TCPConn).SetReadBuffer(64 << 10); err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if limited {
			if err := LimitUnsent(c); err != nil {
				t.Fatal(err)
			}
		}
		if err := c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err = c.Write(make([]byte, 64<<20))
		if err == nil {
			t.Fatal("the kernel took all of 64 MiB")
		}
		if !limited {
			return n
		}
		go io.Copy(io.Discard, peer)
		if err := c.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte{1}); err != nil {
			t.Errorf("the peer reads, and %v", err)
		}
		return n
	}
	free, bound := taken(false), taken(true)
	if bound > 4*Unsent || free < 2*bound {
		t.Errorf("the kernel takes %d bytes, and %d with a limit of %d", free, bound, Unsent)
	}
	one, other := net.Pipe()
	defer one.Close()
	defer other.Close()
	if err := LimitUnsent(one); err != nil {
		t.Error(err)
	}
}
