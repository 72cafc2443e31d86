package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/fleet/route"
	"weir/internal/gateway/front"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/model"
	"weir/internal/trace"
	"weir/models"
)

// smuggled are what a client sends to have two servers disagree about where a request ends,
// with BODY for a body of /detokenize and SIZE for its length; and requests of forms that are
// read by net/http.
var smuggled = []string{
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Type: application/json\r\nContent-Length: SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\n\r\nBODYPOST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\nContent-Length: 0\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\nContent-Length: SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE, SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: +SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: 0SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length : SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: weir\r\n\r\n",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\nTransfer-Encoding: identity\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\nTransfer-Encoding: xchunked\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\nTransfer-Encoding:\x0bchunked\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\n Transfer-Encoding: chunked\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nX: y\rTransfer-Encoding: chunked\r\nContent-Length: SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nX: y\nTransfer-Encoding: chunked\nContent-Length: SIZE\r\n\r\n0\r\n\r\n",
	"POST /detokenize HTTP/1.1\nHost: weir\nContent-Length: SIZE\n\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nHost: other\r\nContent-Length: SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nContent-Length: SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.0\r\nHost: weir\r\nContent-Length: SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\nConnection: close\r\n\r\nBODY",
	"POST http://weir/detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\n\r\nBODY",
	"POST /./detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\n\r\nBODY",
	"POST /detokenize?a=b HTTP/1.1\r\nHost: weir\r\nContent-Length: SIZE\r\n\r\nBODY",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nExpect: 100-continue\r\nContent-Length: SIZE\r\n\r\nBODY",
	"GET /v1/models HTTP/1.1\r\nHost: weir\r\nContent-Length: 4\r\n\r\nBODY",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: 4\r\n\r\n{{{{",
	"POST /v1/completions HTTP/1.1\r\nHost: weir\r\nContent-Type: text/xml\r\nContent-Length: 4\r\n\r\n{{{{",
	"POST /v1/completions HTTP/1.1\r\nHost: weir\r\nContent-Type: text/xml\r\nContent-Length: 200000\r\n\r\n" + strings.Repeat(" ", 200000),
	"POST /v1/completions HTTP/1.1\r\nHost: weir\r\nContent-Type: text/xml\r\nContent-Length: 300000\r\n\r\n" + strings.Repeat(" ", 300000),
	"\x16\x03\x01\x00\xee\x01\x00\x00\xea\x03\x03\r\n\r\n",
}

// changing are the parts of an answer that differ from request to request.
var changing = regexp.MustCompile(`(?m)^(Date|X-Request-Id|Request-Id): .*$|req-[0-9a-f]+`)

// A plain listener answers as net/http alone does, in every segmentation that is tried.
func TestDirectAnswersAsNetHTTP(t *testing.T) {
	var fleet atomic.Pointer[route.Snapshot]
	fleet.Store(fleetOf(nil, &tokenEngine{name: "a"}))
	g := New(Options{Snapshot: fleet.Load, Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: simModel()}}})
	defer g.Close()
	server := g.Server()
	var serving sync.WaitGroup
	defer serving.Wait()
	defer server.Close()
	var at [2]string
	for i, listener := range []func(net.Listener) net.Listener{g.front.Listener, g.front.PlainListener} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at[i] = l.Addr().String()
		serving.Go(func() { _ = server.Serve(listener(l)) }) // ends by Close
	}
	serving.Go(func() { _ = server.Serve(g.front.Returned()) })
	for !g.front.Returned().Serving.Load() {
		time.Sleep(time.Millisecond)
	}
	body := fmt.Sprintf(`{"model":%q,"tokens":[1,2,3,4]}`, models.SimName)
	plain := strings.NewReplacer("SIZE", fmt.Sprint(len(body)), "BODY", body).Replace
	ask := func(addr string, parts []string) string {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for i, p := range parts {
			if i > 0 {
				time.Sleep(2 * time.Millisecond) // it arrives by itself, or not: both must do
			}
			if _, err := io.WriteString(c, p); err != nil {
				break // the answer is there
			}
		}
		// Each is answered, or its connection ends; what follows it then shows where the
		// server takes its end to be.
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		first := make([]byte, 16<<10)
		n, err := c.Read(first)
		if err == nil {
			_, _ = io.WriteString(c, "GET /v1/models HTTP/1.1\r\nHost: weir\r\nConnection: close\r\n\r\n")
		}
		rest, err := io.ReadAll(c)
		if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: no answer within 20 s", parts)
		}
		return changing.ReplaceAllString(string(append(first[:n], rest...)), "$1")
	}
	for _, s := range smuggled {
		text := plain(s)
		head := strings.Index(text, "\r\n\r\n") + 4
		for _, parts := range [][]string{{text}, {text[:len(text)/2], text[len(text)/2:]}, {text[:1], text[1:]}, {text[:head], text[head:]}} {
			if want, got := ask(at[0], parts), ask(at[1], parts); got != want {
				t.Errorf("%q in %d parts: answered\n%s\nwhere net/http answers\n%s", text, len(parts), got, want)
			}
		}
	}
	// On one connection: a plain request, one for net/http, and again a plain one.
	c, err := net.Dial("tcp", at[1])
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	for _, text := range []string{plain(smuggled[0]), "GET /v1/models HTTP/1.1\r\nHost: weir\r\n\r\n", plain(smuggled[0]), plain(smuggled[0])} {
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		buf, n := make([]byte, 16<<10), 0
		for !answered(buf[:n]) {
			k, err := c.Read(buf[n:])
			if err != nil {
				t.Fatalf("%q: %v after %q", text, err, buf[:n])
			}
			n += k
		}
		if !bytes.HasPrefix(buf[:n], []byte("HTTP/1.1 200 OK\r\n")) {
			t.Errorf("%q: %s", text, buf[:n])
		}
	}
}

