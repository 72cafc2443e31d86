package gateway

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/dialect/allow"
	"weir/internal/engine"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/front"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
)

const relayBody = `{"model":"relayed","stream":true,"seed":9007199254740993,"messages":[{"role":"user","content":"hi"}]}`

// A chat's stream: a token, and the end.
const (
	relayToken = `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}` + "\n\n"
	relayEnd   = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
	// anyPath is an endpoint whose events weir does not look into.
	anyPath = "/v1/audio/speech"
)

// The request goes to the engine byte for byte, but for an alias, which is
// spliced in; end-to-end headers go with it, and those of the connection not.
func TestRelayRequest(t *testing.T) {
	r, named := &relayEngine{name: "r"}, &relayEngine{name: "named", model: "the/upstream"}
	inBubble(t, Options{}, []any{r, named}, func(t *testing.T, b *bench) {
		for i, want := range []string{relayBody, strings.Replace(relayBody, `"relayed"`, `"the/upstream"`, 1)} {
			c := b.post(chatPath+"?x=1", relayBody, "Authorization", "Bearer k", "Accept-Encoding", "gzip", "Te", "trailers")
			f := []*relayEngine{r, named}[i].forward(t, 1)
			if string(f.req.Body) != want || f.req.Path != chatPath+"?x=1" || f.req.Method != "POST" {
				t.Errorf("relayed %s %s %s", f.req.Method, f.req.Path, f.req.Body)
			}
			h := f.req.Header
			if h.Get("Authorization") != "Bearer k" || h.Get("X-Request-Id") == c.id || !strings.HasPrefix(h.Get("X-Request-Id"), "req-") {
				t.Errorf("headers %v", h)
			}
			for _, name := range []string{"Accept-Encoding", "Te", "Content-Length", "Connection"} {
				if v := h.Get(name); v != "" {
					t.Errorf("%s: %q was relayed", name, v)
				}
			}
			f.send(relayToken + relayEnd)
			f.end()
			b.wantRecord(c, "finished", "")
		}
	})
}

// Images, sounds and videos in messages are the engine's business: a relay gives
// them on byte for byte, however large, and fetches nothing.
func TestRelayCarriesParts(t *testing.T) {
	body := `{"model":"relayed","stream":true,"messages":[{"role":"user","content":[{"type":"text","text":"what is it?"},
		{"type":"image_url","image_url":{"url":"data:image/png;base64,` + strings.Repeat("iVBORw0KGgo+/", 100_000) + `","detail":"low"}},
		{"image_url":{"url":"http://127.0.0.1:1/a.png"},"type":"image_url"},{"type":"video_url","video_url":{"url":"https://x/y.mp4"}},
		{"type":"input_audio","input_audio":{"data":"UklGR\u0069w==","format":"wav"}},{"type":"unheard_of","a":1.0}]}]}`
	r := &relayEngine{name: "r"}
	everything, err := allow.ParseMedia([]string{"any"})
	if err != nil {
		t.Fatal(err)
	}
	inBubble(t, Options{Prepare: prepare.Options{Allow: allow.Rules{Media: everything}}}, []any{r}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, body)
		f := r.forward(t, 1)
		if string(f.req.Body) != body {
			t.Errorf("relayed %.300s", f.req.Body)
		}
		f.send(relayToken + relayEnd)
		f.end()
		b.wantRecord(c, "finished", "")
	})
}

// relayStream is a stream with everything that a relay must not touch.
const relayStream = ": a comment\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"\u00e9 \\u00e9\"}}], \"seed\" : 9007199254740993, \"x\":1.0,\"y\":null}\r\n\r\n" +
	"event: ping\nid: 7\nretry: 10\ndata: one\ndata: two\n\n" +
	"data:{\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n" +
	"data: [DONE]\n\n"

// relayChat is such a stream by the chat's own rules.
const relayChat = ": a comment\r\n\r\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\u00e9 \\u00e9\"}, \"seed\" : 9007199254740993}], \"x\":1.0,\"y\":null}\r\n\r\n" +
	"data:{\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n" +
	"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\n\n" +
	"data: [DONE]\n\n"

