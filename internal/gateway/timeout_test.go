package gateway

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/infer"
)

// The bounds of every wait, at their defaults, in virtual time.

func TestEngineTimeout(t *testing.T) {
	inBubble(t, Options{}, nil, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		time.Sleep(5*time.Second - time.Nanosecond)
		if a := c.answer(); a.status != 0 {
			t.Fatalf("status %d before the time is out", a.status)
		}
		time.Sleep(time.Nanosecond)
		e := c.refusal(503)
		wantParts(t, e.Message, "weir-sim", "ready")
		if got := c.answer().header.Get("Retry-After"); got != "1" {
			t.Errorf("Retry-After %q", got)
		}
		r := b.wantRecord(c, "rejected", "unavailable")
		if r.total() != 5*time.Second || r.Stages["queue"] != int64(5*time.Second) {
			t.Errorf("total %v, stages %v", r.total(), r.Stages)
		}
	})
}

// A request that waits for an engine goes to the first that joins, at once.
func TestEngineJoins(t *testing.T) {
	e := &tokenEngine{name: "late"}
	inBubble(t, Options{}, nil, func(t *testing.T, b *bench) {
		e.calls = nil
		c := b.post(chatPath, askStream(``))
		time.Sleep(2 * time.Second)
		b.publish() // another change that does not help
		synctest.Wait()
		time.Sleep(time.Second)
		b.publish(e)
		e.call(t, 1).end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
		if r := b.record(c); r.Stages["queue"] != int64(3*time.Second) || r.total() != 3*time.Second {
			t.Errorf("total %v, stages %v", r.total(), r.Stages)
		}
	})
}

func TestSubmitTimeout(t *testing.T) {
	a, z := &tokenEngine{name: "a", accept: never}, &tokenEngine{name: "z"}
	t.Run("alone", func(t *testing.T) {
		inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, askStream(``))
			call := a.call(t, 1)
			time.Sleep(10*time.Second - time.Nanosecond)
			if got := c.answer(); got.status != 0 || call.aborted() {
				t.Fatalf("status %d, aborted %v before the time is out", got.status, call.aborted())
			}
			time.Sleep(time.Nanosecond)
			if e := c.refusal(504); e.code() != "deadline_exceeded" {
				t.Errorf("error %+v", e)
			}
			r := b.wantRecord(c, "failed", "deadline")
			if r.Stages["dispatch"] != int64(10*time.Second) {
				t.Errorf("stages %v", r.Stages)
			}
			wantLegs(t, r, "a deadline")
		})
	})
	t.Run("elsewhere", func(t *testing.T) {
		inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, askStream(``))
			time.Sleep(10 * time.Second)
			z.call(t, 1).end(infer.ReasonStop, words()[0])
			c.wantWhole(text(words()[0]), "stop")
			wantLegs(t, b.wantRecord(c, "finished", ""), "a deadline", "z finished")
		})
	})
}

func TestFirstTimeout(t *testing.T) {
	a := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		call := a.call(t, 1)
		// Longer than the bound between outputs: a prefill may take that.
		time.Sleep(10*time.Minute - time.Nanosecond)
		if got := c.answer(); got.status != 0 || call.aborted() {
			t.Fatalf("status %d, aborted %v before the time is out", got.status, call.aborted())
		}
		time.Sleep(time.Nanosecond)
		e := c.refusal(504)
		wantParts(t, e.Message, "nothing", "10m0s")
		if !call.aborted() {
			t.Error("the engine works on")
		}
		r := b.wantRecord(c, "failed", "deadline")
		if r.Stages["engine"] != int64(10*time.Minute) {
			t.Errorf("stages %v", r.Stages)
		}
	})
}

func TestIdleTimeout(t *testing.T) {
	a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
	inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		call := a.call(t, 1)
		for i := range 5 { // each output sets the bound anew
			call.send(words()[i])
			time.Sleep(4 * time.Minute)
		}
		time.Sleep(time.Minute - time.Nanosecond)
		synctest.Wait()
		if call.aborted() {
			t.Fatal("aborted before the time is out")
		}
		time.Sleep(time.Nanosecond)
		c.wantBroken(text(words()[:5]...), "deadline_exceeded")
		if !call.aborted() {
			t.Error("the engine works on")
		}
		b.wantRecord(c, "failed", "deadline")
		z.call(t, 0)
	})
}

// A body that stops arriving is given up; one that only comes slowly is not.
func TestBodyTimeout(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		body := askStream(``)
		c := b.dial(0)
		c.head("POST", chatPath, len(body))
		c.write(body[:10])
		time.Sleep(30*time.Second - time.Nanosecond)
		if a := c.answer(); a.status != 0 {
			t.Fatalf("status %d before the time is out", a.status)
		}
		time.Sleep(time.Nanosecond)
		if e := c.refusal(408); e.code() != "request_timeout" {
			t.Errorf("error %+v", e)
		}
		r := b.wantRecord(c, "rejected", "body_timeout")
		if r.Stages["read"] != int64(30*time.Second) {
			t.Errorf("stages %v", r.Stages)
		}

		slow := b.dial(0)
		slow.head("POST", chatPath, len(body))
		for i := range body {
			slow.write(body[i : i+1])
			time.Sleep(20 * time.Second)
		}
		e.call(t, 1).end(infer.ReasonStop, words()[0])
		slow.wantWhole(text(words()[0]), "stop")
	})
}

