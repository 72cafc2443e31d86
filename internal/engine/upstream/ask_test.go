package upstream

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/trace"
)

// asked is an engine that gives its connections out after it has answered a request on each.
func asked(t *testing.T) (c *Client, conns chan net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns = make(chan net.Conn, 64)
	var running sync.WaitGroup
	running.Go(func() {
		for {
			sock, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer sock.Close()
				r := bufio.NewReader(sock)
				for first := true; ; first = false {
					req, err := http.ReadRequest(r)
					if err != nil {
						return
					}
					if _, err := io.Copy(io.Discard, req.Body); err != nil {
						return
					}
					if _, err := io.WriteString(sock, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"); err != nil {
						return
					}
					if first {
						conns <- sock
					}
				}
			})
		}
	})
	c = New(Options{URL: &url.URL{Scheme: "http", Host: l.Addr().String()}})
	t.Cleanup(func() {
		c.CloseIdle()
		l.Close()
		running.Wait()
	})
	return c, conns
}

func askOnce(t *testing.T, c *Client, size int) string {
	t.Helper()
	resp, err := c.Do(t.Context(), &Request{Method: http.MethodPost, Path: "/", Body: make([]byte, size), Leg: &trace.Leg{}})
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return string(text)
}

// TestAsk has connections that were idle carry requests of several sizes, one after the other and
// many at once, whose answers come as fast as they can. No wait for an answer misses it. A large
// request is more than its socket takes at once.
func TestAsk(t *testing.T) {
	c, conns := asked(t)
	c.dialer.Control = func(_, _ string, raw syscall.RawConn) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, 16<<10)
		}), err)
	}
	var askers sync.WaitGroup
	for i := range 8 {
		askers.Go(func() {
			for k := range 300 {
				size := 10
				if k%50 == i {
					size = 256 << 10
				}
				if got := askOnce(t, c, size); got != "ok" {
					t.Errorf("%q to request %d", got, k)
					return
				}
			}
		})
	}
	over := make(chan struct{})
	go func() { defer close(over); askers.Wait() }()
	select {
	case <-over:
	case <-time.After(time.Minute):
		t.Fatal("requests were not answered within a minute")
	}
	if n := len(conns); n > 8 {
		t.Errorf("%d connections for eight requests at once", n)
	}
}

// TestAnsweredUnasked has an engine answer a new connection before a request has come, as one does
// that is full. The answer is read, although the poller reports it before the wait for it begins.
func TestAnsweredUnasked(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() {
		sock, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer sock.Close()
		if _, err := io.WriteString(sock, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nfull"); err != nil {
			t.Error(err)
		}
		_, _ = sock.Read(make([]byte, 1000)) // which keeps it open until the request is here
	})
	c := New(Options{URL: &url.URL{Scheme: "http", Host: l.Addr().String()}, HeadTimeout: 30 * time.Second})
	cn, err := c.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for late := time.Now().Add(time.Minute); cn.usable(); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("the answer has not come within a minute")
		}
	}
	resp := post(t, c, cn)
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.Status != http.StatusServiceUnavailable || string(text) != "full" {
		t.Errorf("status %d, %q, %v", resp.Status, text, err)
	}
}

// post sends a request over a connection and returns the answer to it.
func post(t *testing.T, c *Client, cn *conn) *Response {
	t.Helper()
	head, err := c.render(&Request{Method: http.MethodPost, Path: "/"})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.exchange(t.Context(), cn, head, &Request{Method: http.MethodPost, Leg: &trace.Leg{}})
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// TestGone has engines close idle connections, or write to them, unasked. A request is sent on none
// of these, and the pool learns of what was closed.
func TestGone(t *testing.T) {
	for name, spoil := range map[string]func(net.Conn){
		"closed": func(sock net.Conn) { sock.Close() },
		"unasked": func(sock net.Conn) {
			if _, err := io.WriteString(sock, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, conns := asked(t)
			var together [3]*conn
			for i := range together { // three connections
				cn, err := c.dial(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				resp := post(t, c, cn)
				if _, err := io.ReadAll(resp.Body); err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
				if together[i] = c.pool.pop(); together[i] != cn {
					t.Fatal("the connection was not kept")
				}
			}
			var engines [3]net.Conn
			for i := range engines {
				engines[i] = <-conns
			}
			byPort := map[string]net.Conn{}
			for _, sock := range engines {
				byPort[sock.RemoteAddr().String()] = sock
			}
			for _, cn := range together[1:] {
				spoil(byPort[cn.sock.LocalAddr().String()])
			}
			for _, cn := range together {
				c.pool.give(cn)
			}
			for _, cn := range together[1:] {
				for late := time.Now().Add(time.Minute); cn.usable(); {
					if time.Now().After(late) {
						t.Fatal("what the engine did has not come within a minute")
					}
				}
			}
			if got := askOnce(t, c, 10); got != "ok" {
				t.Errorf("answered %q", got)
			}
			if c.pool.patience.least == 0 {
				t.Error("the pool has not learned that connections were closed")
			}
		})
	}
}
