package gateway

import (
	"testing"
	"time"
)

// A relayed answer whose events come within a moment of each other ends on the goroutine that
// began it, with a first write that has all that was there. One that goes on later leaves that
// goroutine after its first write. The next request of the connection follows either.
func TestShortStreamsStay(t *testing.T) {
	r := &relayEngine{name: "r"}
	for _, test := range []struct {
		name         string
		play         func(f *forward)
		writes, left int
	}{
		{"all at once", func(f *forward) {
			f.chunks <- []byte(relayToken + relayEnd)
			f.close()
		}, 1, 0},
		{"one behind the other", func(f *forward) {
			f.chunks <- []byte(relayToken)
			f.chunks <- []byte(relayEnd)
			f.close()
		}, 1, 0},
		{"the rest during the first write", func(f *forward) {
			f.onEmpty = func() { f.chunks <- []byte(relayEnd); f.close() }
			f.chunks <- []byte(relayToken)
		}, 2, 0},
		{"the rest later", func(f *forward) {
			f.send(relayToken)
			time.Sleep(time.Millisecond)
			f.chunks <- []byte(relayEnd)
			f.close()
		}, 3, 1}, // the end is a read by itself,
	} {
		t.Run(test.name, func(t *testing.T) {
			inWays(t, []way{wayPolled}, Options{}, []any{r}, func(t *testing.T, b *bench) {
				c := b.dial(0)
				for n := 1; n <= 2; n++ {
					c.send("POST", chatPath, relayBody)
					f := r.forward(t, n)
					test.play(f)
					if a := c.answer(); string(a.body) != relayToken+relayEnd || !a.whole || a.closed {
						t.Fatalf("whole %v, closed %v, body %q", a.whole, a.closed, a.body)
					}
					if got := b.g.front.Detached(); got != n*test.left {
						t.Errorf("%d of %d streams left their goroutines, want %d", got, n, n*test.left)
					}
					if rec := b.wantRecord(c, "finished", ""); rec.Writes != test.writes {
						t.Errorf("%d writes, want %d", rec.Writes, test.writes)
					}
					if b.g.driver.Polled() != 0 {
						t.Error("sockets are polled")
					}
				}
			})
		})
	}
}

// A stream that stays sends what came before its engine failed: in a write of its own, or
// together with the error.
func TestShortStreamFails(t *testing.T) {
	r := &relayEngine{name: "r"}
	for _, together := range []bool{false, true} {
		testShortStreamFails(t, r, together)
	}
}

func testShortStreamFails(t *testing.T, r *relayEngine, together bool) {
	inWays(t, []way{wayPolled}, Options{}, []any{r}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, relayBody)
		f := r.forward(t, 1)
		fail := func() {
			f.fault <- f.engine.fault(false)
			f.close()
		}
		if !together {
			f.onEmpty = fail
		}
		if f.chunks <- []byte(relayToken); together {
			fail()
		}
		a := c.answer()
		if a.status != 200 || len(a.body) < len(relayToken) || string(a.body[:len(relayToken)]) != relayToken || a.whole || !a.closed {
			t.Errorf("status %d, whole %v, closed %v, body %q", a.status, a.whole, a.closed, a.body)
		}
		b.wantRecord(c, "failed", "engine")
	})
}
