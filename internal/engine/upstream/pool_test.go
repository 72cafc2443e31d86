package upstream

import (
	"net"
	"runtime"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// An engine closes idle connections after a time, by a timer that may be late. Once a
// connection was found closed, none is used that has been idle for nearly as long.
// Connections to an engine that loses them for other reasons are used again, as long as
// they are open.
func TestPatience(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p patience
		keeps := time.Duration(rapid.Int64Range(1000, int64(10*time.Second)).Draw(t, "keeps"))
		for range rapid.IntRange(1, 100).Draw(t, "uses") {
			rested := time.Duration(rapid.Int64Range(1, int64(2*keeps)).Draw(t, "rested"))
			late := time.Duration(rapid.Int64Range(0, int64(keeps/2)).Draw(t, "late"))
			switch {
			case rested >= keeps+late:
				p.closed(rested)
			case p.open(rested) && p.least > 0 && rested >= keeps:
				t.Fatalf("used after %v, where the engine closes after %v and one was closed after %v", rested, keeps, p.least)
			}
		}
		p.closed(time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "lost")))
		for rested := time.Millisecond; rested <= 4*time.Second; rested *= 3 {
			p.open(rested)
		}
		if at := time.Second; !p.open(at) {
			t.Fatalf("not used after %v, though others are open after 2.187 s", at)
		}
	})
}

// pooled returns a pool with a connection in it that has been idle for a while, and the
// engine's end of it.
func pooled(t *testing.T, rested time.Duration) (p *pool, engine net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if engine, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	c, err := newConn(client)
	if err != nil {
		t.Fatal(err)
	}
	p = &pool{max: 1, keep: 24 * time.Hour}
	p.give(c)
	p.idle[0].idle = time.Now().Add(-rested)
	t.Cleanup(func() {
		p.closeIdle()
		client.Close()
		engine.Close()
	})
	return p, engine
}

// A pool learns from the connections that it finds closed, and does not give out those
// that the engine is about to close.
func TestPoolLearns(t *testing.T) {
	p, engine := pooled(t, 4*time.Hour)
	engine.Close()
	for p.idle[0].usable() { // until the end has come
		runtime.Gosched()
	}
	if p.take() != nil {
		t.Fatal("a closed connection was given out")
	}
	learned := p.patience
	for rested, want := range map[time.Duration]bool{time.Hour: true, 3 * time.Hour: false, 10 * time.Hour: false} {
		p, _ := pooled(t, rested)
		p.patience = learned
		if got := p.take() != nil; got != want {
			t.Errorf("idle for %v, where one was closed after 4 h: given out %v", rested, got)
		}
	}
	p, _ = pooled(t, 3*time.Hour)
	if p.take() == nil {
		t.Error("not given out, though none was closed")
	}
}
