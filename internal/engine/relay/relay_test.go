package relay

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/trace"
)

// The caller's bytes arrive unchanged, except for header fields that belong to a connection.
func TestForward(t *testing.T) {
	type seen struct {
		method, uri, host string
		header            http.Header
		body              string
	}
	got := make(chan seen, 1)
	p := play(t, func(_ int, w *wire) {
		r, body := w.request()
		if r == nil {
			return
		}
		got <- seen{r.Method, r.RequestURI, r.Host, r.Header, string(body)}
		w.send("HTTP/1.1 201 Created\r\nserver: uvicorn\r\nretry-after: 7\r\nConnection: X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n" +
			"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
		w.drain()
	})
	e := p.engine(Options{URL: &url.URL{Path: "/base/"}})
	var leg trace.Leg
	before := trace.Now()
	resp, err := e.Forward(bounded(t), &engine.RelayRequest{Method: "POST", Path: "/v1/a%2Fb?c=%20d",
		Header: http.Header{"X-A": {"1", "2"}, "Accept-Encoding": {"gzip"}, "Expect": {"100-continue"}},
		Body:   []byte(`{"n":9007199254740993}`)}, &leg)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	want := seen{"POST", "/base/v1/a%2Fb?c=%20d", p.listener.Addr().String(),
		http.Header{"X-A": {"1", "2"}, "Accept-Encoding": {"identity"}, "Content-Length": {"22"}}, `{"n":9007199254740993}`}
	if diff := cmp.Diff(want, <-got, cmp.AllowUnexported(seen{})); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(http.Header{"Retry-After": {"7"}}, fieldsOf(resp)); diff != "" || resp.Status != 201 {
		t.Errorf("status %d, header: %s", resp.Status, diff)
	}
	if body, err := io.ReadAll(resp.Body); string(body) != "abc" || err != nil {
		t.Errorf("body %q, %v", body, err)
	}
	if !(before <= leg.ToServer && leg.ToServer <= leg.Acked && leg.Acked <= trace.Now()) {
		t.Errorf("stamps %d, %d, %d", before, leg.ToServer, leg.Acked)
	}
}

// Bodies of every size arrive whole, those that the socket takes at once and
// those that it does not.
func TestForwardBodies(t *testing.T) {
	p := play(t, func(_ int, w *wire) {
		for {
			r, body := w.request()
			if r == nil {
				return
			}
			if strings.Trim(string(body), "x") != "" {
				w.send("HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n")
				return
			}
			w.send(ok)
		}
	})
	e := p.engine(Options{})
	for _, n := range []int{0, 1, 16<<10 - 200, 16 << 10, 100 << 10, 30 << 20} {
		keeps(t, p.accepted, func() {
			resp := mustAsk(t, e, strings.Repeat("x", n), "ok")
			if resp.Status != 200 {
				t.Errorf("%d bytes: status %d", n, resp.Status)
			}
		})
	}
}

// The answers' framings, each read by large and by tiny reads.
func TestBodies(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 8<<10)
	for name, c := range map[string]struct {
		answer, want string
		reused       bool
	}{
		"sized":            {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", true},
		"no bytes":         {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", true},
		"no content":       {"HTTP/1.1 204 No Content\r\n\r\n", "", true},
		"not modified":     {"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", "", true},
		"chunked":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nhe\r\n3\r\nllo\r\n0\r\nX-T: y\r\n\r\n", "hello", true},
		"chunked, big":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + big + "\r\n0\r\n\r\n", big, true},
		"sized, big":       {"HTTP/1.1 200 OK\r\nContent-Length: 131072\r\n\r\n" + big, big, true},
		"asked to close":   {"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello", "hello", false},
		"version 1.0":      {"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", false},
		"until close":      {"HTTP/1.1 200 OK\r\n\r\nhello", "hello", false},
		"until close, big": {"HTTP/1.0 200 OK\r\n\r\n" + big, big, false},
		"continue":         {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + ok, "ok", true},
		"large head":       {"HTTP/1.1 200 OK\r\nX: " + big[:60_000] + "\r\nContent-Length: 5\r\n\r\nhello", "hello", true},
		"bytes behind":     {ok + "more", "ok", false},
		"chunks, behind":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nmore", "", false},
		"empty, behind":    {"HTTP/1.1 204 No Content\r\n\r\nmore", "", false},
		"204 with length":  {"HTTP/1.1 204 No Content\r\nContent-Length: 4\r\n\r\n", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			for way := range 4 {
				tiny, polled := way&1 != 0, way&2 != 0
				p := play(t, func(_ int, w *wire) {
					for r, _ := w.request(); r != nil; r, _ = w.request() {
						w.send(c.answer)
						if strings.Contains(name, "until close") {
							return
						}
					}
				})
				e := p.engine(Options{})
				for range 2 {
					resp, err := e.Forward(bounded(t), post("{}"), &trace.Leg{})
					if err != nil {
						t.Fatal(err)
					}
					body := readerOf(t, resp, polled)
					if tiny {
						body = iotest.OneByteReader(body)
					}
					got, err := io.ReadAll(body)
					if err != nil || string(got) != c.want {
						t.Fatalf("%d bytes, %v; want %d", len(got), err, len(c.want))
					}
					if n, err := resp.Body.Read(make([]byte, 1)); n != 0 || err != io.EOF {
						t.Errorf("behind the end: %d, %v", n, err)
					}
					for range 2 {
						if err := resp.Body.Close(); err != nil {
							t.Error(err)
						}
					}
				}
				want := 2
				if c.reused {
					want = 1
				}
				if n := p.accepted(); n != want {
					t.Errorf("%d connections, want %d", n, want)
				}
			}
		})
	}
}

