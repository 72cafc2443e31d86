package upstream

import (
	"bufio"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"weir/internal/engine"
	"weir/internal/engine/access"
	"weir/internal/trace"
	"weir/internal/wire/http1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pieces is a connection whose reads end where it says.
type pieces struct {
	net.Conn
	left []string
}

func (p *pieces) Read(b []byte) (int, error) {
	for len(p.left) > 0 && p.left[0] == "" {
		p.left = p.left[1:]
	}
	if len(p.left) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.left[0])
	p.left[0] = p.left[0][n:]
	return n, nil
}

func (p *pieces) Close() error { return nil }

// The answer's bytes may arrive cut anywhere, and be read by any amount.
func TestAnswerAtEveryCut(t *testing.T) {
	const answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a\r\nhello\r\n6\r\n world\r\n0\r\nX: y\r\n\r\n"
	read := func(size int, cuts ...int) (string, error) {
		fake := &pieces{}
		from := 0
		for _, to := range append(cuts, len(answer)) {
			fake.left, from = append(fake.left, answer[from:to]), to
		}
		c := &Client{}
		cn := &conn{Conn: fake, sock: fake, secure: true}
		b := Body{ctx: t.Context(), client: c, in: reader{conn: cn, spare: &spares}, up: &upload{}, stop: func() bool { return true }}
		resp, err := b.in.head()
		if err != nil {
			return "", err
		}
		b.framing = resp.Framing
		defer b.Close()
		var got []byte
		for p := make([]byte, size); ; {
			n, err := b.Read(p)
			got = append(got, p[:n]...)
			if err == io.EOF {
				return string(got), nil
			}
			if err != nil {
				return string(got), err
			}
		}
	}
	for _, size := range []int{1, 3, 4096} {
		for one := range len(answer) {
			for two := one; two < len(answer); two++ {
				if got, err := read(size, one, two); got != "hello world" || err != nil {
					t.Fatalf("cut at %d and %d, reads of %d: %q, %v", one, two, size, got, err)
				}
			}
		}
	}
}

// Idle connections are closed when their time is over, the latest used is
// taken first, and no more are kept than may be.
func TestPool(t *testing.T) {
	closed := make(chan struct{}, 3)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var peers sync.WaitGroup
	defer peers.Wait()
	defer l.Close()
	peers.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			peers.Go(func() {
				_, _ = io.Copy(io.Discard, c)
				c.Close()
				closed <- struct{}{}
			})
		}
	})
	// The connections are real and their peers are outside, so that time stands
	// until the test sleeps.
	synctest.Test(t, func(t *testing.T) { testPool(t, l.Addr().String(), closed) })
}

func testPool(t *testing.T, addr string, closed <-chan struct{}) {
	pl := pool{max: 2, keep: 50 * time.Millisecond}
	var conns []*conn
	for range 3 {
		sock, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c, err := newConn(sock)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		pl.give(c)
	}
	if err := conns[2].SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("one too many was kept: %v", err)
	}
	if c := pl.take(); c != conns[1] {
		t.Error("not the latest was taken")
	} else {
		pl.give(c)
	}
	<-closed
	time.Sleep(pl.keep)
	synctest.Wait()
	for range 2 {
		<-closed // by the timer alone
	}
	if c := pl.take(); c != nil {
		t.Error("an old connection was taken")
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	if pl.armed || len(pl.idle) > 0 {
		t.Errorf("armed %v with %d idle", pl.armed, len(pl.idle))
	}
}

func TestAddresses(t *testing.T) {
	for in, want := range map[string][2]string{
		"http://engine":                 {"engine:80", "engine"},
		"https://engine/x":              {"engine:443", "engine"},
		"http://engine:8000":            {"engine:8000", "engine:8000"},
		"http://[::1]:8000":             {"[::1]:8000", "[::1]:8000"},
		"http://[fe80::1%25eth0]:8000/": {"[fe80::1%eth0]:8000", "[fe80::1]:8000"},
	} {
		u, err := url.Parse(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]string{address(u), authority(u)}; got != want {
			t.Errorf("%s: got %v, want %v", in, got, want)
		}
	}
}

func TestParseModels(t *testing.T) {
	for in, want := range map[string]engine.Facts{
		`{"data":[{"id":"a","max_model_len":100},{"id":""},{"id":"b","max_model_len":50},{"id":"c"}]}`: {Models: []string{"a", "b", "c"}, ContextLength: 50},
		`{"object":"list","data":[{"id":"a"}]}`:                                                        {Models: []string{"a"}},
	} {
		got, _, err := parseModels([]byte(in))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", in, err, diff)
		}
	}
	for _, in := range []string{``, `[]`, `{"data":[]}`, `{"data":[{"id":""}]}`, `{"data":[{"id":1}]}`} {
		if got, _, err := parseModels([]byte(in)); err == nil {
			t.Errorf("%s: %v", in, got)
		}
	}
}

// Next gives what Read gives, at every cut, and holds no memory while it waits.
func TestNext(t *testing.T) {
	const answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;a\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
	for cut := range len(answer) {
		c := &Client{}
		fake := &pieces{left: []string{answer[:cut], answer[cut:]}}
		b := Body{ctx: t.Context(), client: c, in: reader{conn: &conn{Conn: fake, sock: fake, secure: true}, spare: &spares},
			up: &upload{}, stop: func() bool { return true }}
		resp, err := b.in.head()
		if err != nil {
			t.Fatal(err)
		}
		b.framing = resp.Framing
		var got []byte
		for {
			part, err := b.Next()
			if got = append(got, part...); err == nil {
				continue
			}
			if err != io.EOF || len(part) > 0 {
				t.Fatalf("cut at %d: ended with %v and %q", cut, err, part)
			}
			break
		}
		if string(got) != "hello world" {
			t.Errorf("cut at %d: %q", cut, got)
		}
		if b.Close(); b.lent != nil {
			t.Error("memory was kept")
		}
	}
}