// However the engine's bytes are cut, the client gets the same ones, and never
// a part of an event.
func TestRelayAtEveryCut(t *testing.T) {
	words()
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		way := rapid.SampledFrom(ways).Draw(rt, "way")
		path, stream := anyPath, relayStream
		if rapid.Bool().Draw(rt, "chat") {
			path, stream = chatPath, relayChat
		}
		cuts := rapid.SliceOfN(rapid.IntRange(0, len(stream)), 0, 20).Draw(rt, "cuts")
		slices.Sort(cuts)
		var err string
		synctest.Test(t, func(t *testing.T) {
			r := &relayEngine{name: "r"}
			b := newBench(t, dir, Options{}, []any{r}, way)
			defer b.end()
			c := b.post(path, relayBody)
			f := r.forward(t, 1)
			at := 0
			for _, cut := range append(cuts, len(stream)) {
				if cut > at {
					f.send(stream[at:cut])
				}
				at = cut
				got := string(c.answer().body)
				if !strings.HasPrefix(stream, got) || got != "" && !strings.HasSuffix(got, "\n\n") && !strings.HasSuffix(got, "\n\r\n") && !strings.HasSuffix(got, "\n\r") {
					err = "the client has " + got
				}
			}
			f.end()
			if a := c.answer(); string(a.body) != stream || !a.whole || a.status != 200 {
				err = "the client has " + string(a.body)
			}
			if rec := b.wantRecord(c, "finished", ""); rec.Prompt != 3 || rec.Completion != 4 {
				t.Errorf("record %+v", rec)
			}
		})
		if err != "" {
			rt.Fatal(err)
		}
	})
}

// The head waits for the first whole event, so that until then another engine
// can still be asked.
func TestRelayRetriesUntilTheFirstEvent(t *testing.T) {
	a, z := &relayEngine{name: "a"}, &relayEngine{name: "z"}
	inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, relayBody)
		f := a.forward(t, 1)
		time.Sleep(3 * time.Second)
		f.send("data: {\"half")
		if got := c.answer(); got.status != 0 {
			t.Fatalf("status %d before the first event", got.status)
		}
		f.fail(true)
		g := z.forward(t, 1)
		if !f.abandoned() {
			t.Error("the first engine's answer was left open")
		}
		time.Sleep(2 * time.Second)
		g.send(relayToken, relayEnd)
		g.end()
		if got := c.answer(); string(got.body) != relayToken+relayEnd || !got.whole {
			t.Errorf("the client has %q", got.body)
		}
		r := b.wantRecord(c, "finished", "")
		wantLegs(t, r, "a engine", "z finished")
		if first := time.Duration(r.First - r.Arrival); first != 5*time.Second {
			t.Errorf("first received after %v: that of the attempt that served is 5s", first)
		}
	})
}

// After the first event a failure is an error event that stands alone, whatever
// part of an event the engine left behind.
func TestRelayBreaks(t *testing.T) {
	const event = "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
	for _, test := range []struct {
		name string
		play func(f *forward)
		code string
	}{
		{"between events", func(f *forward) { f.fail(true) }, "engine_error"},
		{"inside an event", func(f *forward) { f.send("data: {\"half"); f.fail(true) }, "engine_error"},
		{"ends inside an event", func(f *forward) { f.send("data: {\"half"); f.end() }, "engine_error"},
		{"ends without its end marker", func(f *forward) { f.end() }, "engine_error"},
		{"falls silent", func(*forward) { time.Sleep(5 * time.Minute) }, "deadline_exceeded"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, z := &relayEngine{name: "a"}, &relayEngine{name: "z"}
			inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, relayBody)
				f := a.forward(t, 1)
				f.send(event)
				test.play(f)
				c.wantBroken("a", test.code)
				if !f.abandoned() {
					t.Error("the engine's answer was left open")
				}
				z.forward(t, 0)
				if r := b.record(c); r.Outcome != "failed" || r.Status != 200 {
					t.Errorf("record %+v", r)
				}
			})
		})
	}
}

