package load

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/trace"
	"weir/internal/wire/sock"
)

// counting is a connection that counts what is written to it.
type counting struct {
	net.Conn
	sent *atomic.Uint64
}

func (c *counting) Write(p []byte) (int, error) {
	c.sent.Add(uint64(len(p)))
	return c.Conn.Write(p)
}

// Under TLS too what is read late has the time of its arrival, and what waited with
// something later is known to have no time of its own.
func TestStampsUnderTLS(t *testing.T) {
	stop, err := sock.Stamps()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	web := httptest.NewTLSServer(nil)
	defer web.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var sent atomic.Uint64
	accepted := make(chan net.Conn, 1)
	go func() {
		var c net.Conn
		raw, err := l.Accept()
		if err == nil {
			secure := tls.Server(&counting{raw, &sent}, &tls.Config{Certificates: web.TLS.Certificates})
			c, err = secure, secure.Handshake()
		}
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	d := net.Dialer{Control: (&client{stamps: true}).prepare}
	plain, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	wire, err := newStamped(plain.(*net.TCPConn))
	if err != nil {
		t.Fatal(err)
	}
	secure := tls.Client(wire, &tls.Config{InsecureSkipVerify: true})
	if err := secure.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	server := <-accepted
	defer server.Close()
	cn := &conn{Conn: secure, wire: wire}
	src := &records{Conn: secure, wire: wire, cn: cn}

	// arrived returns when the client's socket has all that the server has written.
	arrived := func() {
		t.Helper()
		for {
			wire.ask()
			if !wire.told {
				t.Fatal("the kernel does not tell what has arrived")
			}
			if wire.known.Bytes == sent.Load() {
				return
			}
			runtime.Gosched()
		}
	}
	// send writes records, each when the one before it has arrived, and returns a while
	// after the last one has.
	send := func(texts ...string) (from, to int64) {
		t.Helper()
		// A segment that is acknowledged late is sent again, and the kernel counts it twice.
		if err := wire.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) }); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			from = trace.Now()
			if _, err := io.WriteString(server, text); err != nil {
				t.Fatal(err)
			}
			arrived()
		}
		to = trace.Now()
		time.Sleep(5 * time.Millisecond)
		return from, to
	}
	buf := make([]byte, 64)
	receive := func(want string, from, to int64) (at, since int64) {
		t.Helper()
		begun := trace.Now()
		n, at, err := src.receive(buf)
		if err != nil || string(buf[:n]) != want {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		late := cn.late[len(cn.late)-1]
		// Two clocks are read one after the other.
		const apart = int64(time.Millisecond)
		if at < from-apart || at > to+apart || late < begun-to-apart {
			t.Errorf("%q arrived %v after its sending began, read %v late", want, time.Duration(at-from), time.Duration(late))
		}
		return at, src.since(at, true)
	}
	wire.begin(trace.Now())
	// The session tickets of the handshake may wait with it.
	from, to := send("first")
	receive("first", from, to)
	from, to = send("second")
	second, since := receive("second", from, to)
	if since != second {
		t.Errorf("alone, and since %v before", time.Duration(second-since))
	}
	from, to = send("one", "two")
	if at, since := receive("one", from, to); since != second {
		t.Errorf("with another after it, and since %v before", time.Duration(at-since))
	}
	if at, since := receive("two", from, to); since != at {
		t.Errorf("the last one, and since %v before", time.Duration(at-since))
	}
	if n := testing.AllocsPerRun(100, func() {
		wire.history.asked = false
		wire.oldest()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := secure.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := src.receive(buf); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("past its deadline: %v", err)
	}
}

// However the wire is cut, each record is counted with the read that brings its
// end.
func TestRecordsOnTheWire(t *testing.T) {
	wire := "\x17\x03\x03\x00\x03abc" + "\x17\x03\x03\x00\x00" + "\x17\x03\x03\x01\x00" + strings.Repeat("x", 256)
	ends := []int{8, 13, 274}
	for a := range len(wire) {
		for b := a; b <= min(len(wire), a+20); b++ {
			var s stamped
			last := 0
			for _, cut := range []int{a, b, len(wire)} {
				s.frame([]byte(wire[last:cut]))
				ended := 0
				for _, end := range ends {
					if last < end && end <= cut {
						ended++
					}
				}
				if between := cut == 0 || slices.Contains(ends, cut); s.ended != ended || s.between() != between {
					t.Fatalf("cut at %d and %d, to %d: %d records ended, between two: %v", a, b, cut, s.ended, s.between())
				}
				last = cut
			}
		}
	}
}
