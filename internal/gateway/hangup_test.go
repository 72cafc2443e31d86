package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"weir/internal/engine"
	"weir/internal/fleet/route"
	"weir/internal/infer"
)

// A hang-up is noticed at once wherever the request stands, ends it as
// cancelled and frees the engine, without any time passing.
func TestHangUp(t *testing.T) {
	quiet, mute := &tokenEngine{name: "a"}, &tokenEngine{name: "mute", accept: never}
	r := &relayEngine{name: "r"}
	type phase struct {
		name    string
		engines []any
		begin   func(t *testing.T, b *bench) *caller
	}
	phases := []phase{
		{"in the middle of its body", []any{quiet}, func(t *testing.T, b *bench) *caller {
			c := b.dial(0)
			c.head("POST", chatPath, 100)
			c.write("{")
			return c
		}},
		{"queued", nil, func(t *testing.T, b *bench) *caller {
			return b.post(chatPath, askStream(``))
		}},
		{"dispatching", []any{mute}, func(t *testing.T, b *bench) *caller {
			return b.post(chatPath, askStream(``))
		}},
		{"waiting for the first token", []any{quiet}, func(t *testing.T, b *bench) *caller {
			return b.post(chatPath, askStream(``))
		}},
		{"waiting for an answer that is not streamed", []any{quiet}, func(t *testing.T, b *bench) *caller {
			c := b.post(chatPath, askChat(``))
			quiet.call(t, 1).send(words()[:3]...)
			return c
		}},
		{"streaming", []any{quiet}, func(t *testing.T, b *bench) *caller {
			c := b.post(chatPath, askStream(``))
			quiet.call(t, 1).send(words()[0])
			if s := c.story(); s.text != text(words()[0]) {
				t.Fatalf("the client has %q", s.text)
			}
			return c
		}},
		{"not reading", []any{quiet}, func(t *testing.T, b *bench) *caller {
			c := b.dial(256)
			c.send("POST", chatPath, askStream(`,"max_tokens":1000`))
			quiet.call(t, 1).send(words()[:100]...)
			return c
		}},
		{"relayed, before the head", []any{r}, func(t *testing.T, b *bench) *caller {
			return b.post(chatPath, relayBody)
		}},
		{"relayed, streaming", []any{r}, func(t *testing.T, b *bench) *caller {
			c := b.post(chatPath, relayBody)
			r.forward(t, 1).send("data: {}\n\n")
			if s := c.answer(); string(s.body) != "data: {}\n\n" {
				t.Fatalf("the client has %q", s.body)
			}
			return c
		}},
	}
	// Bytes that a client sends ahead of the answer do not hide its hang-up: neither bytes in the
	// segment of the request, nor bytes in a segment of their own, which blind net/http.
	for _, p := range phases[1:] {
		for name, ahead := range map[string]string{"a byte ahead": "\n", "a request ahead": "GET /v1/models HTTP/1.1\r\nHost: weir\r\n\r\n"} {
			phases = append(phases, phase{p.name + ", " + name, p.engines, func(t *testing.T, b *bench) *caller {
				c := p.begin(t, b)
				synctest.Wait()
				c.write(ahead)
				return c
			}})
		}
	}
	for _, test := range phases {
		for how, hangUp := range map[string]func(*caller){
			"close":      func(c *caller) { c.conn.Close() },
			"half-close": func(c *caller) { c.conn.CloseWrite() },
			"reset":      func(c *caller) { c.conn.Reset() },
		} {
			t.Run(test.name+", "+how, func(t *testing.T) {
				inBubble(t, Options{}, test.engines, func(t *testing.T, b *bench) {
					c := test.begin(t, b)
					synctest.Wait()
					if b.g.Live() != 1 {
						t.Fatalf("%d requests are live, want 1", b.g.Live())
					}
					time.Sleep(time.Second)
					began := time.Now()
					hangUp(c)
					synctest.Wait()
					if n := b.g.Live(); n != 0 {
						t.Errorf("%d requests are live after the hang-up", n)
					}
					freed(t, test.engines, began)
					if d := time.Since(began); d != 0 {
						t.Errorf("%v passed", d)
					}
					b.wantRecord(c, "cancelled", "cancelled")
				})
			})
		}
	}
}