// An answer that breaks the protocol is an error that names the engine, never an end.
func TestBrokenAnswers(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for name, answer := range map[string]string{
		"nothing":               "",
		"garbage":               "\x00\x01\x02garbage\r\n\r\n",
		"TLS":                   "\x15\x03\x01\x00\x02\x02\x46",
		"half a head":           "HTTP/1.1 200 OK\r\nContent-",
		"half after continue":   "HTTP/1.1 100 Continue\r\n\r\n",
		"endless head":          "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: 0123456789\r\n", 6000) + "\r\n",
		"endless continues":     strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 3000),
		"switching":             "HTTP/1.1 101 Switching Protocols\r\n\r\n",
		"folded":                "HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
		"length and coding":     "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		"cut, sized":            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello",
		"cut, no byte":          "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n",
		"cut before a chunk":    chunked,
		"cut in a size":         chunked + "5\r\nhello\r\n1",
		"cut in a chunk":        chunked + "5\r\nhel",
		"cut behind a chunk":    chunked + "5\r\nhello\r\n",
		"cut in the end":        chunked + "5\r\nhello\r\n0\r\n",
		"cut in the last line":  chunked + "5\r\nhello\r\n0\r\n\r",
		"cut in a trailer":      chunked + "0\r\nX: y\r\n",
		"size is no number":     chunked + "hello\r\n",
		"chunk longer":          chunked + "4\r\nhello\r\n0\r\n\r\n",
		"chunk shorter":         chunked + "6\r\nhello\r\n0\r\n\r\n",
		"event without framing": chunked + "data: {}\n\n",
	} {
		t.Run(name, func(t *testing.T) {
			p := play(t, func(_ int, w *wire) {
				w.request()
				w.send(answer)
			})
			e := p.engine(Options{})
			for _, polled := range []bool{false, true} {
				_, got, err := askBy(t, e, "{}", polled)
				wantFault(t, err, infer.CodeEngine)
				if !strings.HasPrefix("hello\r", got) {
					t.Errorf("read %q", got)
				}
			}
			if n := p.accepted(); n != 2 {
				t.Errorf("%d connections, want 2", n)
			}
		})
	}
}

// A request that could not be one alone is not sent.
func TestBadRequest(t *testing.T) {
	p := play(t, func(int, *wire) {})
	e := p.engine(Options{})
	req := post("{}")
	req.Header.Set("X-A", "b\r\nX-Evil: c")
	_, err := e.Forward(bounded(t), req, &trace.Leg{})
	var coded *infer.Error
	if !errors.As(err, &coded) || coded.Code != infer.CodeInvalid {
		t.Errorf("got %v", err)
	}
	if n := p.accepted(); n != 0 {
		t.Errorf("%d connections, want none", n)
	}
}

func TestUnreachable(t *testing.T) {
	p := play(t, func(int, *wire) {})
	e := p.engine(Options{})
	p.listener.Close()
	_, err := e.Forward(bounded(t), post("{}"), &trace.Leg{})
	wantFault(t, err, infer.CodeUnavailable)
}