// A request that crosses with the closing of its connection can be sent once more,
// because the engine had nothing of it. One that the engine may have read cannot,
// unless it changes nothing.
func TestCrossing(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells what a peer had")
	}
	certified := httptest.NewTLSServer(nil)
	config := certified.TLS.Clone()
	certified.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certified.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	known, err := access.New(access.Options{CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	// The engine's behaviour once the connection was found to be good: before the request is sent,
	// and after it arrived.
	closes := func(c net.Conn) { c.Close() }
	nothing := func(net.Conn) {}
	reads := func(bytes int) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = c.Read(make([]byte, bytes))
			c.Close()
		}
	}
	for _, test := range []struct {
		name          string
		method        string
		before, after func(net.Conn)
		again         bool
	}{
		{"closed", http.MethodPost, closes, nothing, true},
		{"read whole", http.MethodPost, nothing, reads(64 << 10), false},
		{"read in part", http.MethodPost, nothing, reads(1), false},
		{"not read", http.MethodPost, nothing, closes, false},
		{"a GET that was read", http.MethodGet, nothing, reads(64 << 10), true},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, TLS %t", test.name, secure), func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				idle, sent, over := make(chan net.Conn), make(chan struct{}), make(chan struct{})
				go func() {
					defer close(over)
					sock, err := l.Accept()
					if err != nil {
						return
					}
					defer sock.Close()
					c := sock
					if secure {
						c = tls.Server(sock, config)
					}
					r, err := http.ReadRequest(bufio.NewReader(c))
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
					idle <- sock
					<-sent
					raw, err := sock.(*net.TCPConn).SyscallConn()
					if err != nil {
						t.Error(err)
						return
					}
					_ = raw.Read(func(fd uintptr) bool { // fails where it was closed
						_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
						return err != unix.EAGAIN
					})
					test.after(sock)
				}()
				opts := Options{URL: &url.URL{Scheme: "http", Host: l.Addr().String()}}
				if secure {
					opts.URL.Scheme, opts.Access = "https", known
				}
				c := New(opts)
				defer c.CloseIdle()
				req := &Request{Method: test.method, Path: "/", Body: []byte("body"), Leg: &trace.Leg{}}
				resp, err := c.Do(t.Context(), req)
				if err != nil {
					t.Fatal(err)
				}
				engine := <-idle
				if _, err := io.ReadAll(resp.Body); err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()

				cn := c.pool.take()
				if cn == nil {
					t.Fatal("no connection was kept")
				}
				test.before(engine)
				head, err := c.render(req)
				if err != nil {
					t.Fatal(err)
				}
				close(sent)
				_, err = c.exchange(t.Context(), cn, head, req)
				if err == nil || errors.Is(err, errUnused) != test.again {
					t.Errorf("sent again is %t, want %t: %v", errors.Is(err, errUnused), test.again, err)
				}
				<-over
			})
		}
	}
}

// An engine that says how long it keeps an idle connection is left before that.
func TestKeepAlive(t *testing.T) {
	for field, want := range map[string]time.Duration{
		"timeout=5": 4 * time.Second, "max=100, Timeout=2": time.Second, "timeout=1": time.Second / 2,
		"": 0, "max=5": 0, "timeout=x": 0, "timeout=-1": 0,
	} {
		said, err := http1.ParseResponse([]byte("HTTP/1.1 200 OK\r\nServer: x\r\nkeep-alive: " + field + "\r\n\r\n"))
		if err != nil {
			t.Fatal(err)
		}
		if got := keepAlive(said.Fields); got != want {
			t.Errorf("%q: %v, want %v", field, got, want)
		}
	}
}

// For any model list, the models that are read have names.
func FuzzModels(f *testing.F) {
	f.Add([]byte(`{"object":"list","data":[{"id":"m","owned_by":"vllm","max_model_len":4096,"parent":null},{"id":"a","parent":"m"}]}`))
	f.Add([]byte(`{"data":[{"id":""},{"id":"x","max_model_len":-1}]}`))
	f.Add([]byte(`{"data":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, cards, err := parseModels(data)
		if err != nil {
			return
		}
		_ = Owner(cards)
		if len(facts.Models) == 0 || slices.Contains(facts.Models, "") || facts.ContextLength < 0 {
			t.Fatalf("%+v", facts)
		}
	})
}

// The bound of an answer's head holds neither for its body nor for the time until the next
// request on the connection.
func TestHeadTimeoutIsOfTheHead(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	conns := map[string]bool{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conns[r.RemoteAddr] = true
		_, _ = w.Write([]byte("begin "))
		if r.URL.Path == "/slow" {
			_ = http.NewResponseController(w).Flush()
			time.Sleep(timeout + timeout/4)
		}
		_, _ = w.Write([]byte("end"))
	}))
	defer srv.Close()
	at, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Options{URL: at, HeadTimeout: timeout})
	defer c.CloseIdle()
	ask := func(path string) {
		t.Helper()
		resp, err := c.Do(t.Context(), &Request{Method: http.MethodPost, Path: path, Leg: &trace.Leg{}})
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "begin end" {
			t.Fatalf("%s: %q, %v", path, b, err)
		}
	}
	ask("/slow")
	ask("/")
	time.Sleep(timeout + timeout/4)
	ask("/")
	if len(conns) != 1 {
		t.Errorf("%d connections, want one", len(conns))
	}
}

// take returns an idle connection that the engine still holds open, and is not about to
// close, or nil.
func (p *pool) take() *conn {
	for c := p.pop(); c != nil; c = p.pop() {
		if p.usable(c) {
			return c
		}
	}
	return nil
}
