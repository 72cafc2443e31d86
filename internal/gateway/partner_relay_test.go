package gateway

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/infer"
	"weir/internal/retry"
)

// relayCouple are relay engines of two halves that meet in a way. The prefill engine answers
// when it is told to.
func relayCouple(way engine.Way) (p, d *relayEngine) {
	p = &relayEngine{name: "p", role: infer.RolePrefill, meets: engine.Meets{Way: way, Host: "10.0.0.1", Port: 8998, EngineID: "P"}}
	p.reply = held
	return p, &relayEngine{name: "d", role: infer.RoleDecode, meets: engine.Meets{Way: way}}
}

// held is a reply whose status is its first chunk's.
func held(ctx context.Context, f *forward) (*engine.RelayResponse, error) {
	select {
	case head := <-f.chunks:
		status, kind, _ := bytes.Cut(head, []byte(" "))
		if string(status) == "broken" {
			return nil, f.engine.fault(true)
		}
		code := 100*int(status[0]-'0') + 10*int(status[1]-'0') + int(status[2]-'0')
		return f.response(code, "Content-Type", string(kind)), nil
	case <-ctx.Done():
		return nil, &infer.Error{Code: infer.CodeEngine, Engine: f.engine.name, Retryable: true, Message: "the connection was closed", Cause: context.Cause(ctx)}
	}
}

// replies answers a held request.
func (f *forward) replies(status, body string) {
	f.chunks <- []byte(status + " application/json")
	f.chunks <- []byte(body)
	close(f.chunks)
	synctest.Wait()
}

// prefillAnswer is what a prefill engine answers.
const prefillAnswer = `{"choices":[{"index":0,"message":{"content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}},"kv_transfer_params":` + handedParams + `}`

// inRelayPairs runs a test with a couple of each way.
func inRelayPairs(t *testing.T, opts Options, more []any, test func(t *testing.T, b *bench, p, d *relayEngine)) {
	t.Helper()
	for _, way := range tokenWays {
		t.Run(way.String(), func(t *testing.T) {
			p, d := relayCouple(way)
			inBubble(t, opts, append([]any{p, d}, more...), func(t *testing.T, b *bench) { test(t, b, p, d) })
		})
	}
}

// The two bodies of a pair are the caller's but for what the halves meet by, and for the
// prefill half's length.
func TestRelayPair(t *testing.T) {
	chat := func(fields string) string {
		return `{"model":"relayed","seed":9007199254740993,"messages":[{"role":"user","content":"hi"}]` + fields + `}`
	}
	inRelayPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *relayEngine) {
		c := b.post(chatPath+"?x=1", chat(`,"stream":true,"max_tokens":7`), "Authorization", "Bearer k")
		prefill := p.forward(t, 1)
		if p.meets.Way == engine.ByPull {
			d.forward(t, 0)
			prefill.replies("200", prefillAnswer)
		}
		decode := d.forward(t, 1)
		a, z := prefill.req, decode.req
		if id := a.Header.Get("X-Request-Id"); id != z.Header.Get("X-Request-Id") || id == c.id || a.Path != chatPath+"?x=1" || z.Path != a.Path || z.Header.Get("Authorization") != "Bearer k" {
			t.Errorf("%s %v\n%s %v", a.Path, a.Header, z.Path, z.Header)
		}
		id := a.Header.Get("X-Request-Id")
		var first, second string
		switch p.meets.Way {
		case engine.ByRoom:
			_, room, _ := strings.Cut(string(a.Body), `"bootstrap_room":`)
			met := `,"bootstrap_host":"10.0.0.1","bootstrap_port":8998,"bootstrap_room":` + strings.TrimRight(room, "}")
			first, second = chat(`,"max_tokens":7`+met), chat(`,"stream":true,"max_tokens":7`+met)
		case engine.ByPull:
			first = chat(`,"max_tokens":1,"kv_transfer_params":` + string(p.meets.PrefillParams(id)))
			second = chat(`,"stream":true,"max_tokens":7,"kv_transfer_params":` + handedParams)
		case engine.ByPush:
			first = chat(`,"max_tokens":1,"kv_transfer_params":` + string(p.meets.PrefillParams(id)))
			second = chat(`,"stream":true,"max_tokens":7,"kv_transfer_params":` + string(p.meets.DecodeParams(-1, id)))
		}
		if string(a.Body) != first || string(z.Body) != second {
			t.Errorf("the halves are\n%s\n%s\nwant\n%s\n%s", a.Body, z.Body, first, second)
		}
		decode.send(relayToken)
		if s := c.answer(); string(s.body) != relayToken {
			t.Errorf("the client has %q of the first token", s.body)
		}
		if p.meets.Way != engine.ByPull {
			prefill.replies("200", prefillAnswer)
		}
		decode.send(relayEnd)
		decode.end()
		if s := c.answer(); string(s.body) != relayToken+relayEnd || !s.whole {
			t.Errorf("the client has %q", s.body)
		}
		wantLegs(t, b.wantRecord(c, "finished", ""), "p finished", "d finished")
	})
}