// An engine that fails in a stream says so by an event, and may end that as if it were whole
// (vLLM: an error with a status, and [DONE]). It counts as the status would in the head:
// before anything has gone to the client another engine is asked, and otherwise the client
// has the engine's own words.
func TestRelayedErrorEvents(t *testing.T) {
	event := func(code string) string {
		return `data: {"error":{"message":"EngineCore encountered an issue","type":"x","param":null,"code":` + code + "}}\n\n"
	}
	for _, test := range []struct {
		name, first, code string
		outcome, class    string
		legs              []string // whose words are those of judge.Of
	}{
		{"before anything", "", "500", "finished", "", []string{"a engine", "z finished"}},
		{"before anything, full", "", "503", "finished", "", []string{"a overloaded", "z finished"}},
		{"before anything, no status", "", "null", "finished", "", []string{"a engine", "z finished"}},
		{"before anything, the request's fault", "", "400", "rejected", "invalid", []string{"a invalid"}},
		{"in mid-answer", relayToken, "500", "failed", "engine", []string{"a engine"}},
		{"in mid-answer, the request's fault", relayToken, "400", "rejected", "invalid", []string{"a invalid"}},
		{"in mid-answer, full", relayToken, "429", "rejected", "overloaded", []string{"a overloaded"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, z := &relayEngine{name: "a"}, &relayEngine{name: "z"}
			inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, relayBody)
				f := a.forward(t, 1)
				if test.first != "" {
					f.send(test.first)
				}
				own := event(test.code) + "data: [DONE]\n\n"
				f.send(own)
				f.end()
				want := test.first + own
				if len(test.legs) > 1 {
					want = relayToken + relayEnd
					g := z.forward(t, 1)
					g.send(relayToken, relayEnd)
					g.end()
				} else {
					z.forward(t, 0)
				}
				if got := c.answer(); string(got.body) != want || !got.whole {
					t.Errorf("the client has %q, whole %v", got.body, got.whole)
				}
				r := b.wantRecord(c, test.outcome, test.class)
				wantLegs(t, r, test.legs...)
			})
		})
	}
}

// Some servers know no [DONE]: a stream whose framing is whole and whose choices have
// all said how they ended is whole without it, and passes as it is.
func TestRelayWithoutEndMarker(t *testing.T) {
	const (
		text = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n"
		end  = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":1,\"total_tokens\":2}}\n\n"
	)
	for _, test := range []struct {
		name, body string
		events     []string
		framed     bool
		whole      bool
	}{
		{"all ended", relayBody, []string{text, end}, true, true},
		{"none ended", relayBody, []string{text, text}, true, false},
		{"one of two ended", strings.Replace(relayBody, "{", `{"n":2,`, 1), []string{text, end}, true, false},
		{"by the end of the connection", relayBody, []string{text, end}, false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &relayEngine{name: "r", reply: func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
				resp := f.events()
				resp.Framed = test.framed
				return resp, nil
			}}
			inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, test.body)
				f := r.forward(t, 1)
				f.send(test.events...)
				f.end()
				if !test.whole {
					if s := c.story(); s.err == nil || s.err.code() != "engine_error" || s.done || s.whole || !s.closed {
						t.Errorf("%+v", s)
					}
					return
				}
				if got := c.answer(); !got.whole || string(got.body) != strings.Join(test.events, "") {
					t.Errorf("whole %v: %q", got.whole, got.body)
				}
				b.wantRecord(c, "finished", "")
			})
		})
	}
}

// Inside an event too large to hold nothing of weir's own may stand: the
// connection is broken without a word.
func TestRelayBreaksInsideAHugeEvent(t *testing.T) {
	r := &relayEngine{name: "r"}
	inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
		c := b.post(anyPath, relayBody)
		f := r.forward(t, 1)
		huge := "data: " + strings.Repeat("x", 200<<10)
		f.send("data: a\n\n", huge)
		if got := c.answer(); !strings.HasPrefix(string(got.body), "data: a\n\ndata: xxx") {
			t.Fatalf("the client has %.40q", got.body)
		}
		f.fail(true)
		time.Sleep(front.HearingTime)
		got := c.answer()
		if got.whole || !got.closed || !strings.HasPrefix("data: a\n\n"+huge, string(got.body)) {
			t.Errorf("whole %v, closed %v, the client's last bytes are %q", got.whole, got.closed, got.body[max(0, len(got.body)-80):])
		}
		b.wantRecord(c, "failed", "engine")
	})
}