func TestHeadTimeout(t *testing.T) {
	p := play(t, func(_ int, w *wire) { w.request(); w.send("HTTP/1.1 200 OK\r\n"); w.drain() })
	e := p.engine(Options{FirstByteTimeout: 20 * time.Millisecond})
	_, err := e.Forward(bounded(t), post("{}"), &trace.Leg{})
	wantFault(t, err, infer.CodeDeadline)
}

// The bound of the head is not one of the body. A machine may take longer for a head
// than a bound: then it is tried with a longer one.
func TestHeadTimeoutEnds(t *testing.T) {
	for bound := 50 * time.Millisecond; bound < time.Minute; bound *= 2 {
		later := make(chan struct{})
		p := play(t, func(_ int, w *wire) {
			w.request()
			w.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
			<-later
			w.send("hello")
		})
		resp, err := p.engine(Options{FirstByteTimeout: bound}).Forward(bounded(t), post("{}"), &trace.Leg{})
		if err != nil {
			close(later)
			wantFault(t, err, infer.CodeDeadline)
			continue
		}
		defer resp.Body.Close()
		time.AfterFunc(bound+bound/10, func() { close(later) })
		if got, err := io.ReadAll(resp.Body); string(got) != "hello" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		return
	}
	t.Error("no head came in any time")
}

