package gateway

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"weir/internal/engine"
)

// written is an answer as a handler gives it, by the calls of http.ResponseWriter.
type written struct {
	status  int // 0: WriteHeader is not called
	inform  int // a head before it
	headers []string
	parts   []string // each written by itself; flush flushes
}

const flush = "\x00flush"

func (a *written) String() string {
	return fmt.Sprintf("%d %q %q", a.status, a.headers, fmt.Sprintf("%.20q", a.parts))
}

// serve gives the answer, and notes what the writer said to it.
func (a *written) serve(w http.ResponseWriter, said *strings.Builder) {
	h := w.Header()
	h["Content-Type"] = []string{"text/plain"}
	for i := 0; i < len(a.headers); i += 2 {
		if h.Set(a.headers[i], a.headers[i+1]); a.headers[i+1] == "" {
			h.Del(a.headers[i])
		}
	}
	if a.inform != 0 {
		w.WriteHeader(a.inform)
	}
	if a.status != 0 {
		w.WriteHeader(a.status)
	}
	for _, p := range a.parts {
		if p == flush {
			_ = http.NewResponseController(w).Flush() // the next write says so
			continue
		}
		n, err := io.WriteString(w, p)
		fmt.Fprintln(said, n, err)
	}
}

// writtenAnswers is a corpus of them: with and without a body where a status has one and where it has
// none, with lengths that are right and wrong.
func writtenAnswers() (all []written) {
	bodies := [][]string{nil, {""}, {flush}, {"x"}, {"", "x"}, {"x", ""}, {"x", flush, "y"}, {"", flush, "xy"}, {flush, "x", flush}, {strings.Repeat("0123456789abcde\n", 2500)}}
	for _, status := range []int{0, 200, 204, 205, 304, 404, 600, 999} {
		for _, parts := range bodies {
			sum := 0
			for _, p := range parts {
				if p != flush {
					sum += len(p)
				}
			}
			for _, headers := range [][]string{
				nil, {"Content-Length", strconv.Itoa(sum)}, {"Content-Length", strconv.Itoa(sum + 1)}, {"Content-Length", "0"}, {"Content-Length", "some"},
				{"Content-Type", ""}, {"Content-Type", "", "Content-Encoding", "br"}, {"Connection", "close"}, {"Date", "today"}, {"X-A", " a\r\nb\n"},
			} {
				all = append(all, written{status: status, headers: headers, parts: parts})
			}
		}
	}
	for _, inform := range []int{102, 103} {
		all = append(all, written{inform: inform, headers: []string{"Link", "</a>", "Content-Length", "1"}, parts: []string{"x"}}, written{inform: inform, status: 204})
	}
	return all
}

