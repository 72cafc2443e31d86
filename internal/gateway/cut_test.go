package gateway

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/gateway/front"
)

// A client that reads slowly and has a write under way when its stream is cut gets the rest of
// the write and the reason behind it, by whichever carrier. One that does not read is given up.
func TestCutDuringAWrite(t *testing.T) {
	e := &tokenEngine{name: "a"}
	for _, reads := range []bool{true, false} {
		t.Run(map[bool]string{true: "read", false: "unread"}[reads], func(t *testing.T) {
			inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
				c := b.dial(512)
				c.send("POST", chatPath, askStream(`,"max_tokens":10000`))
				call := e.call(t, 1)
				for i := 0; b.g.Pending() == 0; i++ {
					if i == 100 {
						t.Fatal("a client that reads nothing blocks no write")
					}
					call.send(words()[i])
				}
				began := time.Now()
				b.g.Cut()
				synctest.Wait()
				if n := b.g.Live(); n != 1 {
					t.Fatalf("%d requests are live while a write is under way", n)
				}
				for reads && b.g.Live() > 0 && time.Since(began) < time.Minute {
					time.Sleep(front.LastWords / 10)
					c.answer()
				}
				if !reads {
					time.Sleep(front.LastWords)
				}
				if synctest.Wait(); b.g.Live() != 0 {
					t.Fatalf("the request is live after %v", time.Since(began))
				}
				a := c.answer()
				if said := strings.Contains(string(a.body), "was shut down before"); said != reads || a.whole {
					t.Errorf("the reason has come: %v, want %v; whole %v: ...%q", said, reads, a.whole, a.body[max(0, len(a.body)-200):])
				}
				time.Sleep(time.Second)
				b.wantRecord(c, "failed", "shutdown")
			})
		})
	}
}

// A request whose body is still to come when it is cut is answered at once, whoever reads it.
func TestCutDuringAnUpload(t *testing.T) {
	for name, c := range map[string]struct {
		chunked bool
		path    string
	}{"declared": {path: chatPath}, "in chunks": {chunked: true, path: chatPath}, "relayed": {path: completionsPath}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, []any{&relayEngine{name: "r"}}, func(t *testing.T, b *bench) {
				caller := b.dial(0)
				if c.chunked {
					caller.head("POST", c.path, 0, "Transfer-Encoding", "chunked")
					caller.write("2\r\n{ \r\n")
				} else {
					caller.head("POST", c.path, 1000)
					caller.write("{ ")
				}
				time.Sleep(10 * time.Second)
				began := time.Now()
				b.g.Cut()
				wantParts(t, caller.refusal(503).Message, "was shut down before")
				if synctest.Wait(); b.g.Live() != 0 || time.Since(began) > 0 {
					t.Errorf("%d requests are live after %v", b.g.Live(), time.Since(began))
				}
				time.Sleep(2 * front.LingerTime)
				if a := caller.answer(); !a.closed {
					t.Error("the connection is open")
				}
				b.wantRecord(caller, "failed", "shutdown")
			})
		})
	}
}

// A shutdown waits for a client that still sends a body which was refused, and Cut ends it.
func TestCutDuringARefusedUpload(t *testing.T) {
	for name, path := range map[string]string{"refused": chatPath, "view": "/nothing"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{Front: front.Options{MaxBody: 1 << 20}}, nil, func(t *testing.T, b *bench) {
				c := b.dial(0)
				c.head("POST", path, 3<<20)
				if path != chatPath {
					delete(b.sent, c.id) // it is no request to an engine
				}
				for range 10 {
					c.write(strings.Repeat(" ", 1000))
					time.Sleep(front.DrainSilence / 2)
				}
				if n := b.g.Served(); n != 1 || b.g.Live() != 0 {
					t.Errorf("%d requests are waited for, %d are live", n, b.g.Live())
				}
				b.g.Cut()
				if synctest.Wait(); b.g.Served() != 0 {
					t.Errorf("%d requests are waited for after they were cut", b.g.Served())
				}
				if path == chatPath {
					c.refusal(413)
				}
				time.Sleep(2 * front.LingerTime)
				if a := c.answer(); !a.closed {
					t.Error("the connection is open")
				}
			})
		})
	}
}
