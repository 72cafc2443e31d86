package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir/internal/lifetime"
	"weir/internal/trace"
)

// A stream that waits for its engine keeps nothing of its dial, its head or its reads: its
// context has no channel and no follower, and its connection is small. It can be read to its end
// all the same, and its connection used again.
func TestWaitingStreamIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(conn{}); size > 208 {
		t.Errorf("a connection has %d bytes: what it needs only before it is detached belongs to attached", size)
	}
	goOn := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Write([]byte("data: 1\n\n"))
		w.(http.Flusher).Flush()
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	c := New(Options{URL: u})
	defer c.CloseIdle()
	var whole lifetime.Context
	var g lifetime.Part
	g.Of(&whole)
	resp, err := c.Do(&g, &Request{Method: http.MethodPost, Path: "/", Body: []byte("{}"), Leg: new(trace.Leg)})
	if err != nil {
		t.Fatal(err)
	}
	b := resp.TakeBody()
	defer b.Close()
	fd, ok := b.Detach()
	if !ok {
		t.Fatal("it cannot be detached")
	}
	if b.in.conn.attached != nil || b.stop != nil || resp.Fields.Get("Content-Type") != "" || whole.Followers() != 1 || g.Followers() != 0 {
		t.Errorf("it keeps more than its descriptor: %+v, %v, %d and %d followers", b.in.conn.attached, resp.Fields, whole.Followers(), g.Followers())
	}
	close(goOn)
	text, buf := "", make([]byte, 100)
	for end := time.Now().Add(30 * time.Second); ; {
		n, _, err := b.TryRead(buf)
		text += string(buf[:n])
		if err == io.EOF {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("%q, %v", text, err)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
	}
	if text != "data: 1\n\n" {
		t.Errorf("%q", text)
	}
	b.Close()
	if resp, err = c.Do(&g, &Request{Method: http.MethodPost, Path: "/", Body: []byte("{}"), Leg: new(trace.Leg)}); err != nil {
		t.Fatal(err)
	}
	if used := resp.Body.in.conn; used.fresh {
		t.Error("the connection was not used again")
	}
	resp.Body.Close()
}

// A dial ends with its context, and at its bound.
func TestDialEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u := &url.URL{Scheme: "http", Host: l.Addr().String()}
	var ended, goesOn lifetime.Context
	ended.End(nil)
	if _, err := New(Options{URL: u}).dial(&ended); !errors.Is(err, context.Canceled) && (err == nil || !strings.Contains(err.Error(), "operation was canceled")) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := New(Options{URL: u, ConnectTimeout: 1}).dial(&goesOn); err == nil || !timedOut(err) || !strings.Contains(err.Error(), "no connection within 1ns (--connect-timeout)") {
		t.Errorf("at its bound: %v", err)
	}
	if ended.Followers() != 0 || goesOn.Followers() != 0 {
		t.Error("a dial still follows")
	}
}
