package relay

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"weir/internal/engine"
	"weir/internal/trace"
)

// Where hanging up is held back, a caller that gives up before the answer's first byte leaves at
// once, and its connection stays until that byte has come, the engine has ended it, or it may be
// closed.
func TestHangUpHeldBack(t *testing.T) {
	const head, output = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n", "5\r\nhello\r\n"
	for when, at := range map[string]int{"before the head": 0, "in the head": 20, "behind the head": len(head), "in the size of a chunk": len(head) + 1} {
		for how, closes := range map[string]bool{"its context": false, "closing the body": true} {
			if closes && at < len(head) {
				continue // there is none
			}
			for until, free := range map[string]func(c *wire, w *engine.Deferral){
				"output":         func(c *wire, _ *engine.Deferral) { c.send((head + output)[at:]) },
				"its release":    func(_ *wire, w *engine.Deferral) { w.Released() },
				"the other side": func(c *wire, _ *engine.Deferral) { _ = c.Conn.(*net.TCPConn).CloseWrite() },
			} {
				t.Run(when+", by "+how+", until "+until, func(t *testing.T) {
					conns, over := make(chan *wire), make(chan struct{})
					p := play(t, func(_ int, c *wire) {
						c.request()
						c.send((head + output)[:at])
						conns <- c
						<-over
					})
					defer close(over)
					ctx, cancel := context.WithCancel(bounded(t))
					defer cancel()
					req := post("{}")
					req.Waits = new(engine.Deferral)
					left := make(chan error, 1)
					go func() {
						resp, err := p.engine(Options{}).Forward(ctx, req, &trace.Leg{})
						if err == nil && !closes {
							_, err = resp.Body.Read(make([]byte, 9))
						}
						if resp != nil {
							resp.Body.Close()
						}
						left <- err
					}()
					c := <-conns
					if !closes {
						cancel()
					}
					if err := <-left; errors.Is(err, context.Canceled) == closes {
						t.Fatalf("the caller has %v", err)
					}
					closed := func(within time.Duration) bool {
						_ = c.SetReadDeadline(time.Now().Add(within))
						_, err := c.in.ReadByte()
						var timeout net.Error
						return !errors.As(err, &timeout) || !timeout.Timeout()
					}
					if closed(50*time.Millisecond) || req.Waits.Held() == nil {
						t.Fatal("it was hung up on at once")
					}
					free(c, req.Waits)
					if !closed(10 * time.Second) {
						t.Error("it goes on")
					}
				})
			}
		}
	}
}

// With the first byte hanging up is held back no longer, and an answer that is read to its end
// leaves the connection for others.
func TestHangUpHeldBackNoMore(t *testing.T) {
	p := play(t, func(_ int, c *wire) {
		for {
			if r, _ := c.request(); r == nil {
				return
			}
			c.send(ok)
		}
	})
	e := p.engine(Options{})
	for range 3 {
		req := post("{}")
		req.Waits = new(engine.Deferral)
		resp, err := e.Forward(bounded(t), req, &trace.Leg{})
		if err != nil {
			t.Fatal(err)
		}
		if n, _ := resp.Body.Read(make([]byte, 9)); n != 2 {
			t.Fatalf("%d bytes", n)
		}
		resp.Body.Close()
		if n := p.accepted(); n != 1 || req.Waits.Held() != nil {
			t.Fatalf("%d connections", n)
		}
	}
	closed := make(chan struct{})
	hello := play(t, func(_ int, c *wire) {
		c.request()
		c.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
		c.drain()
		close(closed)
	})
	ctx, cancel := context.WithCancel(bounded(t))
	req := post("{}")
	req.Waits = new(engine.Deferral)
	resp, err := hello.engine(Options{}).Forward(ctx, req, &trace.Leg{})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if n, err := resp.Body.Read(make([]byte, 9)); n != 5 || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	cancel()
	<-closed
}