// A prefill engine's refusal is the client's answer as it came.
func TestRelayPrefillRefuses(t *testing.T) {
	const says = `{"error":{"message":"too long for us","code":"x"}}`
	for _, stream := range []string{"true", "false"} {
		for _, status := range []int{400, 422, 429, 500} {
			t.Run(stream+" "+http.StatusText(status), func(t *testing.T) {
				inRelayPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *relayEngine) {
					if stream == "false" {
						d.reply = headless
					}
					b.judged()
					c := b.post(chatPath, `{"model":"relayed","messages":[],"stream":`+stream+`}`)
					p.forward(t, 1).replies(map[int]string{400: "400", 422: "422", 429: "429", 500: "500"}[status], says)
					if status == 500 {
						time.Sleep(lastWord) // the decode engine may know better
					}
					if a := c.answer(); a.status != status || string(a.body) != says || !a.whole {
						t.Errorf("status %d, %q", a.status, a.body)
					}
					r := b.record(c)
					if r.Status != status {
						t.Errorf("the record has status %d", r.Status)
					}
					if p.meets.Way == engine.ByPull {
						d.forward(t, 0)
					} else if f := d.forward(t, 1); f.ctx.Err() == nil {
						t.Error("the decode engine works on")
					}
					for _, e := range b.snapshot.Load().Engines {
						if v := e.Ranks[0].Health.View(); v.Open != 0 {
							t.Errorf("engine %s is %+v", e.Name, v)
						}
					}
				})
			})
		}
	}
}

// What becomes of a pair over relays where either engine fails, breaks off or is silent.
func TestRelayPairFails(t *testing.T) {
	for _, test := range []struct {
		name   string
		opts   Options
		play   func(prefill *forward, d *relayEngine)
		wait   time.Duration
		status int
		legs   []string
	}{
		{"prefill cannot be reached", Options{}, func(prefill *forward, _ *relayEngine) { prefill.chunks <- []byte("broken") }, 0, 502, []string{"p engine", "d cancelled"}},
		{"prefill breaks off", Options{}, func(prefill *forward, _ *relayEngine) {
			prefill.chunks <- []byte("200 application/json")
			prefill.fail(true)
		}, 0, 502, []string{"p engine", "d cancelled"}},
		{"prefill never answers", Options{PrefillTimeout: 5 * time.Second}, func(*forward, *relayEngine) {}, 5 * time.Second, 504, []string{"p deadline", "d cancelled"}},
		{"prefill never ends its answer", Options{PrefillTimeout: 5 * time.Second}, func(prefill *forward, _ *relayEngine) {
			prefill.chunks <- []byte("200 application/json")
			prefill.chunks <- []byte("{")
		}, 5 * time.Second, 504, []string{"p deadline", "d cancelled"}},
		{"prefill answers without end", Options{}, func(prefill *forward, _ *relayEngine) {
			prefill.chunks <- []byte("200 application/json")
			for range 17 {
				prefill.chunks <- bytes.Repeat([]byte(" "), 1<<20)
			}
		}, 0, 502, []string{"p integrity", "d cancelled"}},
		{"nothing is handed over", Options{TransferTimeout: 7 * time.Second}, func(prefill *forward, _ *relayEngine) { prefill.replies("200", prefillAnswer) }, 7 * time.Second, 504, []string{"p finished", "d deadline"}},
		{"decode breaks off", Options{}, func(prefill *forward, d *relayEngine) {
			prefill.replies("200", prefillAnswer)
			d.forwards[0].fail(true)
		}, 0, 502, []string{"p finished", "d engine"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inRelayPairs(t, test.opts, nil, func(t *testing.T, b *bench, p, d *relayEngine) {
				c := b.post(chatPath, relayBody)
				test.play(p.forward(t, 1), d)
				synctest.Wait()
				if test.wait > 0 {
					time.Sleep(test.wait - time.Nanosecond)
					if a := c.answer(); a.status != 0 {
						t.Fatalf("status %d before the time is out", a.status)
					}
					time.Sleep(time.Nanosecond)
				}
				c.refusal(test.status)
				wantLegs(t, b.record(c), test.legs...)
				for _, f := range slices.Concat(p.forwards, d.forwards) {
					if f.ctx.Err() == nil && !f.abandoned() {
						t.Errorf("engine %s works on", f.engine.name)
					}
				}
			})
		})
	}
}

// A decode engine's 500 may be what it has seen of the prefill engine's failure, which is
// then what the client hears.
func TestRelayDecodeFails(t *testing.T) {
	for _, test := range []struct {
		name   string
		play   func(prefill *forward)
		wait   time.Duration
		status int
		body   string
	}{
		{"and the prefill engine is silent", func(*forward) {}, lastWord, 500, "decode"},
		{"and the prefill engine has refused", func(f *forward) { f.replies("413", "prefill") }, 0, 413, "prefill"},
		{"and so does the prefill engine", func(f *forward) { f.replies("500", "prefill") }, 0, 500, "decode"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, way := range []engine.Way{engine.ByRoom, engine.ByPush} {
				p, d := relayCouple(way)
				d.reply = held
				inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
					c := b.post(chatPath, relayBody)
					prefill := p.forward(t, 1)
					d.forward(t, 1).replies("500", "decode")
					test.play(prefill)
					time.Sleep(test.wait)
					if a := c.answer(); a.status != test.status || string(a.body) != test.body {
						t.Errorf("status %d, %q", a.status, a.body)
					}
				})
			}
		})
	}
}