// TestEveryWriter gives each answer by each writer: net/http's, weir's own, and that of HTTP/2. A
// client reads the same, the handler is told the same, and the connection serves another request
// or not.
func TestEveryWriter(t *testing.T) {
	inFrontOf(t, func(f *inFront) {
		var answer *written
		var said strings.Builder
		var by string
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				t.Error(err)
			}
			switch fmt.Sprintf("%T", w) {
			case "*front.directWriter":
				by = "direct"
			case "*front.http2Writer":
				by = "HTTP/2"
			default:
				by = "net/http"
			}
			answer.serve(w, &said)
		})
		f.server.Handler = f.g.front.HTTP1Only(h)
		f.g.front.ServePlain(h, maps.Keys(f.g.preparer.Services))
		head := "POST " + chatPath + " HTTP/1.1\r\nHost: weir\r\n"
		asks := map[string]string{"direct": head + "Content-Length: 1\r\n\r\nx", "net/http": head + "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"}
		over := &http.Transport{Protocols: new(http.Protocols), DialContext: func(context.Context, string, string) (net.Conn, error) { return f.plain.dial(4 << 20), nil }}
		over.Protocols.SetUnencryptedHTTP2(true)
		defer over.CloseIdleConnections()
		for _, a := range writtenAnswers() {
			got, outline, told := map[string]string{}, "", ""
			for name, ask := range asks {
				said.Reset()
				answer, by = &a, ""
				c := f.plain.dial(4 << 20)
				if _, err := io.WriteString(c, ask); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				text, _ := c.drain()
				if by != name {
					t.Fatalf("%v is given by %q, not by %q", &a, by, name)
				}
				answer = &written{status: 200, headers: []string{"Content-Length", "4", "Date", "today"}, parts: []string{"next"}}
				told = said.String()
				_, _ = io.WriteString(c, ask) // the connection may have ended
				synctest.Wait()
				more, _ := c.drain()
				all, first := readHeads("POST", append(text, more...))
				got[name], outline = all+told, first
				c.Close()
			}
			if got["direct"] != got["net/http"] {
				t.Errorf("%v: weir's writer\n%s\nnet/http's\n%s", &a, got["direct"], got["net/http"])
			}
			if strings.Contains(got["net/http"], http.ErrContentLength.Error()) || len(a.headers) > 0 && a.headers[0] == "X-A" {
				continue // HTTP/2 resets a stream of the wrong length, and has no field with a line's end
			}
			said.Reset()
			answer = &a
			resp, err := over.RoundTrip(newPost(t))
			if by != "HTTP/2" || err != nil {
				t.Fatalf("%v is given by %q: %v", &a, by, err)
			}
			body, err := io.ReadAll(resp.Body)
			synctest.Wait()
			if of := outlineOf(resp, body, err); of != outline || said.String() != told {
				t.Errorf("%v: over HTTP/2\n%s\n%s\nnot\n%s\n%s", &a, of, said.String(), outline, told)
			}
			// To HEAD, which weir's own writer does not get, the head is the same, and there is no body
			// that a client would take for the next answer.
			if slices.Contains(a.headers, "some") {
				continue // which net/http tells no client of HEAD as what it is
			}
			answer = &a
			c := f.plain.dial(4 << 20)
			_, _ = io.WriteString(c, strings.Replace(head, "POST", "HEAD", 1)+"\r\n")
			synctest.Wait()
			text, _ := c.drain()
			all, first := readHeads("HEAD", text)
			if c.Close(); by != "net/http" || strings.Count(all, "\n") != 1+min(a.inform, 1) || !strings.Contains(first, "body of 0") {
				t.Errorf("%v: to HEAD by %s\n%s", &a, by, all)
			}
			req := newPost(t)
			req.Method, req.Body, req.ContentLength = "HEAD", nil, 0
			if resp, err = over.RoundTrip(req); err != nil {
				t.Fatalf("%v to HEAD over HTTP/2: %v", &a, err)
			}
			body, err = io.ReadAll(resp.Body)
			synctest.Wait()
			if of := outlineOf(resp, body, err); by != "HTTP/2" || of != first {
				t.Errorf("%v: to HEAD over HTTP/2\n%s\nnot\n%s", &a, of, first)
			}
		}
	})
}

// readHeads returns the responses that a client of HTTP/1.1 reads, and the outline of the first
// that is not informational.
func readHeads(method string, text []byte) (all, first string) {
	var out strings.Builder
	for in := bufio.NewReader(bytes.NewReader(text)); ; {
		if _, err := in.Peek(1); err != nil {
			return out.String(), first
		}
		resp, err := http.ReadResponse(in, &http.Request{Method: method})
		if err != nil {
			fmt.Fprintln(&out, err)
			return out.String(), first
		}
		body, err := io.ReadAll(resp.Body)
		outline := outlineOf(resp, body, err)
		if first == "" && resp.StatusCode >= 200 {
			first = outline
		}
		fmt.Fprintln(&out, resp.Status, resp.Close, outline)
	}
}

// outlineOf is what every client reads of a response, whichever way it came.
func outlineOf(resp *http.Response, body []byte, err error) string {
	var fields []string
	for name, values := range resp.Header {
		switch {
		case name == "Content-Length" || name == "Connection": // which a writer may add
			continue
		case name == "Date" && values[0] != "today":
			values = []string{"now"}
		}
		fields = append(fields, fmt.Sprintf("%s: %q", name, values))
	}
	slices.Sort(fields)
	return fmt.Sprintf("%d %q, body of %d: %.99q, whole %v", resp.StatusCode, fields, len(body), body, err == nil)
}

