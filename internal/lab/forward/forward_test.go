package forward

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String()
}

func TestForwarder(t *testing.T) {
	f, err := To(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	dial := func() net.Conn {
		c, err := net.Dial("tcp", f.Addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	say := func(c net.Conn, text string) {
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(c net.Conn, want string) {
		t.Helper()
		b := make([]byte, len(want))
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
			t.Fatalf("%q, %v; want %q", b, err, want)
		}
	}
	silent := func(c net.Conn) {
		t.Helper()
		c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	reset := func(c net.Conn) {
		t.Helper()
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("%v in place of a reset", err)
		}
	}
	c := dial()
	say(c, "hello")
	hear(c, "hello")

	for _, d := range []Direction{ToServer, ToClient} {
		f.Hold(d)
		say(c, "held")
		silent(c)
		f.Heal()
		hear(c, "held")
	}
	// A connection that is made in a partition is accepted.
	f.Hold(ToServer, ToClient)
	other := dial()
	say(other, "later")
	silent(other)
	f.Heal()
	hear(other, "later")

	f.Delay(100 * time.Millisecond)
	began := time.Now()
	say(c, "slow")
	hear(c, "slow")
	if took := time.Since(began); took < 200*time.Millisecond {
		t.Errorf("there and back took %v", took)
	}
	f.Heal()

	// All that is lost comes in its order all the same.
	f.Lose(1)
	began = time.Now()
	say(c, "lost")
	hear(c, "lost")
	if took := time.Since(began); took < 2*(firstAgain+lastAgain) {
		t.Errorf("what was lost four times took %v", took)
	}
	f.Heal()

	f.Cut()
	reset(c)
	f.Refuse()
	// The reset may come before the connection is known to be made.
	if c, err := net.Dial("tcp", f.Addr); err == nil {
		reset(c)
		c.Close()
	} else if !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	f.Heal()
	c = dial()
	say(c, "again")
	hear(c, "again")
	// A half-close passes, and then the rest.
	say(c, "last")
	c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(c); string(b) != "last" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if n := f.Carried(ToClient); n != len("hello"+"held"+"held"+"later"+"slow"+"again"+"last"+"lost") {
		t.Errorf("%d bytes were carried", n)
	}
	// Data that a partition holds does not keep a test from ending.
	f.Hold(ToServer, ToClient)
	say(dial(), "never")
}
