package cli

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/observe/metrics"
	"weir/internal/observe/timeline"
	"weir/internal/trace"
)

// adminOf is a process with no more than its admin listener needs.
func adminOf(t *testing.T, f gatewayFlags) *process {
	t.Helper()
	records, err := timeline.New(timeline.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := records.Close(); err != nil {
			t.Error(err)
		}
	})
	return &process{metrics: metrics.New(), written: written{timeline: records}, admin: adminListener{hosts: f.adminHosts(), pprof: f.PProf}}
}

// A name that does not exist is answered with the nearest one that does, and with how the timeline
// is read.
func TestAdminSaysWhatThereIs(t *testing.T) {
	h := adminOf(t, gatewayFlags{listenFlags: listenFlags{AdminListen: "127.0.0.1:8001"}}).adminHandler(t.Context())
	for _, c := range []struct {
		method, path string
		code         int
		want         string
	}{
		{"GET", "/timeline/", 404, "/timeline/ID is the record of one request, and /timeline follows all"},
		{"GET", "/engine", 404, "did you mean /engines?"},
		{"GET", "/v1/chat/completions", 404, "there is nothing at /v1/chat/completions\n"},
		{"POST", "/metrics", 405, "/metrics does not take POST"},
		{"GET", "/admin/why", 405, "/admin/why does not take GET"},
		{"GET", "/timeline/nobody", 404, "no request with that id"},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(c.method, c.path, nil)
		r.Host = "127.0.0.1:8001"
		if h.ServeHTTP(w, r); w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
}

// Requests that a browser sends for another site's page are refused. A link that is followed to a
// page here is not refused, and neither are requests that no browser sends.
func TestAdminRefusesOtherSites(t *testing.T) {
	h := adminOf(t, gatewayFlags{listenFlags: listenFlags{AdminListen: "127.0.0.1:8001", PProf: true}}).adminHandler(t.Context())
	for _, c := range []struct {
		name, method, path string
		header             http.Header
		want               int
	}{
		{"curl", "GET", "/records", nil, 200},
		{"the page itself", "GET", "/records", http.Header{"Sec-Fetch-Site": {"same-origin"}, "Sec-Fetch-Mode": {"cors"}}, 200},
		{"the page itself, with its origin", "GET", "/records", http.Header{"Origin": {"http://127.0.0.1:8001"}, "Sec-Fetch-Site": {"same-origin"}}, 200},
		{"an address that was typed", "GET", "/", http.Header{"Sec-Fetch-Site": {"none"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}, 200},
		{"a link", "GET", "/", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}, 200},
		{"a link to a profile", "GET", "/debug/pprof/cmdline", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}, 403},
		{"a frame", "GET", "/", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"iframe"}}, 403},
		{"an image", "GET", "/debug/pprof/cmdline", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"no-cors"}, "Sec-Fetch-Dest": {"image"}}, 403},
		{"a script of the next port", "GET", "/records", http.Header{"Sec-Fetch-Site": {"same-site"}, "Sec-Fetch-Mode": {"no-cors"}, "Sec-Fetch-Dest": {"script"}}, 403},
		{"a fetch", "GET", "/records", http.Header{"Origin": {"http://evil.example"}, "Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"cors"}}, 403},
		{"a fetch from where browsers say less", "GET", "/records", http.Header{"Origin": {"http://127.0.0.1:9999"}}, 403},
		{"a form", "POST", "/admin/why", http.Header{"Origin": {"null"}, "Content-Type": {"text/plain"}}, 403},
		{"a form that is sent by navigating", "POST", "/admin/why", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}, 403},
	} {
		r := httptest.NewRequest(c.method, c.path, nil)
		r.Host = "127.0.0.1:8001"
		maps.Copy(r.Header, c.header)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != c.want {
			t.Errorf("%s: %d, want %d: %.200s", c.name, w.Code, c.want, w.Body)
		}
	}
}

