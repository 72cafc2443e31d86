package gateway

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/fleet/admission"
	"weir/internal/fleet/retry"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/front"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/internal/trace"
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

// Where each engine has been ready and none takes requests, nothing is waited for.
func TestNobodyThere(t *testing.T) {
	inBubble(t, Options{}, nil, func(t *testing.T, b *bench) {
		for _, m := range b.snapshot.Load().Models {
			m.Settled = true // before any request reads it
		}
		c := b.post(chatPath, askStream(``))
		synctest.Wait()
		if e := c.refusal(503); !strings.Contains(e.Message, "ready") {
			t.Errorf("%+v", e)
		}
		if r := b.record(c); r.total() != 0 {
			t.Errorf("it took %v", r.total())
		}
	})
}

// An engine that has left a moment ago is waited for until a second after that: it may be
// connecting again.
func TestDeparture(t *testing.T) {
	leave := func(b *bench) {
		for _, m := range b.snapshot.Load().Models {
			m.Settled, m.Left = true, trace.Now() // before any request reads it
		}
	}
	t.Run("for good", func(t *testing.T) {
		inBubble(t, Options{}, nil, func(t *testing.T, b *bench) {
			leave(b)
			time.Sleep(400 * time.Millisecond)
			c := b.post(chatPath, askStream(``))
			time.Sleep(599 * time.Millisecond)
			if a := c.answer(); a.status != 0 {
				t.Fatalf("status %d before the time is out", a.status)
			}
			time.Sleep(time.Millisecond)
			c.refusal(503)
			if r := b.record(c); r.Stages["queue"] != int64(600*time.Millisecond) {
				t.Errorf("stages %v", r.Stages)
			}
		})
	})
	t.Run("and comes back", func(t *testing.T) {
		e := &tokenEngine{name: "back"}
		inBubble(t, Options{}, nil, func(t *testing.T, b *bench) {
			leave(b)
			e.calls = nil
			c := b.post(chatPath, askStream(``))
			time.Sleep(950 * time.Millisecond)
			b.publish(e)
			e.call(t, 1).end(infer.ReasonStop, words()[0])
			c.wantWhole(text(words()[0]), "stop")
		})
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
			if e := c.refusal(504); e.code() != "deadline_exceeded" || !strings.Contains(e.Message, "within 10s (--submit-timeout)") {
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
			if z.call(t, 0); !a.call(t, 1).aborted() {
				t.Error("it goes elsewhere, and the first engine was not told to stop")
			}
			time.Sleep(retry.AbortGrace)
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
		wantParts(t, e.Message, "nothing", "10m0s", "--first-timeout")
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
	inBubble(t, Options{Attempt: attempt.Options{Continue: attempt.Continuing{Off: true}}}, []any{a, z}, func(t *testing.T, b *bench) {
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

		slow := b.dial(0) // but in time
		slow.head("POST", chatPath, len(body))
		slow.write(body[:1])
		time.Sleep(29 * time.Second)
		slow.write(body[1:])
		e.call(t, 1).end(infer.ReasonStop, words()[0])
		slow.wantWhole(text(words()[0]), "stop")
	})
}

// An upload that never stops for long is bounded all the same: by a least rate, and by
// a time for the whole. Both give it up to the nanosecond.
func TestUploadBounds(t *testing.T) {
	for _, test := range []struct {
		name  string
		opts  Options
		chunk int
		every time.Duration
		dies  time.Duration
		says  string
	}{
		// 30 s, and 1 s for each 4096 bytes: 13 bytes have come by then.
		{"a byte now and then", Options{}, 1, 2500 * time.Millisecond, 30*time.Second + 13*time.Second/4096, "--upload-rate"},
		{"a rate that is enough", Options{}, 4096, time.Second, 5 * time.Minute, "--upload-timeout"},
		{"a rate of its own", Options{Front: front.Options{UploadRate: 8000, BodyTimeout: time.Second}}, 2048, time.Second / 2, 2280 * time.Millisecond, "--upload-rate"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, test.opts, nil, func(t *testing.T, b *bench) {
				c := b.dial(0)
				began := time.Now()
				c.head("POST", chatPath, 4<<20)
				synctest.Wait()
				for b.g.Live() > 0 {
					if time.Since(began) > time.Hour {
						t.Fatal("the upload goes on")
					}
					_, _ = c.conn.Write(bytes.Repeat([]byte(" "), test.chunk)) // until it is given up
					time.Sleep(test.every)
					synctest.Wait()
				}
				wantParts(t, c.refusal(408).Message, test.says)
				if r := b.wantRecord(c, "rejected", "body_timeout"); r.total() != test.dies {
					t.Errorf("given up after %v, want %v", r.total(), test.dies)
				}
			})
		})
	}
}

// The bodies in memory have a budget. One enters with the size that it declares, before
// it is read, or with what has come of it, and leaves when nothing needs it any more.
func TestBodyBudget(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Front: front.Options{MaxBodyMemory: 1 << 20}}, []any{e}, func(t *testing.T, b *bench) {
		first := b.dial(0)
		first.head("POST", chatPath, 600<<10)
		first.write(strings.Repeat(" ", 64<<10)) // at its pace: it keeps its room
		synctest.Wait()
		for _, path := range []string{chatPath, "/v1/messages", "/v1/responses"} {
			c := b.dial(0)
			c.head("POST", path, 300<<10) // 900 of 1024 KiB: the last eighth is for small bodies
			a := c.answer()
			if a.status != 429 && a.status != 529 || a.header.Get("Retry-After") != "1" || !strings.Contains(string(a.body), "--max-body-memory") {
				t.Errorf("%s: status %d, Retry-After %q, %s", path, a.status, a.header.Get("Retry-After"), a.body)
			}
			b.wantRecord(c, "rejected", "overloaded")
		}
		chunked := b.dial(0)
		chunked.write("POST " + chatPath + " HTTP/1.1\r\nHost: weir\r\nX-Request-Id: chunked\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
		chunked.id, chunked.method = "chunked", "POST"
		b.sent["chunked"]++
		synctest.Wait()
		for range 10 {
			if a := chunked.answer(); a.status != 0 {
				break
			}
			chunked.write("10000\r\n" + strings.Repeat(" ", 0x10000) + "\r\n")
		}
		chunked.refusal(429)
		small := b.post(chatPath, askStream(``))
		e.call(t, 1).send(words()[0])
		synctest.Wait()
		if used := b.g.bodies.Used(); used != 600<<10 {
			t.Errorf("%d bytes are held while one body comes and one streams, want %d", used, 600<<10)
		}
		e.call(t, 1).end(infer.ReasonStop)
		small.wantWhole(text(words()[0]), "stop")
		first.hangUp()
		chunked.hangUp()
		time.Sleep(time.Second) // for net/http to read on from those refused
		if used := b.g.bodies.Used(); used != 0 {
			t.Errorf("%d bytes are held at rest", used)
		}
	})
}