// A client that goes while its prompt waits for a worker costs no tokenizing.
func TestHangUpWhileTokenizing(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		release := make(chan struct{})
		busy := make(chan struct{})
		go func() {
			defer close(busy)
			_, _ = b.g.preparer.Pool.Run(t.Context(), 1, func() { <-release })
		}()
		synctest.Wait()
		c := b.post(chatPath, askStream(``))
		time.Sleep(time.Second)
		c.hangUp()
		if n := b.g.Live(); n != 0 {
			t.Errorf("%d requests are live after the hang-up", n)
		}
		close(release)
		<-busy
		e.call(t, 0)
		r := b.wantRecord(c, "cancelled", "cancelled")
		if r.Stages["pool_wait"] != int64(time.Second) || r.Stages["tokenize"] != 0 {
			t.Errorf("stages %v", r.Stages)
		}
	})
}

// So it is with a stream of HTTP/2, be it reset or its connection closed or reset.
func TestHangUpHTTP2(t *testing.T) {
	quiet, mute := &tokenEngine{name: "a"}, &tokenEngine{name: "mute", accept: never}
	r := &relayEngine{name: "r"}
	ask := func(s *streams, body string) (*caller, uint32) { return s.open(chatPath, body, len(body)) }
	for _, phase := range []struct {
		name    string
		engines []any
		begin   func(t *testing.T, s *streams) (*caller, uint32)
	}{
		{"in the middle of its body", []any{quiet}, func(t *testing.T, s *streams) (*caller, uint32) {
			return s.open(chatPath, "{", 100)
		}},
		{"queued", nil, func(t *testing.T, s *streams) (*caller, uint32) { return ask(s, askStream(``)) }},
		{"dispatching", []any{mute}, func(t *testing.T, s *streams) (*caller, uint32) { return ask(s, askStream(``)) }},
		{"waiting for the first token", []any{quiet}, func(t *testing.T, s *streams) (*caller, uint32) { return ask(s, askStream(``)) }},
		{"waiting for an answer that is not streamed", []any{quiet}, func(t *testing.T, s *streams) (*caller, uint32) {
			c, stream := ask(s, askChat(``))
			quiet.call(t, 1).send(words()[:3]...)
			return c, stream
		}},
		{"streaming", []any{quiet}, func(t *testing.T, s *streams) (*caller, uint32) {
			c, stream := ask(s, askStream(``))
			quiet.call(t, 1).send(words()[0])
			if s.read(); !strings.Contains(string(s.data[stream]), text(words()[0])) {
				t.Fatalf("the client has %q", s.data[stream])
			}
			return c, stream
		}},
		{"not reading", []any{quiet}, func(t *testing.T, s *streams) (*caller, uint32) {
			s.write(func(f *http2.Framer) error {
				return f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 16})
			})
			c, stream := ask(s, askStream(`,"max_tokens":1000`))
			quiet.call(t, 1).send(words()[:100]...)
			return c, stream
		}},
		{"relayed, before the head", []any{r}, func(t *testing.T, s *streams) (*caller, uint32) { return ask(s, relayBody) }},
		{"relayed, streaming", []any{r}, func(t *testing.T, s *streams) (*caller, uint32) {
			c, stream := ask(s, relayBody)
			r.forward(t, 1).send("data: {}\n\n")
			if s.read(); string(s.data[stream]) != "data: {}\n\n" {
				t.Fatalf("the client has %q", s.data[stream])
			}
			return c, stream
		}},
	} {
		for how, hangUp := range map[string]func(*streams, uint32){
			"stream reset":      func(s *streams, stream uint32) { s.cancel(stream) },
			"connection closed": func(s *streams, _ uint32) { s.conn.Close() },
			"connection reset":  func(s *streams, _ uint32) { s.conn.Reset() },
		} {
			t.Run(phase.name+", "+how, func(t *testing.T) {
				inBubble(t, Options{}, phase.engines, func(t *testing.T, b *bench) {
					s := b.dialHTTP2()
					defer s.conn.Close()
					c, stream := phase.begin(t, s)
					if synctest.Wait(); b.g.Live() != 1 {
						t.Fatalf("%d requests are live, want 1", b.g.Live())
					}
					time.Sleep(time.Second)
					began := time.Now()
					hangUp(s, stream)
					if synctest.Wait(); b.g.Live() != 0 {
						t.Errorf("%d requests are live after the hang-up", b.g.Live())
					}
					freed(t, phase.engines, began)
					if d := time.Since(began); d != 0 {
						t.Errorf("%v passed", d)
					}
					b.wantRecord(c, "cancelled", "cancelled")
				})
			})
		}
	}
}