// An answer of an engine that is not a stream passes unchanged, refusals included.
func TestRelayStatuses(t *testing.T) {
	for _, test := range []struct {
		status        int
		body          string
		outcome, code string
	}{
		{200, `{"id":"x","usage":{"prompt_tokens":1,"completion_tokens":2}}`, "finished", ""},
		{201, ``, "finished", ""},
		{400, `{"error":{"message":"no"}}`, "rejected", "invalid"},
		{429, `{"error":{"message":"busy"}}`, "rejected", "overloaded"},
		{500, `oops`, "failed", "engine"},
		{503, `busy`, "rejected", "overloaded"},
	} {
		r := &relayEngine{name: "r", reply: func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
			return f.response(test.status, "Content-Type", "application/json", "X-Engine", "1", "X-Request-Id", "the engine's"), nil
		}}
		inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, relayBody)
			f := r.forward(t, 1)
			if test.body != "" {
				f.send(test.body)
			}
			f.end()
			a := c.answer()
			if a.status != test.status || string(a.body) != test.body || !a.whole {
				t.Errorf("status %d, body %q, whole %v; want %d, %q", a.status, a.body, a.whole, test.status, test.body)
			}
			if a.header.Get("X-Engine") != "1" || a.header.Get("X-Request-Id") != c.id || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("headers %v", a.header)
			}
			if rec := b.wantRecord(c, test.outcome, test.code); rec.Status != test.status {
				t.Errorf("record has status %d", rec.Status)
			}
			// The connection serves on.
			c.send("GET", "/v1/models", "")
			if a := c.answer(); a.status != 200 {
				t.Errorf("the connection's next request: status %d, closed %v", a.status, a.closed)
			}
		})
	}
}

// An overloaded engine's refusal sends the request elsewhere; the last one's is
// passed on as it is.
func TestRelayOverloaded(t *testing.T) {
	busy := func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
		close(f.chunks)
		return f.response(http.StatusServiceUnavailable, "Retry-After", "7"), nil
	}
	a, z := &relayEngine{name: "a", reply: busy}, &relayEngine{name: "z"}
	t.Run("elsewhere", func(t *testing.T) {
		inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, relayBody)
			f := z.forward(t, 1)
			f.send(relayToken + relayEnd)
			f.end()
			if got := c.answer(); got.status != 200 || !got.whole {
				t.Errorf("status %d", got.status)
			}
			wantLegs(t, b.wantRecord(c, "finished", ""), "a overloaded", "z finished")
		})
	})
	t.Run("everywhere", func(t *testing.T) {
		y := &relayEngine{name: "y", reply: busy}
		inBubble(t, Options{}, []any{a, y}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, relayBody)
			if got := c.answer(); got.status != 503 || got.header.Get("Retry-After") != "7" {
				t.Errorf("status %d, headers %v", got.status, got.header)
			}
			wantLegs(t, b.wantRecord(c, "rejected", "overloaded"), "a overloaded", "y overloaded")
		})
	})
}

// An answer that is shorter or longer than it says is the engine's fault and
// never looks whole.
func TestRelayWrongLength(t *testing.T) {
	r := &relayEngine{name: "r", reply: func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
		resp := f.response(200, "Content-Type", "application/json")
		resp.Length = 8
		return resp, nil
	}}
	for _, test := range []struct {
		name  string
		parts []string
		whole bool // as an error of weir's own
	}{
		{"short", []string{`{"id":`}, false},
		{"long", []string{`{"id":1}`, `}`}, false},
		{"too long from its first bytes", []string{`{"id":1}}`}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, relayBody)
				f := r.forward(t, 1)
				f.send(test.parts...)
				f.end()
				if test.whole {
					c.refusal(502)
				} else if a := c.answer(); a.status != 200 || !a.closed || !strings.HasPrefix(string(a.body), `{"id":`) {
					t.Errorf("status %d, closed %v, body %q", a.status, a.closed, a.body)
				}
				b.wantRecord(c, "failed", "engine")
			})
		})
	}
}

