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
	"weir/internal/fleet/retry"
	"weir/internal/gateway/attempt"
	"weir/internal/infer"
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
						time.Sleep(attempt.LastWord) // the decode engine may know better
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

// A pair over relays if either engine fails, breaks off or is silent.
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
		{"prefill never answers", Options{Attempt: attempt.Options{PrefillTimeout: 5 * time.Second}}, func(*forward, *relayEngine) {}, 5 * time.Second, 504, []string{"p deadline", "d cancelled"}},
		{"prefill never ends its answer", Options{Attempt: attempt.Options{PrefillTimeout: 5 * time.Second}}, func(prefill *forward, _ *relayEngine) {
			prefill.chunks <- []byte("200 application/json")
			prefill.chunks <- []byte("{")
		}, 5 * time.Second, 504, []string{"p deadline", "d cancelled"}},
		{"prefill answers without end", Options{}, func(prefill *forward, _ *relayEngine) {
			prefill.chunks <- []byte("200 application/json")
			for range 17 {
				prefill.chunks <- bytes.Repeat([]byte(" "), 1<<20)
			}
		}, 0, 502, []string{"p integrity", "d cancelled"}},
		{"nothing is handed over", Options{Attempt: attempt.Options{TransferTimeout: 7 * time.Second}}, func(prefill *forward, _ *relayEngine) { prefill.replies("200", prefillAnswer) }, 7 * time.Second, 504, []string{"p finished", "d deadline"}},
		{"decode breaks off", Options{}, func(prefill *forward, d *relayEngine) {
			prefill.replies("200", prefillAnswer)
			d.handed()[0].fail(true)
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
				ended := time.Now()
				c.refusal(test.status)
				wantLegs(t, b.record(c), test.legs...)
				if p.meets.Way == engine.ByRoom && test.legs[0] == "p deadline" {
					wantLingering(t, d, ended) // p may still be at it
				}
				for _, f := range slices.Concat(p.handed(), d.handed()) {
					if f.ctx.Err() == nil && !f.abandoned() {
						t.Errorf("engine %s works on", f.engine.name)
					}
				}
			})
		})
	}
}

// If an answer is not streamed, nobody sees the first output, so the transfer has no bound of its
// own: the whole answer has --first-timeout, from when the decode half is handed over. It ends the
// pair as any bound does, and counts against the decode engine.
func TestRelayPairNotStreamed(t *testing.T) {
	opts := Options{Attempt: attempt.Options{FirstTimeout: 2 * time.Minute, PrefillTimeout: 20 * time.Second, TransferTimeout: 5 * time.Second}}
	inRelayPairs(t, opts, nil, func(t *testing.T, b *bench, p, d *relayEngine) {
		d.reply = func(ctx context.Context, f *forward) (*engine.RelayResponse, error) {
			select {
			case <-time.After(2 * time.Minute): // as the adapter bounds it
				return nil, &infer.Error{Code: infer.CodeDeadline, Engine: "d", Retryable: true, Message: "late"}
			case <-ctx.Done():
				return nil, infer.AsError(context.Cause(ctx))
			}
		}
		c := b.post(chatPath, `{"model":"relayed","messages":[]}`)
		began := time.Now()
		prefill := p.forward(t, 1)
		time.Sleep(10 * time.Second)
		prefill.replies("200", prefillAnswer)
		if p.meets.Way == engine.ByPull {
			began = time.Now() // which hands it over only now
		}
		time.Sleep(time.Until(began) + 2*time.Minute - time.Nanosecond)
		if a := c.answer(); a.status != 0 {
			t.Fatalf("status %d before the time is out", a.status)
		}
		time.Sleep(time.Nanosecond)
		wantParts(t, c.refusal(504).Message, "2m0s", "--first-timeout")
		wantLegs(t, b.wantRecord(c, "failed", "deadline"), "p finished", "d deadline")
	})
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
		{"and the prefill engine is silent", func(*forward) {}, attempt.LastWord, 500, "decode"},
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

// wantLingering checks that a decode half is not hung up on, and is half a minute
// later.
func wantLingering(t testing.TB, d *relayEngine, since time.Time) {
	t.Helper()
	f := d.handed()[len(d.handed())-1]
	time.Sleep(time.Until(since) + 30*time.Second - time.Nanosecond)
	if synctest.Wait(); f.ctx.Err() != nil || f.abandoned() {
		t.Error("the decode half was hung up on")
	}
	time.Sleep(time.Nanosecond)
	synctest.Wait()
}

// SGLang's decode half is hung up on when the prefill engine writes no KV into its pages any
// more: at its first output, its end, or the gateway's.
func TestRelayHangUpWaits(t *testing.T) {
	for name, free := range map[string]func(b *bench, f *forward){
		"output":                   func(_ *bench, f *forward) { f.send(relayToken) },
		"its end":                  func(_ *bench, f *forward) { f.end() },
		"its failure":              func(_ *bench, f *forward) { f.fail(true) },
		"the gateway is shut down": func(b *bench, _ *forward) { b.g.Cut() },
		"the head, and then output": func(_ *bench, f *forward) {
			f.chunks <- []byte("200 text/event-stream")
			synctest.Wait()
			f.send(relayToken)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, d := relayCouple(engine.ByRoom)
			if strings.HasPrefix(name, "the head") {
				d.reply = held
			}
			inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, relayBody)
				p.forward(t, 1)
				f := d.forward(t, 1)
				c.hangUp()
				if n := b.g.Live(); n != 0 {
					t.Errorf("%d live requests", n)
				}
				time.Sleep(5 * time.Second)
				if synctest.Wait(); f.ctx.Err() != nil || f.abandoned() {
					t.Fatal("it was hung up on at once")
				}
				began := time.Now()
				free(b, f)
				if synctest.Wait(); f.ctx.Err() == nil && !f.abandoned() || time.Since(began) != 0 {
					t.Error("it goes on")
				}
			})
		})
	}
}