// Connections that declare bodies and send nothing do not keep out one that comes, and
// lose nothing by it but their room: once they send, they are served too.
func TestDeclaredBodyThatDoesNotCome(t *testing.T) {
	r := &relayEngine{name: "r"}
	inBubble(t, Options{Front: front.Options{MaxBodyMemory: 8 << 20}}, []any{r}, func(t *testing.T, b *bench) {
		body := `{"model":"relayed","input":"` + strings.Repeat("a", 2<<20) + `"}`
		var silent []*caller
		for range 3 {
			c := b.dial(0)
			c.head("POST", "/v1/embeddings", len(body))
			silent = append(silent, c)
			synctest.Wait()
		}
		early := b.dial(0)
		early.head("POST", "/v1/embeddings", len(body))
		early.refusal(429)
		time.Sleep(2 * time.Second)
		served := 0
		whole := func(c *caller) {
			served++
			f := r.forward(t, served)
			f.send("data: {}\n\n")
			f.end()
			if a := c.answer(); a.status != 200 || !a.whole {
				t.Errorf("status %d, %.200s", a.status, a.body)
			}
		}
		whole(b.post("/v1/embeddings", body))
		for _, c := range silent {
			c.write(body)
			synctest.Wait()
			whole(c)
		}
		time.Sleep(time.Second)
		if used := b.g.bodies.Used(); used != 0 {
			t.Errorf("%d bytes are held at rest", used)
		}
	})
}