// writeAtOnce writes to either writer as a carrier does, and writeLast its last part.
func writeAtOnce(w http.ResponseWriter, text string) { writePart(w, text, false) }
func writeLast(w http.ResponseWriter, text string)   { writePart(w, text, true) }

func writePart(w http.ResponseWriter, text string, last bool) {
	if at, ok := w.(interface{ WriteAtOnce([]byte, bool) error }); ok {
		_ = at.WriteAtOnce([]byte(text), last)
		return
	}
	_, _ = io.WriteString(w, text)
	_ = http.NewResponseController(w).Flush()
}

// A directWriter keeps the contract of an http.ResponseWriter: what net/http sends for a
// handler, it sends.
func TestDirectWriter(t *testing.T) {
	for _, test := range []struct {
		name    string
		handler func(w http.ResponseWriter)
	}{
		{"nothing", func(http.ResponseWriter) {}},
		{"a status", func(w http.ResponseWriter) { w.WriteHeader(http.StatusTeapot) }},
		{"no content", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "0")
			w.WriteHeader(http.StatusNoContent)
		}},
		{"a text", func(w http.ResponseWriter) { io.WriteString(w, "hello") }},
		{"a page", func(w http.ResponseWriter) { io.WriteString(w, "<html><body>") }},
		{"no type", func(w http.ResponseWriter) { w.Header()["Content-Type"] = nil; io.WriteString(w, "hello") }},
		{"a length", func(w http.ResponseWriter) { w.Header().Set("Content-Length", "5"); io.WriteString(w, "hello") }},
		{"less than its length", func(w http.ResponseWriter) { w.Header().Set("Content-Length", "9"); io.WriteString(w, "hello") }},
		{"more than its length", func(w http.ResponseWriter) { w.Header().Set("Content-Length", "2"); io.WriteString(w, "hello") }},
		{"chunks", func(w http.ResponseWriter) {
			for range 3 {
				io.WriteString(w, "hello")
				w.(interface{ FlushError() error }).FlushError()
			}
		}},
		{"at once", func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusOK)
			for range 3 {
				writeAtOnce(w, "hello")
			}
		}},
		{"at once, and the end", func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusOK)
			writeAtOnce(w, "hello")
			writeLast(w, "you")
		}},
		{"at once, a length, and the end", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "8")
			w.WriteHeader(http.StatusOK)
			writeAtOnce(w, "hello")
			writeLast(w, "you")
		}},
		{"at once, a length", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "5")
			w.WriteHeader(http.StatusOK)
			writeAtOnce(w, "hello")
		}},
		{"at once, behind what was not sent", func(w http.ResponseWriter) { io.WriteString(w, "hello"); writeAtOnce(w, " you") }},
		{"at once, more than its length", func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", "2")
			w.WriteHeader(http.StatusOK)
			writeAtOnce(w, "hello")
		}},
		{"at once, no content", func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent); writeAtOnce(w, "hello") }},
		{"an end", func(w http.ResponseWriter) { w.Header().Set("Connection", "close"); io.WriteString(w, "hello") }},
		{"several values", func(w http.ResponseWriter) {
			w.Header()["X-A"] = []string{" a", "b\r\nX-B: c"}
			io.WriteString(w, "hello")
		}},
		{"an abort", func(w http.ResponseWriter) {
			io.WriteString(w, "hello")
			w.(interface{ FlushError() error }).FlushError()
			panic(http.ErrAbortHandler)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var answers [2]string
			for i := range answers {
				g := New(Options{Snapshot: func() *route.Snapshot { return fleetOf(nil) }})
				server := g.Server()
				handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					_, _ = io.Copy(io.Discard, r.Body)
					test.handler(w)
				})
				server.Handler = handler
				g.front.ServePlain(handler, maps.Keys(g.preparer.Services))
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				from := g.front.Listener(l)
				if i == 1 {
					from = g.front.PlainListener(l)
				}
				var serving sync.WaitGroup
				serving.Go(func() { _ = server.Serve(g.front.Returned()) })
				for !g.front.Returned().Serving.Load() {
					time.Sleep(time.Millisecond)
				}
				serving.Go(func() { _ = server.Serve(from) })
				c, err := net.Dial("tcp", l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				io.WriteString(c, "POST /v1/completions HTTP/1.1\r\nHost: weir\r\nContent-Length: 2\r\n\r\n{}")
				_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
				in := bufio.NewReader(c)
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				resp.Header.Del("Date")
				answers[i] = fmt.Sprint(resp.Status, resp.Header, resp.ContentLength, resp.TransferEncoding, resp.Close, string(body), err)
				c.Close()
				server.Close()
				serving.Wait()
				g.Close()
			}
			if answers[0] != answers[1] {
				t.Errorf("%q, where net/http sends %q", answers[1], answers[0])
			}
		})
	}
}

