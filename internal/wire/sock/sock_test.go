//go:build unix

package sock

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// pair returns two ends of a connection: a descriptor that is not in Go's poller,
// and the other end. ours closes the descriptor.
func pair(t testing.TB) (fd int, other net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(old uintptr) { fd, err = syscall.Dup(int(old)) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	t.Cleanup(func() { syscall.Close(fd); other.Close() })
	return fd, other
}

// read waits for n bytes, which loopback delivers in its own time.
func read(t *testing.T, fd, n int) []byte {
	t.Helper()
	var got []byte
	buf := make([]byte, 1024)
	for len(got) < n {
		k, err := TryRead(fd, buf)
		if err != nil || k == 0 {
			t.Fatalf("read %d, %v after %q", k, err, got)
		}
		got = append(got, buf[:max(k, 0)]...)
	}
	return got
}

func TestTryRead(t *testing.T) {
	fd, other := pair(t)
	buf := make([]byte, 8)
	if n, err := TryRead(fd, buf); n != -1 || err != nil {
		t.Fatalf("nothing there: %d, %v", n, err)
	}
	if _, err := other.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, fd, 5); string(got) != "hello" {
		t.Fatalf("got %q", got)
	}
	other.Close()
	for {
		n, err := TryRead(fd, buf)
		if n == 0 && err == nil {
			return
		}
		if n != -1 || err != nil {
			t.Fatalf("at the end: %d, %v", n, err)
		}
	}
}

func TestTryWriteStopsWhereTheSocketIsFull(t *testing.T) {
	fd, other := pair(t)
	block := bytes.Repeat([]byte("0123456789abcdef"), 1<<12)
	sent := 0
	for {
		n, err := TryWrite(fd, block)
		if err != nil {
			t.Fatal(err)
		}
		if n == -1 {
			break
		}
		sent += n
		if sent > 1<<30 {
			t.Fatal("the socket takes everything")
		}
	}
	got := 0
	buf := make([]byte, 1<<16)
	for got < sent {
		n, err := other.Read(buf)
		if err != nil {
			t.Fatalf("%v after %d of %d", err, got, sent)
		}
		got += n
	}
}

func TestErrors(t *testing.T) {
	fd, other := pair(t)
	other.(*net.TCPConn).SetLinger(0)
	other.Close()
	buf := make([]byte, 8)
	for {
		n, err := TryRead(fd, buf)
		if err != nil {
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Fatalf("%v", err)
			}
			break
		}
		if n != -1 {
			t.Fatalf("read %d", n)
		}
	}
	if _, err := TryWrite(fd, buf); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write: %v", err)
	}
	if _, err := TryRead(-1, buf); !errors.Is(err, syscall.EBADF) && !errors.Is(err, syscall.ENOTSOCK) {
		t.Errorf("no descriptor: %v", err)
	}
	if n, err := TryWrite(fd, nil); n != 0 || err != nil {
		t.Errorf("nothing to write: %d, %v", n, err)
	}
}

func TestAllocatesNothing(t *testing.T) {
	fd, _ := pair(t)
	buf := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := TryRead(fd, buf); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestReads(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	plain, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := Reads(plain)
	defer c.Close()
	if c == plain {
		t.Fatal("a socket was given back as it is")
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for _, s := range []string{"one", "two", "three"} {
			_, _ = other.Write([]byte(s)) // the reader sees what is missing
		}
		other.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "onetwothree" {
		t.Fatalf("got %q, %v", got, err)
	}
	if n, err := c.Read(nil); n != 0 || err != nil {
		t.Errorf("a read of nothing: %d, %v", n, err)
	}
	if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past the deadline: %v", err)
	}
	c.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	var none struct{ net.Conn }
	if got := Reads(none); got != net.Conn(none) {
		t.Error("what has no socket was not given back as it is")
	}
}

// A peek tells whether a read would wait, takes nothing and allocates nothing.
func TestTryPeek(t *testing.T) {
	fd, other := pair(t)
	if waits, err := TryPeek(fd); !waits || err != nil {
		t.Fatalf("nothing there: %t, %v", waits, err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = TryPeek(fd); Acknowledged(fd) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if _, err := other.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, fd, 1); string(got) != "a" {
		t.Fatalf("%q", got)
	}
	if waits, err := TryPeek(fd); !waits || err != nil {
		t.Fatalf("all was read: %t, %v", waits, err)
	}
	other.Close()
	deadline := time.Now().Add(time.Minute)
	for {
		waits, err := TryPeek(fd)
		if err != nil {
			t.Fatal(err)
		}
		if !waits {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the end of the peer's side was not seen within a minute")
		}
		time.Sleep(time.Millisecond)
	}
}