// A request that finds no place is refused before its body has come.
func TestRefusedBeforeItsBody(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{Prepare: prepare.Options{Limits: admission.Limits{Requests: 1}}}, []any{e}, func(t *testing.T, b *bench) {
		first := b.post(chatPath, askStream(``))
		second := b.dial(0)
		second.head("POST", chatPath, 1<<20)
		second.refusal(429)
		b.wantRecord(second, "rejected", "overloaded")
		e.call(t, 1).end(infer.ReasonStop, words()[0])
		first.wantWhole(text(words()[0]), "stop")
		slow := b.dial(0) // holds no place before it is here
		slow.head("POST", chatPath, 1<<20)
		synctest.Wait()
		third := b.post(chatPath, askStream(``))
		e.call(t, 2).end(infer.ReasonStop, words()[0])
		third.wantWhole(text(words()[0]), "stop")
		time.Sleep(front.DrainSilence + time.Second) // net/http's end of a connection is half of it
		if !second.answer().closed {
			t.Error("the refused request's connection is open, though nothing more of its body comes")
		}
	})
}

// A refused body is read for a moment, for a client that sends all of it before it reads the
// answer: no longer than front.DrainTime, and no more of it than two bodies may have.
func TestRefusedBodyIsDrained(t *testing.T) {
	opts := Options{Front: front.Options{MaxBody: 1 << 20}}
	for _, test := range []struct {
		name         string
		piece, total int
		every        time.Duration
		least, most  time.Duration // how long the connection is open
	}{
		{"a slow one", 1 << 10, 3 << 20, front.DrainSilence / 2, front.DrainTime - front.DrainSilence, front.DrainTime + 2*time.Second},
		{"a long one", 64 << 10, 64 << 20, 5 * time.Millisecond, 150 * time.Millisecond, 2 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			inOneWay(t, opts, nil, func(t *testing.T, b *bench) {
				c := b.dial(0)
				c.head("POST", chatPath, test.total)
				c.refusal(413)
				began, piece := time.Now(), strings.Repeat(" ", test.piece)
				for sent := 0; sent < test.total && !c.answer().closed; sent += test.piece {
					c.write(piece)
					time.Sleep(test.every)
				}
				if open := time.Since(began); open < test.least || open > test.most {
					t.Errorf("the connection was open for %v, want %v to %v", open, test.least, test.most)
				}
				time.Sleep(2 * time.Second)
			})
		})
	}
}

// Who is refused and sends no more of its body is answered all the same, and keeps its
// connection no longer.
func TestBodyThatNobodyWants(t *testing.T) {
	inBubble(t, Options{}, nil, func(t *testing.T, b *bench) {
		for name, path := range map[string]string{"refused": "/v1/chat/completions", "view": "/nothing"} {
			c := b.dial(0)
			c.write("POST " + path + " HTTP/1.1\r\nHost: weir\r\nX-Request-Id: " + name + "\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n")
			if name == "refused" {
				b.sent[name]++
			}
			c.method = "POST"
			time.Sleep(front.UnreadTimeout)
			if a := c.answer(); a.status != 415 && a.status != 404 || !a.whole {
				t.Errorf("%s: status %d, whole %v", name, a.status, a.whole)
			}
			time.Sleep(time.Second)
			if a := c.answer(); !a.closed {
				t.Errorf("%s: the connection is still open", name)
			}
		}
	})
}