// The bound for an engine's first output holds until the first bytes, whenever
// the head came.
func TestRelayFirstTimeout(t *testing.T) {
	r := &relayEngine{name: "r"}
	inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, relayBody)
		f := r.forward(t, 1) // the head is there
		time.Sleep(10*time.Minute - time.Nanosecond)
		if got := c.answer(); got.status != 0 || f.abandoned() {
			t.Fatalf("status %d, abandoned %v before the time is out", got.status, f.abandoned())
		}
		time.Sleep(time.Nanosecond)
		if e := c.refusal(504); e.code() != "deadline_exceeded" {
			t.Errorf("error %+v", e)
		}
		if !f.abandoned() {
			t.Error("the engine's answer was left open")
		}
		b.wantRecord(c, "failed", "deadline")
	})
}

// The tokens of a relayed stream show that its engine gets on. Comments do not: a proxy
// may send them while the engine hangs.
func TestRelayedTokensAreCounted(t *testing.T) {
	r := &relayEngine{name: "r"}
	inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, relayBody)
		f := r.forward(t, 1)
		generated := func(chunks ...string) int64 {
			for _, chunk := range chunks {
				f.send(chunk)
				synctest.Wait()
			}
			return b.ranks[0].Generated()
		}
		// An event is counted with the read after the one that brought its end.
		half := len(relayToken) / 2
		if n := generated(relayToken, relayToken+relayToken[:half], relayToken[half:], ": wait\n\n"); n != 3 {
			t.Errorf("of three tokens %d were counted", n)
		}
		if n := generated(": wait\n\n", ": wait\n\n", ": wait\n\n"); n != 3 {
			t.Errorf("with comments after them there are %d", n)
		}
		f.send(relayEnd)
		f.end()
		c.answer()
		b.wantRecord(c, "finished", "")
	})
}

// The engine is not held to its bound while weir waits for the client.
func TestRelayBehindASlowClient(t *testing.T) {
	r := &relayEngine{name: "r"}
	inBubble(t, Options{Attempt: attempt.Options{IdleTimeout: time.Second}}, []any{r}, func(t *testing.T, b *bench) {
		c := b.dial(512)
		c.send("POST", anyPath, relayBody)
		f := r.forward(t, 1)
		event := "data: " + strings.Repeat("x", 2000) + "\n\n"
		f.send(event, event, "data: [DONE]\n\n")
		time.Sleep(20 * time.Second)
		f.end()
		for range 20 {
			c.answer()
		}
		if a := c.answer(); string(a.body) != event+event+"data: [DONE]\n\n" || !a.whole {
			t.Errorf("whole %v, closed %v, body ends with %q", a.whole, a.closed, a.body[max(0, len(a.body)-100):])
		}
		b.wantRecord(c, "finished", "")
	})
}

// The engine refusing outright is as with a token engine.
func TestRelayRefused(t *testing.T) {
	a := &relayEngine{name: "a", reply: func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
		return nil, &infer.Error{Code: infer.CodeUnavailable, Engine: "a", Retryable: true, Message: "the engine cannot be reached", Cause: io.ErrUnexpectedEOF}
	}}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, relayBody)
		e := c.refusal(503)
		if strings.Contains(e.Message, "EOF") {
			t.Errorf("the cause is shown to the client: %s", e.Message)
		}
		wantLegs(t, b.wantRecord(c, "failed", "unavailable"), "a unavailable")
	})
}

// A client that has the whole stream and leaves before its engine has ended the answer was served:
// the request is finished, however late the engine ends.
func TestClientLeavesAfterDone(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 300 * time.Millisecond} {
		e := &relayEngine{name: "e"}
		inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, relayBody)
			f := e.forward(t, 1)
			f.send(relayToken)
			f.send(relayEnd)
			if got := c.answer(); string(got.body) != relayToken+relayEnd {
				t.Fatalf("the client has %q", got.body)
			}
			c.hangUp()
			time.Sleep(after)
			f.end()
			time.Sleep(2 * time.Second)
			if !f.abandoned() {
				t.Error("the engine's answer was left open")
			}
			b.wantRecord(c, "finished", "")
		})
	}
}