// A relayed decode half whose prefill half was not sent is hung up on at once.
func TestRelayHangUpUnsent(t *testing.T) {
	p, d := relayCouple(engine.ByRoom)
	p.unsent = true
	inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, relayBody)
		f := d.forward(t, 1)
		began := time.Now()
		c.hangUp()
		if synctest.Wait(); f.ctx.Err() == nil && !f.abandoned() || time.Since(began) != 0 {
			t.Error("it goes on")
		}
	})
}

// A relayed decode half is hung up on at once where its engine keeps the pages by itself.
func TestRelayHangUpHeld(t *testing.T) {
	p, d := relayCouple(engine.ByRoom)
	d.meets.HoldsPages = true
	inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, relayBody)
		p.forward(t, 1)
		f := d.forward(t, 1)
		began := time.Now()
		c.hangUp()
		if synctest.Wait(); f.ctx.Err() == nil && !f.abandoned() || time.Since(began) != 0 {
			t.Error("it goes on")
		}
	})
}

// A client that hangs up, wherever its pair stands, frees both engines at once, but for a
// decode half that has pages which the prefill engine may write into, and for the prefill half
// that meets the other by push before its KV was written (TestOwedKV).
func TestRelayPairHangUp(t *testing.T) {
	for _, test := range []struct {
		name  string
		play  func(p, d *relayEngine)
		waits bool
	}{
		{"before the prefill engine's answer", func(p, d *relayEngine) {}, true},
		{"in the prefill engine's answer", func(p, d *relayEngine) { p.handed()[0].chunks <- []byte("200 application/json") }, true},
		{"before the decode engine's first output", func(p, d *relayEngine) { p.handed()[0].replies("200", prefillAnswer) }, false},
		{"in the answer", func(p, d *relayEngine) {
			p.handed()[0].replies("200", prefillAnswer)
			d.handed()[0].send(relayToken)
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			inRelayPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *relayEngine) {
				c := b.post(chatPath, relayBody)
				synctest.Wait()
				test.play(p, d)
				synctest.Wait()
				began := time.Now()
				c.hangUp()
				if p.meets.Way == engine.ByPush && strings.Contains(test.name, "prefill engine's answer") {
					if f := d.handed()[0]; f.ctx.Err() == nil && !f.abandoned() {
						t.Error("the decode engine works on")
					}
					if f := p.handed()[0]; b.g.Live() != 1 || f.ctx.Err() != nil {
						t.Errorf("%d live requests, %v", b.g.Live(), f.ctx.Err())
					}
					time.Sleep(time.Minute) // --prefill-timeout
					synctest.Wait()
				}
				if n := b.g.Live(); n != 0 {
					t.Errorf("%d live requests", n)
				}
				if test.waits && p.meets.Way == engine.ByRoom {
					wantLingering(t, d, began)
				}
				for _, f := range slices.Concat(p.handed(), d.handed()) {
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
				for _, f := range slices.Concat(d.handed(), d2.handed()) {
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

// A decode half that begins with an error event has failed between the halves, for all that
// is known: the retry goes to neither engine, although the prefill engine has not failed.
func TestRelayPairErrorEvent(t *testing.T) {
	p, d := relayCouple(engine.ByRoom)
	p2, d2 := relayCouple(engine.ByRoom)
	p2.name, d2.name = "p2", "d2"
	inBubble(t, Options{}, []any{p, d, p2, d2}, func(t *testing.T, b *bench) {
		const n = 8
		var callers []*caller
		for range n {
			callers = append(callers, b.post(chatPath, relayBody))
		}
		failing := len(p.handed())
		for _, prefill := range p.handed() {
			for _, f := range slices.Concat(d.handed(), d2.handed()) {
				if f.req.Header.Get("X-Request-Id") == prefill.req.Header.Get("X-Request-Id") {
					f.send(`data: {"error":{"message":"KVTransferError","type":"x","param":null,"code":500}}` + "\n\n")
				}
			}
		}
		time.Sleep(time.Second + retry.AbortGrace)
		synctest.Wait()
		if len(p.handed()) != failing || len(p2.handed()) != n || failing == 0 {
			t.Errorf("of %d requests %d were at the first prefill engine, and are then %d at it, and %d at the other", n, failing, len(p.handed()), len(p2.handed()))
		}
		for _, f := range slices.Concat(d.handed(), d2.handed()) {
			if f.ctx.Err() == nil && !f.abandoned() {
				f.send(relayToken + relayEnd)
				f.end()
			}
		}
		for _, c := range callers {
			c.hangUp()
		}
	})
}

// A request that cannot be divided goes whole to a decode engine that serves such requests, and is
// refused if none does.
func TestIndivisible(t *testing.T) {
	for _, test := range []struct {
		way        engine.Way
		path, body string
		whole      bool
		field, why string // of its refusal
	}{
		{engine.ByPull, chatPath, `{"model":"relayed","messages":[],"n":2}`, true, "", ""},
		{engine.ByPush, completionsPath, `{"model":"relayed","prompt":["a","b"]}`, true, "", ""},
		{engine.ByPush, completionsPath, `{"model":"relayed","prompt":["a","b"]}`, false, "prompt", "several prompts"},
		{engine.ByPull, "/v1/embeddings", `{"model":"relayed","input":"a"}`, true, "", ""},
		{engine.ByRoom, "/v1/embeddings", `{"model":"relayed","input":"a"}`, false, "", "/v1/embeddings is none that generates"},
		{engine.ByRoom, chatPath, `{"model":"relayed","messages":[],"n":2}`, false, "n", "several answers (n)"},
		{engine.ByRoom, completionsPath, `{"model":"relayed","prompt":"a","echo":true,"logprobs":0}`, false, "echo", "log probabilities of the prompt"},
		{engine.ByRoom, completionsPath, `{"model":"relayed","prompt":"a","prompt_logprobs":1}`, false, "prompt_logprobs", "log probabilities of the prompt"},
		{engine.ByPull, completionsPath, `{"model":"relayed","prompt":"a","prompt_logprobs":1}`, true, "", ""},
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
					refusal := c.refusal(400)
					if wantParts(t, refusal.Message, "two halves", test.why); (refusal.Param == nil) != (test.field == "") || refusal.Param != nil && *refusal.Param != test.field {
						t.Errorf("it names %v, want %q", refusal.Param, test.field)
					}
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