// A request has a time for the whole of it, wherever it stands when that is over: its
// client is told, its engine freed, and the engine is not blamed.
func TestRequestTimeout(t *testing.T) {
	quiet, mute := &tokenEngine{name: "a"}, &tokenEngine{name: "mute", accept: never}
	r := &relayEngine{name: "r"}
	post := func(path, body string) func(*testing.T, *bench) *caller {
		return func(_ *testing.T, b *bench) *caller { return b.post(path, body) }
	}
	for _, test := range []struct {
		name    string
		engines []any
		begin   func(t *testing.T, b *bench) *caller
		stream  bool
	}{
		{"reading", []any{quiet}, func(t *testing.T, b *bench) *caller {
			c := b.dial(0)
			c.head("POST", chatPath, 100)
			c.write("{")
			return c
		}, false},
		{"queued", nil, post(chatPath, askStream(``)), false},
		{"dispatching", []any{mute}, post(chatPath, askStream(``)), false},
		{"waiting for the first token", []any{quiet}, post(chatPath, askStream(``)), false},
		{"waiting for an answer", []any{quiet}, post(chatPath, askChat(``)), false},
		{"streaming", []any{quiet}, func(t *testing.T, b *bench) *caller {
			c := b.post(chatPath, askStream(``))
			quiet.call(t, 1).send(words()[0])
			return c
		}, true},
		{"relayed, before the head", []any{r}, post(chatPath, relayBody), false},
		{"relayed, streaming", []any{r}, func(t *testing.T, b *bench) *caller {
			c := b.post(chatPath, relayBody)
			r.forward(t, 1).send("data: {}\n\n")
			return c
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, Options{Front: front.Options{RequestTimeout: 3 * time.Second}}, test.engines, func(t *testing.T, b *bench) {
				c := test.begin(t, b)
				time.Sleep(3*time.Second - time.Nanosecond)
				synctest.Wait()
				if b.g.Live() != 1 {
					t.Fatal("ended before its time")
				}
				time.Sleep(time.Nanosecond)
				synctest.Wait()
				if n := b.g.Live(); n != 0 {
					t.Errorf("%d requests are live", n)
				}
				if test.stream {
					if a := c.answer(); a.whole || !a.closed || !strings.Contains(string(a.body), "--request-timeout") {
						t.Errorf("whole %v, closed %v: %s", a.whole, a.closed, a.body)
					}
				} else {
					wantParts(t, c.refusal(504).Message, "--request-timeout")
				}
				record := b.wantRecord(c, "failed", "expired")
				if record.total() != 3*time.Second {
					t.Errorf("took %v", record.total())
				}
				for _, e := range test.engines {
					if e, ok := e.(*tokenEngine); ok {
						for _, call := range e.handed() {
							if !call.aborted() {
								t.Error("the engine works on")
							}
						}
					}
				}
				if n := b.sum("weir_engine_faults_total"); n != 0 {
					t.Errorf("%v engine faults", n)
				}
			})
		})
	}
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
		for i := 0; b.g.Pending() == 0; i++ {
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

// Requests that an engine fails, or that wait for it in vain, are logged with its name:
// the first one, and once a minute how many there were.
func TestFailuresAreLogged(t *testing.T) {
	a := &tokenEngine{name: "a"}
	var log bytes.Buffer
	inBubble(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, []any{a}, func(t *testing.T, b *bench) {
		log.Reset()
		fail := func(nth int) {
			t.Helper()
			c := b.post(chatPath, askStream(``))
			a.call(t, nth).fail(infer.CodeEngine, false)
			c.refusal(502)
			b.wantRecord(c, "failed", "engine")
		}
		fail(1)
		fail(2)
		if s := log.String(); strings.Count(s, "requests fail at an engine") != 1 || !strings.Contains(s, "engine=a") || !strings.Contains(s, "scripted failure") {
			t.Errorf("after two: %s", s)
		}
		c := b.post(chatPath, askStream(``))
		a.call(t, 3)
		time.Sleep(10 * time.Minute)
		c.refusal(504)
		b.wantRecord(c, "failed", "deadline")
		if s := log.String(); strings.Count(s, "requests fail at an engine") != 2 || !strings.Contains(s, "times=2") || !strings.Contains(s, "10m0s") {
			t.Errorf("after the third: %s", s)
		}
	})
}