// A client that does not read is given up after the write deadline, its engine
// request aborted; nobody else is kept waiting meanwhile.
func TestWriteTimeout(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		w := words()
		stuck := b.dial(512)
		stuck.send("POST", chatPath, askStream(`,"max_tokens":10000`))
		call := e.call(t, 1)
		for i := 0; b.g.waiting.Load() == 0; i++ {
			if i == 100 {
				t.Fatal("a client that reads nothing blocks no write")
			}
			call.send(w[i])
		}
		began := time.Now()
		other := b.post(chatPath, askStream(``))
		e.call(t, 2).end(infer.ReasonStop, w[0])
		other.wantWhole(text(w[0]), "stop")
		if d := time.Since(began); d != 0 {
			t.Errorf("another stream waited %v", d)
		}
		time.Sleep(30*time.Second - time.Nanosecond)
		synctest.Wait()
		if call.aborted() {
			t.Fatal("given up before the write's time was out")
		}
		time.Sleep(15*time.Second + time.Nanosecond)
		synctest.Wait()
		if !call.aborted() {
			t.Fatal("the engine works on for a client that does not read")
		}
		within(t, "giving up", call.abortedAt.Sub(began), 30*time.Second, 45*time.Second)
		b.wantRecord(stuck, "failed", "slow_client")
		if s := stuck.story(); s.done || s.whole || !s.closed {
			t.Errorf("done %v, whole %v, closed %v", s.done, s.whole, s.closed)
		}
	})
}

// late is a response whose client does not read: a write ends with its deadline,
// and by then net/http has ended the request's context.
type late struct {
	http.ResponseWriter
	hangUp context.CancelFunc
}

func (l late) Write([]byte) (int, error) {
	l.hangUp()
	return 0, &net.OpError{Op: "write", Err: os.ErrDeadlineExceeded}
}

// What net/http does when a write has taken too long is no hang-up.
func TestUnreadIsNoHangUp(t *testing.T) {
	ctx, hangUp := context.WithCancel(t.Context())
	w := late{httptest.NewRecorder(), hangUp}
	c := &httpCarrier{w: w, rc: http.NewResponseController(w)}
	whole, err := c.send(nil, []byte("x"), false)
	if err == nil && !whole {
		err = c.rest()
	}
	if got := infer.AsError(lost(ctx, err, time.Second)); got.Code != infer.CodeSlowClient {
		t.Errorf("%v: %v", err, got)
	}
}

// A kept connection's earlier deadlines do not bound its later requests,
// whatever they ask for.
func TestDeadlinesEndWithTheirRequest(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		for i, body := range []string{askStream(``), askChat(``)} {
			c := b.dial(0)
			c.send("POST", chatPath, body)
			e.call(t, i+1).end(infer.ReasonStop, words()[0])
			if a := c.answer(); a.status != 200 || !a.whole {
				t.Fatalf("status %d, whole %v", a.status, a.whole)
			}
			for _, path := range []string{"/v1/models", "/v1/models/weir-sim", "/v1/models"} {
				time.Sleep(2 * time.Minute)
				c.send("GET", path, "")
				if a := c.answer(); a.status != 200 || !a.whole || !strings.Contains(string(a.body), "weir-sim") {
					t.Errorf("%s after two minutes: status %d, whole %v, closed %v", path, a.status, a.whole, a.closed)
				}
			}
		}
	})
}

// A kept connection waits its own time for its next request, and a request's
// head that has begun its own, whichever way the request before it went.
func TestKeptConnections(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		for i, body := range []string{askStream(``), askChat(``)} {
			idle, begun := b.dial(0), b.dial(0)
			for j, c := range []*caller{idle, begun} {
				c.send("POST", chatPath, body)
				e.call(t, 2*i+j+1).end(infer.ReasonStop, words()[0])
				c.answer()
			}
			time.Sleep(2 * time.Minute)
			begun.write("GET /v1/mod")
			time.Sleep(30*time.Second - time.Nanosecond)
			if idle.answer().closed || begun.answer().closed {
				t.Fatal("closed before the time was out")
			}
			time.Sleep(time.Nanosecond)
			if !begun.answer().closed {
				t.Error("a head that is not completed holds its connection")
			}
			time.Sleep(2*time.Minute + 30*time.Second - time.Nanosecond)
			if idle.answer().closed {
				t.Error("an idle connection was closed before its time was out")
			}
			time.Sleep(time.Nanosecond)
			if !idle.answer().closed {
				t.Error("an idle connection is held for ever")
			}
		}
	})
}