func newPost(t *testing.T) *http.Request {
	r, err := http.NewRequest("POST", "http://weir"+chatPath, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestEveryCarrier has an engine's answers, and weir's own, go each way to a client: by each writer,
// and by the bare connection where a stream leaves it. The client reads the same, and no cache
// keeps it.
func TestEveryCarrier(t *testing.T) {
	type answer struct {
		status   int
		kind     string
		parts    []string
		declared bool
	}
	var all []answer
	for _, status := range []int{200, 201, 304, 404, 503, 999} {
		all = append(all, answer{status: status, kind: "application/json"})
		if status != 304 {
			all = append(all, answer{status, "application/json", []string{"{}"}, false}, answer{status, "text/plain", []string{"a", "b"}, true}, answer{status, "", []string{"{}"}, false},
				answer{status, "text/event-stream", []string{relayedChat("a")}, false})
		}
	}
	all = append(all, answer{status: 204})
	outlines := map[string]string{}
	r := &relayEngine{name: "r"}
	inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
		same := func(way, what string, resp *http.Response, body []byte, err error) {
			t.Helper()
			if h := resp.Header; !slices.Equal(h["Cache-Control"], []string{"no-store, no-transform"}) || !slices.Equal(h["X-Content-Type-Options"], []string{"nosniff"}) {
				t.Errorf("%s %s: %v", way, what, h)
			}
			if want := resp.Header.Get("Content-Type") == "text/event-stream"; (resp.Header.Get("X-Accel-Buffering") == "no") != want {
				t.Errorf("%s %s: %v", way, what, resp.Header)
			}
			resp.Header.Del("X-Request-Id")
			got := outlineOf(resp, bytes.ReplaceAll(body, []byte("HTTP/2"), nil), err)
			if want, ok := outlines[what]; !ok {
				outlines[what] = got
			} else if got != want {
				t.Errorf("%s %s: %s, and otherwise %s", way, what, got, want)
			}
		}
		over := &http.Transport{Protocols: new(http.Protocols), DialContext: func(context.Context, string, string) (net.Conn, error) { return b.net.dial(4 << 20), nil }}
		over.Protocols.SetUnencryptedHTTP2(true)
		b.protocols.SetUnencryptedHTTP2(true)
		defer over.CloseIdleConnections()
		ask := func(what, method, path, body string) {
			fields := map[string]string{"direct": fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body), "net/http": fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)}
			for way, rest := range fields {
				c := b.dial(0)
				c.method = method
				c.write(method + " " + path + " HTTP/1.1\r\nHost: weir\r\nX-Request-Id: " + b.name() + "\r\n" + rest)
				synctest.Wait()
				raw, _ := c.conn.drain()
				resp, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(raw)), &http.Request{Method: method})
				if err != nil {
					t.Fatalf("%s %s: %q, %v", way, what, raw, err)
				}
				read, err := io.ReadAll(resp.Body)
				same(way, what, resp, read, err)
			}
			req, err := http.NewRequest(method, "http://weir"+path, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Request-Id", b.name())
			resp, err := over.RoundTrip(req)
			if err != nil {
				t.Fatalf("HTTP/2 %s: %v", what, err)
			}
			read, err := io.ReadAll(resp.Body)
			same("HTTP/2", what, resp, read, err)
			synctest.Wait()
		}
		for _, a := range all {
			r.reply = func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
				resp := f.response(a.status)
				if a.kind != "" {
					resp = f.response(a.status, "Content-Type", a.kind)
				}
				if a.declared {
					resp.Length = int64(len(strings.Join(a.parts, "")))
				}
				for _, p := range a.parts {
					f.put(p, true)
				}
				f.close()
				return resp, nil
			}
			ask(fmt.Sprint(a), "POST", chatPath, relayBody)
		}
		ask("a refusal", "POST", chatPath, "{")
	})
}

// name is that of a request which the gateway must account for.
func (b *bench) name() string {
	b.nextID++
	id := fmt.Sprintf("test-%d", b.nextID)
	b.sent[id]++
	return id
}
