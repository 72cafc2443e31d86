//go:build interop

package vllmcore

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"weir/internal/wire/zmtp"
	"weir/test/e2e/harness"
)

// listen returns a listener and accepts greeted connections on it.
func listen(t *testing.T, kind zmtp.Type, endpoint string, cfg zmtp.Config) (at string, accept func() *zmtp.Conn) {
	e, err := zmtp.ParseEndpoint(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	l, err := zmtp.Listen(e)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	cfg.Type = kind
	return zmtp.EndpointOf(l).String(), func() *zmtp.Conn {
		t.Helper()
		switch l := l.(type) {
		case *net.TCPListener:
			l.SetDeadline(time.Now().Add(harness.Patience))
		case *net.UnixListener:
			l.SetDeadline(time.Now().Add(harness.Patience))
		}
		raw, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c, err := zmtp.Handshake(raw, cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
}

func transports(t *testing.T) map[string]string {
	return map[string]string{"ipc": "ipc://" + filepath.Join(harness.SocketDir(t), "s"), "tcp": "tcp://127.0.0.1:0"}
}

// Nothing is lost or turned around under load: libzmq's PUSH to our PULL.
func TestLibzmqPush(t *testing.T) {
	for name, endpoint := range transports(t) {
		t.Run(name, func(t *testing.T) {
			harness.Beside(t, harness.Light)
			const n, size = 200_000, 4096
			at, accept := listen(t, zmtp.Pull, endpoint, zmtp.Config{})
			start(t, "peer.py", "push", at, "200000", "4096")
			c := accept()
			began := time.Now()
			for i := range n {
				frames, err := c.Recv()
				if err != nil || len(frames) != 1 || len(frames[0]) != size || binary.BigEndian.Uint64(frames[0]) != uint64(i) {
					t.Fatalf("message %d: %d frames, %v", i, len(frames), err)
				}
			}
			t.Logf("%d messages of %d bytes in %v", n, size, time.Since(began))
			if _, err := c.Recv(); err == nil {
				t.Error("more than was sent")
			}
		})
	}
}

// A connection that we end is made again by libzmq; within each, what comes is
// whole and in order.
func TestLibzmqReconnects(t *testing.T) {
	harness.Beside(t, harness.Light)
	at, accept := listen(t, zmtp.Pull, transports(t)["ipc"], zmtp.Config{})
	start(t, "peer.py", "flood", at)
	last := int64(-1)
	for range 20 {
		c := accept()
		for i := range 2000 {
			frames, err := c.Recv()
			if err != nil || len(frames) != 2 || len(frames[1]) != 1000 {
				t.Fatalf("%d frames, %v", len(frames), err)
			}
			n := int64(binary.BigEndian.Uint64(frames[0]))
			if i > 0 && n != last+1 || n <= last {
				t.Fatalf("message %d after %d", n, last)
			}
			last = n
		}
		c.Close()
	}
}

// Our ROUTER and libzmq's DEALER, with heartbeats; and a DEALER that does not read
// fails the write in time and nobody else's.
func TestLibzmqDealer(t *testing.T) {
	harness.Beside(t, harness.Light)
	for _, mode := range []string{"echo", "heartbeats"} {
		at, accept := listen(t, zmtp.Router, transports(t)["tcp"], zmtp.Config{})
		start(t, "peer.py", mode, at)
		c := accept()
		if string(c.Identity()) != "\x01\x00" {
			t.Errorf("identity %q", c.Identity())
		}
		if _, err := c.Recv(); err != nil {
			t.Fatal(err)
		}
		const n = 5000
		body := make([]byte, 3000)
		go func() {
			for i := range n {
				binary.BigEndian.PutUint64(body, uint64(i))
				if c.Send([]byte{0}, body, nil) != nil {
					return
				}
				if mode == "heartbeats" && i%50 == 0 {
					time.Sleep(5 * time.Millisecond) // so that there is time for some
				}
			}
		}()
		for i := range n {
			frames, err := c.Recv()
			if err != nil || len(frames) != 3 || len(frames[1]) != len(body) || binary.BigEndian.Uint64(frames[1]) != uint64(i) {
				t.Fatalf("%s: message %d: %d frames, %v", mode, i, len(frames), err)
			}
		}
	}

	at, accept := listen(t, zmtp.Router, transports(t)["ipc"], zmtp.Config{WriteTimeout: 300 * time.Millisecond})
	start(t, "peer.py", "deaf", at)
	deaf := accept()
	start(t, "peer.py", "echo", at)
	other := accept()
	for _, c := range []*zmtp.Conn{deaf, other} {
		if _, err := c.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	for range 100_000 {
		if err = deaf.Send([]byte{0}, make([]byte, 64<<10)); err != nil {
			break
		}
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a peer that does not read: %v", err)
	}
	if err := other.Send([]byte("x")); err != nil {
		t.Error(err)
	}
	if frames, err := other.Recv(); err != nil || string(frames[0]) != "x" {
		t.Errorf("the other peer: %q, %v", frames, err)
	}
}