// freed wants what engines were handed to be given up, at a time.
func freed(t *testing.T, engines []any, at time.Time) {
	t.Helper()
	for _, e := range engines {
		switch e := e.(type) {
		case *tokenEngine:
			for _, call := range e.handed() {
				if !call.aborted() || !call.abortedAt.Equal(at) {
					t.Errorf("aborted %v, after %v", call.aborted(), call.abortedAt.Sub(at))
				}
			}
		case *relayEngine:
			if f := e.forward(t, 1); !f.abandoned() || !f.closedAt.Equal(at) {
				t.Errorf("abandoned %v, after %v", f.abandoned(), f.closedAt.Sub(at))
			}
		}
	}
}

// unwatched is a watcher that notices nothing.
type unwatched struct{}

func (unwatched) Watch(net.Conn, func()) (stop func(), err error) { return func() {}, nil }

// askedTwice is a listener that reports when it is asked for a second connection.
type askedTwice struct {
	net.Listener
	asked  int
	second chan struct{}
}

func (l *askedTwice) Accept() (net.Conn, error) {
	if l.asked++; l.asked == 2 {
		close(l.second)
	}
	return l.Listener.Accept()
}

// A client that has hung up before its request would go to an engine costs no engine anything,
// even if nobody has reported the hang-up by then.
func TestGoneBeforeAnEngine(t *testing.T) {
	for _, test := range []struct {
		name  string
		then  func(c *net.TCPConn) error
		asked int
	}{
		{"closed", func(c *net.TCPConn) error { return c.Close() }, 0},
		{"half-closed", func(c *net.TCPConn) error { return c.CloseWrite() }, 0},
		{"reset", func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) }, 0},
		{"there", func(*net.TCPConn) error { return nil }, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := &relayEngine{name: "r", reply: func(context.Context, *forward) (*engine.RelayResponse, error) {
				return nil, &infer.Error{Code: infer.CodeEngine, Message: "asked"}
			}}
			fleet := fleetOf(nil, e)
			g := New(Options{Snapshot: func() *route.Snapshot { return fleet }})
			defer g.Close()
			g.front.Hangups = unwatched{}
			g.front.Returned().Serving.Store(true)
			tcp, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l := &askedTwice{Listener: tcp, second: make(chan struct{})}
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: weir\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(relayBody), relayBody); err != nil {
				t.Fatal(err)
			}
			if err := test.then(c.(*net.TCPConn)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond) // the kernel has passed it on by then
			var accepting sync.WaitGroup
			defer accepting.Wait()
			defer l.Close()
			accepting.Go(func() { _, _ = g.front.PlainListener(l).Accept() }) // returns when the listener is closed
			<-l.second
			for late := time.Now().Add(time.Minute); g.Live() > 0 || len(e.handed()) < test.asked || test.asked == 0 && g.front.Conns().Open > 0; {
				if time.Now().After(late) {
					t.Fatal("the request has not ended after a minute")
				}
				time.Sleep(time.Millisecond)
			}
			if n := len(e.handed()); n != test.asked {
				t.Errorf("the engine was handed %d requests, want %d", n, test.asked)
			}
		})
	}
}
