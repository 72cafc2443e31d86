package relay

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"golang.org/x/sys/unix"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is an engine whose connections a test plays by hand.
type peer struct {
	t        testing.TB
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

// play starts a peer; serve plays its n-th connection, counted from 0, which
// is closed when serve returns.
func play(t testing.TB, serve func(n int, c *wire)) *peer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{t: t, listener: l}
	p.wg.Add(1)
	go func() {
		defer p.wg.Done()
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.conns = append(p.conns, c)
			p.mu.Unlock()
			p.wg.Add(1)
			go func() {
				defer p.wg.Done()
				defer c.Close()
				serve(n, &wire{c, bufio.NewReader(c)})
			}()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		p.mu.Lock()
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

// accepted counts the connections that were made.
func (p *peer) accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns)
}

// engine returns an adapter for the peer.
func (p *peer) engine(opts Options) *Engine {
	opts.Name = "peer"
	opts.URL = &url.URL{Scheme: "http", Host: p.listener.Addr().String(), Path: opts.path()}
	e := New(opts)
	p.t.Cleanup(e.client.CloseIdle)
	return e
}

func (o *Options) path() string {
	if o.URL != nil {
		return o.URL.Path
	}
	return ""
}

// wire is the peer's end of a connection.
type wire struct {
	net.Conn
	in *bufio.Reader
}

// request reads a whole request, or gives nil at the connection's end.
func (w *wire) request() (*http.Request, []byte) {
	r, err := http.ReadRequest(w.in)
	if err != nil {
		return nil, nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, nil
	}
	return r, body
}

func (w *wire) send(s string) { _, _ = io.WriteString(w, s) }

// drain returns when the client has closed the connection.
func (w *wire) drain() { _, _ = io.Copy(io.Discard, w.in) }

func post(body string) *engine.RelayRequest {
	return &engine.RelayRequest{Method: "POST", Path: "/v1/completions",
		Header: http.Header{"Content-Type": {"application/json"}}, Body: []byte(body)}
}

// bounded is a context for an exchange that must not hang.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// ask does one exchange to its end.
func ask(t *testing.T, e *Engine, body string) (*engine.RelayResponse, string, error) {
	t.Helper()
	return askBy(t, e, body, false)
}

// askBy is ask, with the body read as a caller does that polls.
func askBy(t *testing.T, e *Engine, body string, polled bool) (*engine.RelayResponse, string, error) {
	t.Helper()
	resp, err := e.Forward(bounded(t), post(body), &trace.Leg{})
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(readerOf(t, resp, polled))
	return resp, string(got), err
}

// readerOf returns the body's reader, of one of both ways.
func readerOf(t *testing.T, resp *engine.RelayResponse, polled bool) io.Reader {
	t.Helper()
	if !polled {
		return resp.Body
	}
	p := resp.Body.(engine.Polled)
	fd, ok := p.Detach()
	if !ok {
		t.Fatal("the body cannot be polled")
	}
	return &pollReader{Polled: p, fd: fd}
}

// pollReader reads a detached body. It polls exactly when the body says so.
type pollReader struct {
	engine.Polled
	fd      int
	drained bool
}

func (r *pollReader) Read(p []byte) (int, error) {
	for {
		if r.drained {
			fds := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(fds, 60_000); n == 0 {
				return 0, errors.New("nothing to read for a minute")
			} else if err == unix.EINTR {
				continue
			}
		}
		n, drained, err := r.TryRead(p)
		if r.drained = drained; n > 0 || err != nil {
			return n, err
		}
	}
}

// keeps checks that requests keep their connection for the next one. A single one may
// be right to give it up: the goroutine that has written the rest of a large body is
// waited for, but not long.
func keeps(t *testing.T, connections func() int, ask func()) {
	t.Helper()
	ask()
	for range 100 {
		before := connections()
		if ask(); connections() == before {
			return
		}
	}
	t.Errorf("%d connections, and none is used again", connections())
}

func mustAsk(t *testing.T, e *Engine, body, want string) *engine.RelayResponse {
	t.Helper()
	resp, got, err := ask(t, e, body)
	if err != nil || got != want {
		t.Fatalf("got %q, %v; want %q", got, err, want)
	}
	return resp
}

// wantFault checks an error's code, and that it names the engine.
func wantFault(t *testing.T, err error, code infer.Code) *infer.Error {
	t.Helper()
	var e *infer.Error
	if !errors.As(err, &e) || e.Code != code || e.Engine != "peer" || !e.Retryable {
		t.Fatalf("got %v, want a retryable %v of the engine", err, code)
	}
	return e
}

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
