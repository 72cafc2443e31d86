package load

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/trace"
)

// pipe returns a polled connection and the server's end of it.
func pipe(t *testing.T) (*conn, *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p, err := newPoller(false)
	if err != nil {
		t.Fatal(err)
	}
	c := &client{target: &target{addr: l.Addr().String()}, poller: p}
	cn, err := c.dial(t.Context())
	if err != nil {
		p.close()
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cn.Close()
		_ = other.Close()
		p.close()
	})
	return cn, other.(*net.TCPConn)
}

// await returns once this many bytes wait in a socket.
func await(t *testing.T, cn *conn, n int) {
	t.Helper()
	buf := make([]byte, n+1)
	for {
		got, _, err := unix.Recvfrom(cn.socket.fd, buf, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		if got >= n {
			return
		}
	}
}

// Data that is read late has the time of its arrival, and how late it was read is known. Data that
// waited together has the last one's time.
func TestArrivalTimes(t *testing.T) {
	cn, server := pipe(t)
	s := cn.socket
	s.mu.Lock()
	s.cn, s.arrived = cn, trace.Now()
	s.mu.Unlock()
	buf := make([]byte, 64)
	receive := func(want string, from, to int64) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.empty = false
		n, at, err := s.receive(buf)
		read := trace.Now()
		if err != nil || string(buf[:n]) != want {
			t.Fatalf("%q, %v", buf[:n], err)
		}
		late := cn.late[len(cn.late)-1]
		if late == unstamped {
			t.Fatal("no stamp") // the kernel began to stamp before the connection was made
		}
		// Two clocks are read one after the other.
		const apart = int64(time.Millisecond)
		if at < from-apart || at > to+apart || late > read-from+apart || late < int64(5*time.Millisecond)-apart {
			t.Errorf("%q arrived %v after its sending began, at most %v, read %v late", want, time.Duration(at-from), time.Duration(to-from), time.Duration(late))
		}
		if _, _, err := s.receive(buf); !errors.Is(err, errAgain) {
			t.Errorf("after it: %v", err)
		}
	}
	send := func(text string, waiting int) (from, to int64) {
		t.Helper()
		from = trace.Now()
		if _, err := io.WriteString(server, text); err != nil {
			t.Fatal(err)
		}
		await(t, cn, waiting)
		to = trace.Now()
		time.Sleep(5 * time.Millisecond)
		return from, to
	}
	from, to := send("first", 5)
	receive("first", from, to)
	send("one ", 4)
	from, to = send("two", 7)
	receive("one two", from, to)

	// A wall clock that is set puts nothing before what was read before it.
	send("x", 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived = trace.Now()
	s.empty = false
	if _, at, err := s.receive(buf); err != nil || at < s.arrived {
		t.Errorf("%v, %v", at, err)
	}
}

// An end that is told before the response is awaited is found all the same.
func TestEndBeforeListening(t *testing.T) {
	cn, server := pipe(t)
	const wire = "HTTP/1.1 503 X\r\nContent-Length: 2\r\n\r\n{}"
	if _, err := io.WriteString(server, wire[:len(wire)-1]); err != nil {
		t.Fatal(err)
	}
	if err := server.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	await(t, cn, len(wire)-1)
	for deadline := time.Now().Add(30 * time.Second); ; {
		cn.socket.mu.Lock()
		hup := cn.socket.hup
		cn.socket.mu.Unlock()
		if hup {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the end was never told")
		}
		time.Sleep(time.Millisecond)
	}
	x := newExchange(&Plan{Timeout: time.Minute}, &client{}, nil)
	x.begin(t.Context(), cn)
	if !cn.socket.listen(x, cn) || x.sample.Kind != KindCut || x.keep {
		t.Errorf("%v %q", x.sample.Outcome, x.sample.Kind)
	}
}

// A request that the socket does not take at once is written as it does.
func TestLargeRequest(t *testing.T) {
	e := &engine{vocab: vocabulary(t)}
	url := e.start(t)
	for _, plan := range []Plan{{Concurrency: 2, Requests: 4}, {Rate: 50, Requests: 4}, {Requests: 2, DelayAcks: true}} {
		plan.URL, plan.Model, plan.InputTokens, plan.OutputTokens, plan.Verify, plan.Timeout = url, "m", 200_000, 3, e.vocab, time.Minute
		r, err := Run(t.Context(), plan)
		if err != nil || r.Complete != plan.Requests {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// Every read is stamped or counted as not, and who stamps is said.
func TestReceiveReport(t *testing.T) {
	e := &engine{vocab: vocabulary(t)}
	r, err := Run(t.Context(), Plan{URL: e.start(t), Model: "m", Requests: 3, OutputTokens: 5, Verify: e.vocab})
	if err != nil || r.Receive.Stamps != KernelStamps || r.Receive.Late.Count+r.Receive.Unstamped != r.Reads || r.Reads == 0 {
		t.Errorf("%+v of %d reads, %v", r.Receive, r.Reads, err)
	}
	for _, plan := range []Plan{{ReadRate: 100}, {StopReadingAfter: 1}} {
		for _, tls := range []bool{false, true} {
			run := &runner{plan: plan, client: &client{target: &target{tls: tls}}}
			got, stop := run.listen()
			if stop(); got.Stamps != ReaderStamps || got.Why == "" || run.client.poller != nil || run.client.stamps {
				t.Errorf("%+v, TLS %v: %+v", plan, tls, got)
			}
		}
	}
}