// A client that hangs up, wherever its pair stands, frees both engines at once.
func TestRelayPairHangUp(t *testing.T) {
	for _, test := range []struct {
		name string
		play func(p, d *relayEngine)
	}{
		{"before the prefill engine's answer", func(p, d *relayEngine) {}},
		{"in the prefill engine's answer", func(p, d *relayEngine) { p.forwards[0].chunks <- []byte("200 application/json") }},
		{"before the decode engine's first output", func(p, d *relayEngine) { p.forwards[0].replies("200", prefillAnswer) }},
		{"in the answer", func(p, d *relayEngine) {
			p.forwards[0].replies("200", prefillAnswer)
			d.forwards[0].send(relayToken)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inRelayPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *relayEngine) {
				c := b.post(chatPath, relayBody)
				synctest.Wait()
				test.play(p, d)
				synctest.Wait()
				began := time.Now()
				c.hangUp()
				if n := b.g.Live(); n != 0 || time.Since(began) != 0 {
					t.Errorf("%d live requests after %v", n, time.Since(began))
				}
				for _, f := range slices.Concat(p.forwards, d.forwards) {
					if f.ctx.Err() == nil && !f.abandoned() {
						t.Errorf("engine %s works on", f.engine.name)
					}
				}
				b.wantRecord(c, "cancelled", "cancelled")
			})
		})
	}
}

// A pair over relays is tried once more with another prefill engine, under another name.
func TestRelayPairRetries(t *testing.T) {
	for _, way := range tokenWays {
		t.Run(way.String(), func(t *testing.T) {
			p, d := relayCouple(way)
			p2, d2 := relayCouple(way)
			p2.name, d2.name = "p2", "d2"
			inBubble(t, Options{}, []any{p, d, p2, d2}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, relayBody)
				first := p.forward(t, 1)
				first.chunks <- []byte("broken")
				time.Sleep(retry.AbortGrace)
				second := p2.forward(t, 1)
				if second.req.Header.Get("X-Request-Id") == first.req.Header.Get("X-Request-Id") || way != engine.ByPull && bytes.Equal(first.req.Body, second.req.Body) {
					t.Errorf("it is known as before: %v %s", second.req.Header, second.req.Body)
				}
				second.replies("200", prefillAnswer)
				var decode *forward
				for _, f := range slices.Concat(d.forwards, d2.forwards) {
					if f.req.Header.Get("X-Request-Id") == second.req.Header.Get("X-Request-Id") {
						decode = f
					}
				}
				if decode == nil {
					t.Fatal("no decode half")
				}
				decode.send(relayToken + relayEnd)
				decode.end()
				if s := c.answer(); string(s.body) != relayToken+relayEnd {
					t.Errorf("the client has %q", s.body)
				}
				b.wantRecord(c, "finished", "")
			})
		})
	}
}

// What has no two halves goes whole to a decode engine that serves such requests, and is
// refused where none does.
func TestIndivisible(t *testing.T) {
	for _, test := range []struct {
		way        engine.Way
		path, body string
		whole      bool
	}{
		{engine.ByPull, chatPath, `{"model":"relayed","messages":[],"n":2}`, true},
		{engine.ByPush, completionsPath, `{"model":"relayed","prompt":["a","b"]}`, true},
		{engine.ByPull, "/v1/embeddings", `{"model":"relayed","input":"a"}`, true},
		{engine.ByRoom, "/v1/embeddings", `{"model":"relayed","input":"a"}`, false},
		{engine.ByRoom, chatPath, `{"model":"relayed","messages":[],"n":2}`, false},
		{engine.ByRoom, completionsPath, `{"model":"relayed","prompt":"a","echo":true,"logprobs":0}`, false},
		{engine.ByPull, completionsPath, `{"model":"relayed","prompt":"a","prompt_logprobs":1}`, true},
	} {
		t.Run(test.way.String()+" "+test.path, func(t *testing.T) {
			p, d := relayCouple(test.way)
			d.meets.Whole = test.whole
			inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
				d.reply = func(_ context.Context, f *forward) (*engine.RelayResponse, error) {
					f.chunks <- []byte(`{"choices":[]}`)
					close(f.chunks)
					return f.response(200, "Content-Type", "application/json"), nil
				}
				c := b.post(test.path, test.body)
				p.forward(t, 0)
				if !test.whole {
					wantParts(t, c.refusal(400).Message, "two halves")
					return
				}
				if got := string(d.forward(t, 1).req.Body); got != test.body {
					t.Errorf("relayed %s", got)
				}
				if a := c.answer(); a.status != 200 {
					t.Errorf("status %d", a.status)
				}
			})
		})
	}
}