// The admin listener answers to IP addresses, to names of this machine, and to those
// that it was given. Any other may be a web page's.
func TestAdminHosts(t *testing.T) {
	p := adminOf(t, gatewayFlags{listenFlags: listenFlags{AdminListen: "gateway-1:8001", AdminHost: []string{"gateway.internal"}, PProf: true}})
	h := p.adminHandler(t.Context())
	for host, want := range map[string]int{
		"127.0.0.1:8001": 200, "127.0.0.1": 200, "[::1]:8001": 200, "[::1]": 200, "10.1.2.3:80": 200, "": 200,
		"localhost": 200, "localhost:8001": 200, "LOCALHOST:8001": 200, "weir.localhost:8001": 200, "localhost.": 200,
		"gateway-1:8001": 200, "gateway.internal:8001": 200, "Gateway.Internal": 200,
		"evil.example": 421, "evil.example:8001": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "evil-localhost": 421,
		"gateway-1.evil.example": 421, "2130706433": 421, "[evil.example]": 421,
	} {
		for _, path := range []string{"/healthz", "/metrics", "/timeline/x", "/debug/pprof/cmdline"} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if path == "/timeline/x" && want == 200 {
				if w.Code != 404 {
					t.Errorf("%s to %q: %d, want 404", path, host, w.Code)
				}
			} else if w.Code != want {
				t.Errorf("%s to %q: %d, want %d", path, host, w.Code, want)
			}
			if want == 421 && !strings.Contains(w.Body.String(), "--admin-host ") {
				t.Errorf("%s to %q: %s", path, host, w.Body)
			}
		}
	}
}

// Profiles are served to whom asked for them.
func TestAdminPProf(t *testing.T) {
	for _, on := range []bool{false, true} {
		h := adminOf(t, gatewayFlags{listenFlags: listenFlags{AdminListen: "127.0.0.1:8001", PProf: on}}).adminHandler(t.Context())
		for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/cmdline", "/debug/pprof/symbol"} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1"+path, nil))
			if (w.Code == http.StatusOK) != on || !on && !strings.Contains(w.Body.String(), "--pprof") {
				t.Errorf("--pprof %t: %s: %d %.100s", on, path, w.Code, w.Body)
			}
		}
	}
}

// pipeListener is a network of one connection.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// adminPipe serves the other end of a connection.
func adminPipe(t *testing.T) (p *process, conn net.Conn) {
	t.Helper()
	p = adminOf(t, gatewayFlags{listenFlags: listenFlags{AdminListen: "127.0.0.1:8001", PProf: true}})
	l := &pipeListener{make(chan net.Conn, 1), make(chan struct{})}
	conn, server := net.Pipe()
	l.conns <- server
	s := p.adminServer(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Serve(l); err != http.ErrServerClosed {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		conn.Close()
		s.Close()
		<-done
	})
	return p, conn
}

// A caller that does not send, or does not read, holds a connection of the admin
// listener for a bounded time.
func TestAdminDeadlines(t *testing.T) {
	for name, c := range map[string]struct {
		request string
		reads   bool
		within  time.Duration
	}{
		"idle":                {"GET /healthz HTTP/1.1\r\nHost: a.localhost\r\n\r\n", true, 3 * time.Minute},
		"half a head":         {"GET /healthz HTTP/1.1\r\nHost: ", true, time.Minute},
		"a body that is late": {"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", true, time.Minute},
		"late, refused":       {"GET /engines HTTP/1.1\r\nHost: not.known\r\nContent-Length: 10\r\n\r\n", true, time.Minute},
		"late, no route":      {"GET //engines HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", true, time.Minute},
		"late, all options":   {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", true, time.Minute},
		"follows, is late":    {"GET /timeline HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n", false, time.Minute},
		"reads nothing":       {"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", false, time.Minute},
		"follows, reads none": {"GET /timeline HTTP/1.1\r\nHost: localhost\r\n\r\n", false, time.Minute},
		"a late profile":      {"GET /debug/pprof/heap HTTP/1.1\r\nHost: localhost\r\n\r\n", false, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, conn := adminPipe(t)
				if _, err := io.WriteString(conn, c.request); err != nil {
					t.Fatal(err)
				}
				if c.reads {
					go io.Copy(io.Discard, conn) // ends with the connection
				}
				time.Sleep(c.within)
				synctest.Wait()
				// A connection that its other end has closed takes no deadline.
				if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err == nil {
					_, err = conn.Write([]byte("x"))
					t.Errorf("still open after %v: %v", c.within, err)
				}
			})
		})
	}
}

// A follower of the timeline has no deadline while it reads.
func TestAdminFollowsForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, conn := adminPipe(t)
		// A request before it on the same connection, with a deadline of its own.
		const before = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
		if _, err := io.WriteString(conn, before); err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := io.WriteString(conn, "GET /timeline HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		if resp, err = http.ReadResponse(in, nil); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for i := range 5 {
			time.Sleep(time.Hour)
			p.timeline.Add(&trace.Record{RequestID: fmt.Sprint("r-", i)})
			if !lines.Scan() || !strings.Contains(lines.Text(), fmt.Sprintf(`"r-%d"`, i)) {
				t.Fatalf("record %d: %q, %v", i, lines.Text(), lines.Err())
			}
		}
	})
}