// A connection without a request is closed: before its first one after the time of a head, and
// after an answer or a stream when it was kept for long enough.
func TestDirectIdles(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inOneWay(t, Options{Front: front.Options{BodyTimeout: 30 * time.Second}}, []any{e}, func(t *testing.T, b *bench) {
		fresh, kept, streamed := b.dial(0), b.dial(0), b.dial(0)
		kept.send("POST", "/detokenize", fmt.Sprintf(`{"model":%q,"tokens":[1]}`, models.SimName))
		synctest.Wait()
		streamed.send("POST", chatPath, askStream(``))
		e.call(t, 1).end(infer.ReasonStop, words()[0])
		streamed.wantWhole(text(words()[0]), "stop")
		time.Sleep(31 * time.Second)
		synctest.Wait()
		if !fresh.answer().closed {
			t.Error("a connection without a request is open after 31 s")
		}
		time.Sleep(front.KeepAliveTimeout - 33*time.Second)
		synctest.Wait()
		if kept.answer().closed || streamed.answer().closed {
			t.Errorf("closed early: after an answer %v, after a stream %v", kept.answer().closed, streamed.answer().closed)
		}
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if !kept.answer().closed || !streamed.answer().closed {
			t.Errorf("closed at last: after an answer %v, after a stream %v", kept.answer().closed, streamed.answer().closed)
		}
	})
}

// A request whose body comes after its head, as most clients send it, is served without
// net/http, which nobody runs here. A request whose head comes in parts is net/http's.
func TestDirectReadsOn(t *testing.T) {
	g := New(Options{Snapshot: func() *route.Snapshot { return fleetOf(nil) }, Prepare: prepare.Options{Models: map[string]*model.Folder{models.SimName: simModel()}}})
	defer g.Close()
	g.front.Returned().Serving.Store(true)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var accepting sync.WaitGroup
	defer accepting.Wait()
	defer l.Close()
	accepting.Go(func() {
		_, _ = g.front.PlainListener(l).Accept() // returns when the listener is closed
	})
	body := fmt.Sprintf(`{"model":%q,"tokens":[1,2,3,4]}`, models.SimName)
	head := fmt.Sprintf("POST /detokenize HTTP/1.1\r\nHost: weir\r\nContent-Length: %d\r\n\r\n", len(body))
	for _, test := range []struct {
		parts []string
		given bool
	}{
		{[]string{head, body}, false},
		{[]string{head, body[:5], body[5:]}, false},
		{[]string{head + body[:5], body[5:]}, false},
		{[]string{strings.Replace(head, "39", "99999", 1), body + strings.Repeat(" ", 99999-len(body))}, false},
		{[]string{head[:20], head[20:] + body}, true},
	} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for i, part := range test.parts {
			if i > 0 {
				time.Sleep(3 * time.Millisecond)
			}
			if _, err := io.WriteString(c, part); err != nil {
				t.Fatal(err)
			}
		}
		if test.given {
			given, err := g.front.Returned().Accept()
			if err != nil {
				t.Fatal(err)
			}
			read := make([]byte, len(head)+len(body))
			n, err := given.Read(read)
			if want := strings.Join(test.parts, ""); err != nil || string(read[:n]) != want && string(read[:n]) != test.parts[0] {
				t.Errorf("%q: net/http gets %q, %v", test.parts, read[:n], err)
			}
			if first := time.Duration(trace.Now() - arrivalOn(g, given)); first > time.Since(began) || first < time.Since(began)/2 {
				t.Errorf("%q: its first byte came %v ago, not %v", test.parts, first, time.Since(began))
			}
			given.Close()
			c.Close()
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%q: %v", test.parts, err)
		}
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%q: %s", test.parts, resp.Status)
		}
		resp.Body.Close()
		c.Close()
	}
}

// arrivalOn returns when the first byte came of the request that was read from a connection.
func arrivalOn(g *Gateway, c net.Conn) int64 {
	var r front.Response
	g.front.Open(&r, httptest.NewRecorder(), httptest.NewRequest("POST", chatPath, nil).WithContext(front.ConnContext(g.base, c)))
	return r.Arrival()
}
