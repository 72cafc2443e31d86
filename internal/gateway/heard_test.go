package gateway

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/gateway/front"
	"weir/internal/infer"
)

// A stream that breaks says why, and breaks a moment later, so that a client that loses what it
// has not read when its response breaks has read it. It breaks at once when the client hangs up,
// and a client that has heard nothing to the end is not taken for one that has the whole.
func TestLastWords(t *testing.T) {
	e := &tokenEngine{name: "a"}
	fails := func(b *bench) *caller {
		c := b.post(chatPath, askStream(""))
		call := e.call(b.t, len(e.handed()))
		call.send(words()[0])
		call.fail(infer.CodeEngine, true)
		a := c.came()
		if !bytes.Contains(a.body, []byte(`"engine_error"`)) || a.whole || a.closed {
			b.t.Fatalf("whole %t, closed %t: %q", a.whole, a.closed, a.body)
		}
		return c
	}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := fails(b)
		time.Sleep(front.HearingTime - time.Millisecond)
		if a := c.came(); a.closed {
			t.Error("the connection is closed too early")
		}
		time.Sleep(time.Millisecond)
		if a := c.came(); a.whole || !a.closed {
			t.Errorf("whole %t, closed %t after %v", a.whole, a.closed, front.HearingTime)
		}
		c.hangUp()
		b.g.driver.Wait()

		c = fails(b)
		before := time.Now()
		c.hangUp()
		b.g.driver.Wait()
		if waited := time.Since(before); waited > 0 {
			t.Errorf("the stream waits %v for a client that has hung up", waited)
		}
	})
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		s := b.dialHTTP2()
		defer s.conn.Close()
		body := askStream("")
		_, stream := s.open(chatPath, body, len(body))
		call := e.call(t, 1)
		call.send(words()[0])
		call.fail(infer.CodeEngine, true)
		if s.read(); !bytes.Contains(s.data[stream], []byte(`"engine_error"`)) || s.reset[stream] || s.ended[stream] {
			t.Fatalf("reset %t, ended %t: %q", s.reset[stream], s.ended[stream], s.data[stream])
		}
		time.Sleep(front.HearingTime)
		if s.read(); !s.reset[stream] || s.ended[stream] {
			t.Errorf("reset %t, ended %t", s.reset[stream], s.ended[stream])
		}
		synctest.Wait()
	})
}