// A caller that gives up gets its own cause, at once, and the engine sees the
// connection end.
func TestCancel(t *testing.T) {
	idle := &infer.Error{Code: infer.CodeDeadline, Message: "nothing came"}
	for name, c := range map[string]struct {
		answer string
		cause  error
		want   infer.Code
	}{
		"before the head":        {"", nil, infer.CodeCancelled},
		"before the head, cause": {"", idle, infer.CodeDeadline},
		"in the head":            {"HTTP/1.1 200 OK\r\nX: ", nil, infer.CodeCancelled},
		"after the head":         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", nil, infer.CodeCancelled},
		"after the head, cause":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", idle, infer.CodeDeadline},
		"in a chunk":             {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhe", nil, infer.CodeCancelled},
		"until close":            {"HTTP/1.1 200 OK\r\n\r\nhe", nil, infer.CodeCancelled},
	} {
		t.Run(name, func(t *testing.T) {
			sent, gone := make(chan struct{}), make(chan struct{})
			p := play(t, func(_ int, w *wire) {
				w.request()
				w.send(c.answer)
				close(sent)
				w.drain()
				close(gone)
			})
			e := p.engine(Options{})
			ctx, cancel := context.WithCancelCause(bounded(t))
			go func() {
				<-sent
				cancel(c.cause)
			}()
			resp, err := e.Forward(ctx, post("{}"), &trace.Leg{})
			if err == nil {
				defer resp.Body.Close()
				_, err = io.ReadAll(resp.Body)
			}
			var coded *infer.Error
			if !errors.As(err, &coded) || coded.Code != c.want {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			// The engine sees it although nobody has closed the body yet.
			<-gone
		})
	}
}

// Closing an answer before its end ends the connection, and that is how the
// engine learns that nobody listens.
func TestCloseEarly(t *testing.T) {
	for _, polled := range []bool{false, true} {
		closeEarly(t, polled)
	}
}

func closeEarly(t *testing.T, polled bool) {
	gone := make(chan struct{}, 1)
	p := play(t, func(_ int, w *wire) {
		w.request()
		w.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		w.drain()
		gone <- struct{}{}
	})
	e := p.engine(Options{})
	resp, err := e.Forward(bounded(t), post("{}"), &trace.Leg{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := readerOf(t, resp, polled).Read(make([]byte, 100)); n != 5 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	resp.Body.Close()
	<-gone
	if n, err := resp.Body.Read(make([]byte, 100)); n != 0 || err == nil || err == io.EOF {
		t.Errorf("after Close: %d, %v", n, err)
	}
}

// An answer that cannot be polled is read as before: its caller has given up,
// or its request is still under way.
func TestDetachRefused(t *testing.T) {
	const chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
	release := make(chan struct{})
	p := play(t, func(n int, w *wire) {
		if n == 0 {
			w.send(chunked) // before it has read the request, which is large
			<-release
		} else {
			w.request()
			w.send(chunked)
		}
		w.drain()
	})
	e := p.engine(Options{})

	resp, err := e.Forward(bounded(t), post(strings.Repeat("x", 32<<20)), &trace.Leg{})
	if err != nil {
		t.Fatal(err)
	}
	if fd, ok := resp.Body.(engine.Polled).Detach(); ok {
		t.Errorf("a body whose request is under way gave descriptor %d", fd)
	}
	if n, err := resp.Body.Read(make([]byte, 100)); n != 5 || err != nil {
		t.Errorf("read on: %d, %v", n, err)
	}
	resp.Body.Close()
	close(release)

	ctx, cancel := context.WithCancel(bounded(t))
	if resp, err = e.Forward(ctx, post("{}"), &trace.Leg{}); err != nil {
		t.Fatal(err)
	}
	cancel()
	for {
		// The context's end closes the connection from elsewhere.
		if _, err := resp.Body.Read(make([]byte, 100)); err != nil {
			break
		}
	}
	if fd, ok := resp.Body.(engine.Polled).Detach(); ok {
		t.Errorf("the body of a caller that gave up gave descriptor %d", fd)
	}
	resp.Body.Close()
}

// TryRead reads what has come also before the socket is detached, and never waits.
func TestTryRead(t *testing.T) {
	more := make(chan string)
	p := play(t, func(_ int, w *wire) {
		w.request()
		w.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for s := range more {
			w.send(s)
		}
		w.drain()
	})
	resp, err := p.engine(Options{}).Forward(bounded(t), post("{}"), &trace.Leg{})
	if err != nil {
		t.Fatal(err)
	}
	body := resp.Body.(engine.Polled)
	buf := make([]byte, 100)
	if n, _, err := body.TryRead(buf); n != 0 || err != nil {
		t.Errorf("read %d bytes, %v, before there were any", n, err)
	}
	try := func(give string) (string, error) {
		more <- give
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
			if n, _, err := body.TryRead(buf); n > 0 || err != nil {
				return string(buf[:n]), err
			}
		}
		return "", errors.New("nothing came within a minute")
	}
	if got, err := try("5\r\nhello\r\n"); got != "hello" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if got, err := try("3\r\nyou\r\n0\r\n\r\n"); got != "you" || err != io.EOF {
		t.Errorf("read %q, %v", got, err)
	}
	close(more)
	resp.Body.Close()
}

// An engine that breaks its answer off has failed, by its name, also if a read that does not
// wait is the one that meets it.
func TestTryReadOfABrokenAnswer(t *testing.T) {
	p := play(t, func(_ int, w *wire) {
		w.request()
		w.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nwrong\r\n")
		w.drain()
	})
	resp, err := p.engine(Options{}).Forward(bounded(t), post("{}"), &trace.Leg{})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for began := time.Now(); err == nil && time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
		_, _, err = resp.Body.(engine.Polled).TryRead(make([]byte, 100))
	}
	var fault *infer.Error
	if !errors.As(err, &fault) || fault.Engine != "peer" {
		t.Errorf("the engine's failure is %v", err)
	}
}

// An engine's header fields about the answer pass, and only once if they may occur only once.
func TestAnswerFields(t *testing.T) {
	p := play(t, func(_ int, w *wire) {
		w.request()
		w.send("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\ncontent-type: text/html\r\nContent-Length: 2\r\nContent-Length: 2\r\n" +
			"Set-Cookie: a=b\r\nServer: engine\r\nDate: today\r\nAccess-Control-Allow-Origin: *\r\nX-Accel-Redirect: /etc/passwd\r\nX-Request-Id: e\r\n" +
			"Strict-Transport-Security: max-age=1\r\nLocation: /x\r\nVia: 1.1 x\r\nWww-Authenticate: Basic\r\nAlt-Svc: h3\r\n" +
			"Cache-Control: no-cache\r\nCache-Control: private\r\nRetry-After: 3\r\nX-RateLimit-Remaining-Tokens: 5\r\n" +
			"Connection: Sunset\r\nSunset: now\r\nendpoint-load-metrics: TEXT a=1\r\n\r\nok")
	})
	resp := mustAsk(t, p.engine(Options{}), "{}", "ok")
	want := http.Header{"Content-Type": {"text/plain"}, "Retry-After": {"3"},
		"X-Ratelimit-Remaining-Tokens": {"5"}, "Endpoint-Load-Metrics": {"TEXT a=1"}}
	if diff := cmp.Diff(want, fieldsOf(resp)); diff != "" || resp.Length != 2 {
		t.Errorf("length %d, %s", resp.Length, diff)
	}
}