// A stream is whole with its end marker. An engine that then leaves the answer
// open is waited for a moment, and left; bytes that come in that moment count as
// ever.
func TestRelayLeftOpenAfterDone(t *testing.T) {
	comment := ": ping\n\n"
	for _, test := range []struct {
		name  string
		play  func(f *forward)
		whole time.Duration // after the end marker; 0: never
		more  string
	}{
		{"says nothing more", func(*forward) {}, time.Second, ""},
		{"ends it at once", func(f *forward) { f.end() }, 1, ""},
		{"ends it later", func(f *forward) { time.Sleep(300 * time.Millisecond); f.end() }, 300 * time.Millisecond, ""},
		{"goes on with comments", func(f *forward) {
			for range 4 {
				time.Sleep(400 * time.Millisecond)
				if f.abandoned() {
					return
				}
				f.send(comment)
			}
		}, 1200 * time.Millisecond, comment + comment + comment},
		{"goes on with an event", func(f *forward) { time.Sleep(300 * time.Millisecond); f.send(relayToken) }, 0, ""},
		{"breaks the connection", func(f *forward) { time.Sleep(300 * time.Millisecond); f.fail(true) }, 300 * time.Millisecond, ""},
		{"begins an event", func(f *forward) { f.send("data: ") }, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, z := &relayEngine{name: "a"}, &relayEngine{name: "z"}
			inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, relayBody)
				f := a.forward(t, 1)
				f.send(relayToken)
				f.send(relayEnd)
				done := time.Now()
				if got := c.answer(); string(got.body) != relayToken+relayEnd {
					t.Fatalf("the client has %q", got.body)
				}
				test.play(f)
				time.Sleep(2 * time.Second)
				synctest.Wait()
				got := c.answer()
				if test.whole == 0 {
					if got.whole || !got.closed || !strings.Contains(string(got.body), `data: {"error":`) {
						t.Errorf("whole %v, closed %v, %q", got.whole, got.closed, got.body)
					}
					b.record(c)
					z.forward(t, 0)
					return
				}
				if string(got.body) != relayToken+relayEnd+test.more || !got.whole {
					t.Fatalf("whole %v, %q", got.whole, got.body)
				}
				if !f.abandoned() {
					t.Error("the engine's answer was left open")
				}
				within(t, "the engine's answer", f.closedAt.Sub(done), 0, test.whole)
				r := b.wantRecord(c, "finished", "")
				wantLegs(t, r, "a finished")
				// The client's connection serves on.
				c.send("GET", "/v1/models", "")
				if a := c.answer(); a.status != 200 {
					t.Errorf("the connection's next request: status %d, closed %v", a.status, a.closed)
				}
			})
		})
	}
}

// A stream that the engine has compressed is refused by name: nobody has asked for that, and its
// events cannot be read. A whole answer passes as it is.
func TestCompressedStream(t *testing.T) {
	for kind, refused := range map[string]bool{"text/event-stream": true, "application/json": false} {
		e := &relayEngine{name: "e", reply: func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
			return f.response(http.StatusOK, "Content-Type", kind, "Content-Encoding", "gzip"), nil
		}}
		inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, relayBody)
			f := e.forward(t, 1)
			f.send("\x1f\x8b\x08\n\n{}\n\n")
			f.end()
			a := c.answer()
			if !refused {
				b.wantRecord(c, "finished", "")
				return
			}
			if r := b.wantRecord(c, "failed", "engine"); a.status != http.StatusBadGateway || !strings.Contains(string(a.body), "compressed (gzip)") {
				t.Errorf("%d %s, %+v", a.status, a.body, r)
			}
			if b.sum("weir_engine_faults_total") != 1 {
				t.Error("it is no fault of the engine's")
			}
		})
	}
}
