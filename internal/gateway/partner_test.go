package gateway

import (
	"context"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/retry"
	"weir/internal/gateway/attempt"
	"weir/internal/infer"
	"weir/internal/trace"
)

// Attempts in two halves: the prefill engine p computes a prompt, and the decode engine d
// serves the client.

// couple are engines of two halves that meet in a way.
func couple(way engine.Way) (p, d *tokenEngine) {
	p = &tokenEngine{name: "p", role: infer.RolePrefill, meets: engine.Meets{Way: way, Host: "10.0.0.1", Port: 8998, Ranks: 4, EngineID: "P"}}
	return p, &tokenEngine{name: "d", role: infer.RoleDecode, meets: engine.Meets{Way: way}}
}

// tokenWays are those in which token engines meet.
var tokenWays = []engine.Way{engine.ByRoom, engine.ByPush, engine.ByPull}

// inPairs runs a test with a couple of each way.
func inPairs(t *testing.T, opts Options, more []any, test func(t *testing.T, b *bench, p, d *tokenEngine)) {
	t.Helper()
	for _, way := range tokenWays {
		t.Run(way.String(), func(t *testing.T) {
			p, d := couple(way)
			inBubble(t, opts, append([]any{p, d}, more...), func(t *testing.T, b *bench) { test(t, b, p, d) })
		})
	}
}

// handedParams are what vLLM's prefill engine answers.
const handedParams = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1,2]],"remote_engine_id":"P","remote_request_id":"r","remote_host":"10.0.0.1","remote_port":5601,"tp_size":1}`

// prefilled ends a prefill half as engines do: with one id, which nobody is shown.
func (c *call) prefilled() {
	f := ending(infer.ReasonLength)
	f.Params = []byte(handedParams)
	f.PromptTokens, f.CachedTokens = len(c.req.Prompt), 2
	c.offer(words()[200:201], f)
	synctest.Wait()
}

// wantAborted checks that engines were told to stop.
func wantAborted(t testing.TB, calls ...*call) {
	t.Helper()
	synctest.Wait()
	for _, c := range calls {
		if !c.aborted() {
			t.Errorf("engine %s works on", c.engine.name)
		}
	}
}

// The halves of a pair are one request: with the same id, and a meeting or the prefill
// engine's answer in common. The client gets the decode engine's words, the first at once.
func TestPair(t *testing.T) {
	inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
		w, way := words(), p.meets.Way
		c := b.post(chatPath, askStream(`,"stream_options":{"include_usage":true}`))
		prefill := p.call(t, 1)
		if way == engine.ByPull {
			d.call(t, 0)
			time.Sleep(time.Second)
			prefill.prefilled()
		}
		decode := d.call(t, 1)
		if way != engine.ByPull {
			time.Sleep(time.Second)
		}
		a, z := prefill.req, decode.req
		if a.ID != z.ID || !slices.Equal(a.Prompt, z.Prompt) || a.MaxTokens != z.MaxTokens || a.Half == nil || z.Half == nil || a.Half.Role != infer.RolePrefill || z.Half.Role != infer.RoleDecode {
			t.Fatalf("the halves are\n%+v\n%+v", a, z)
		}
		switch way {
		case engine.ByRoom:
			if m := a.Half.Bootstrap; m != z.Half.Bootstrap || m.Host != "10.0.0.1" || m.Port != 8998 || m.Room < 0 || m.Rank != -1 {
				t.Errorf("they meet at %+v and %+v", m, z.Half.Bootstrap)
			}
		case engine.ByPull:
			if string(z.Half.Params) != handedParams {
				t.Errorf("the decode half has %s", z.Half.Params)
			}
		case engine.ByPush:
			if string(a.Half.Params) != string(p.meets.PrefillParams(a.ID)) || string(z.Half.Params) != string(p.meets.DecodeParams(-1, a.ID)) {
				t.Errorf("the halves have %s and %s", a.Half.Params, z.Half.Params)
			}
		}
		decode.send(w[0])
		if s := c.story(); s.text != text(w[0]) {
			t.Errorf("the client has %q of the first word", s.text)
		}
		if way != engine.ByPull {
			prefill.prefilled()
		}
		decode.end(infer.ReasonStop, w[1])
		c.wantWhole(text(w[:2]...), "stop")
		if prefill.aborted() {
			t.Error("the prefill half was aborted")
		}
		r := b.wantRecord(c, "finished", "")
		wantLegs(t, r, "p finished", "d finished")
		if r.Completion != 2 {
			t.Errorf("%d tokens", r.Completion)
		}
		parts := map[string]bool{}
		for _, m := range b.metric("weir_pair_seconds") {
			parts[m.labels["part"]] = true
		}
		if !parts["prefill"] || !parts["handover"] {
			t.Errorf("parts %v", parts)
		}
	})
}

// The points that a pair passes are histograms, each where an engine or the gateway's own
// clock tells it.
func TestPairPoints(t *testing.T) {
	inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
		c := b.post(chatPath, askStream(``))
		prefill := p.call(t, 1)
		stamped := func(c *call, s infer.Stamps) {
			c.sink.Offer(&infer.Delta{Attempt: c.attempt, Total: c.total, Received: trace.Now(), Stamps: &s})
		}
		began := trace.Now()
		stamped(prefill, infer.Stamps{BootstrapEnd: began + 1e9, PrefillEnd: began + 3e9})
		time.Sleep(4 * time.Second)
		prefill.prefilled()
		decode := d.call(t, 1)
		stamped(decode, infer.Stamps{TransferEnd: began + 6e9, WaitingToRunning: began + 10e9})
		time.Sleep(8 * time.Second)
		decode.end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
		b.wantRecord(c, "finished", "")
		for name, want := range map[string]map[string]float64{
			"weir_pair_point_seconds": {"met": 1, "prefilled": 3, "transferred": 6, "running": 10, "first_output": 12},
			"weir_pair_stage_seconds": {"bootstrap": 1, "prefill": 2, "transfer": 3, "waiting_to_running": 4, "decode": 2},
			"weir_pair_seconds":       {"prefill": 4, "handover": 8},
		} {
			got := map[string]float64{}
			for _, m := range b.metric(name) {
				for _, label := range m.labels {
					got[label] = m.value
				}
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	})
}

// The books of the prefill engine have when it began with the prompt, as it says.
func TestPrefillStartIsBooked(t *testing.T) {
	inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
		rank := b.ranks[0]
		rank.Share() // and enters what it books
		c := b.post(chatPath, askStream(``))
		prefill := p.call(t, 1)
		time.Sleep(time.Second)
		began := trace.Now()
		prefill.sink.Offer(&infer.Delta{Attempt: prefill.attempt, Received: began, Stamps: &infer.Stamps{PrefillStart: began}})
		time.Sleep(time.Second)
		prefill.prefilled()
		d.call(t, 1).end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
		_, entries := rank.Tell(trace.Now())
		i := slices.IndexFunc(entries, func(e cost.Entry) bool { return e.Kind == cost.Began })
		if i < 0 || entries[i].Start != began {
			t.Errorf("of a prompt begun at %d the books have %+v", began, entries)
		}
	})
}

// Each choice is a pair of its own.
func TestPairChoices(t *testing.T) {
	inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
		c := b.post(chatPath, askChat(`,"n":3`))
		p.call(t, 3)
		for _, prefill := range p.handed() {
			prefill.prefilled()
		}
		d.call(t, 3)
		rooms := map[int64]bool{}
		for _, decode := range d.handed() {
			i := slices.IndexFunc(p.handed(), func(prefill *call) bool { return prefill.req.ID == decode.req.ID })
			if i < 0 || p.handed()[i].req.Half.Bootstrap != decode.req.Half.Bootstrap {
				t.Errorf("nobody meets %+v", decode.req)
			}
			rooms[decode.req.Half.Bootstrap.Room] = true
			decode.end(infer.ReasonStop, words()[0])
		}
		if p.meets.Way == engine.ByRoom && len(rooms) != 3 {
			t.Errorf("they meet in %v", rooms)
		}
		if a := c.answer(); a.status != 200 || strings.Count(string(a.body), text(words()[0])) != 3 {
			t.Errorf("status %d: %s", a.status, a.body)
		}
		wantLegs(t, b.wantRecord(c, "finished", ""), "p finished", "d finished")
	})
}

// A refusal by the prefill engine reaches the client at once. It does not count against the decode
// engine, whose half is aborted.
func TestPrefillFails(t *testing.T) {
	for _, test := range []struct {
		name    string
		accept  func(context.Context, *call) error
		play    func(c *call)
		status  int
		outcome string
	}{
		{"it refuses", refuse(infer.CodeInvalid, false), nil, 400, "invalid"},
		{"it refuses later", nil, func(c *call) { c.fail(infer.CodeInvalid, false) }, 400, "invalid"},
		{"it fails", nil, func(c *call) { c.fail(infer.CodeEngine, true) }, 502, "engine"},
		{"it fails after an id", nil, func(c *call) { c.fail(infer.CodeEngine, true, words()[3]) }, 502, "engine"},
		{"it cannot be reached", refuse(infer.CodeUnavailable, true), nil, 503, "unavailable"},
		{"it gives up", nil, func(c *call) { c.end(infer.ReasonAbort) }, 502, "engine"},
		{"it panics", func(context.Context, *call) error { panic("scripted") }, nil, 500, "internal"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
				p.accept = test.accept
				b.judged()
				began := time.Now()
				c := b.post(chatPath, askStream(``))
				prefill := p.call(t, 1)
				if test.play != nil {
					test.play(prefill)
				}
				c.refusal(test.status)
				if passed := time.Since(began); passed != 0 {
					t.Errorf("it took %v", passed)
				}
				r, decode := b.record(c), " cancelled"
				if p.meets.Way != engine.ByPull {
					decode := d.call(t, 1)
					wantAborted(t, decode)
					// Its abort need not wait for KV, where nobody writes any.
					if knows := test.outcome == "invalid" || test.outcome == "engine"; decode.released != knows {
						t.Errorf("the decode half was released: %v", decode.released)
					}
				} else {
					d.call(t, 0)
				}
				if r.Code != test.outcome {
					t.Errorf("ended with code %q", r.Code)
				}
				wantLegs(t, r, "p "+test.outcome, "d"+decode)
				for _, e := range b.snapshot.Load().Engines {
					if v := e.Ranks[0].Health.View(); v.Open != 0 || v.State != health.Up {
						t.Errorf("engine %s is %+v", e.Name, v)
					}
				}
			})
		})
	}
}

// Nothing that a prefill engine does after the decode engine's first output has an effect.
func TestPrefillAfterOutput(t *testing.T) {
	for _, test := range []struct {
		name string
		play func(c *call)
		leg  string
	}{
		{"it fails", func(c *call) { c.fail(infer.CodeEngine, true) }, "p engine"},
		{"it ends twice", func(c *call) { c.prefilled(); c.fail(infer.CodeEngine, true); c.prefilled() }, "p finished"},
		{"it never ends", func(*call) {}, "p cancelled"},
		{"it sends what nobody asked for", func(c *call) { c.raw(words()[3:9], 70, nil); c.raw(nil, 3, nil); c.prefilled() }, "p finished"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
				if p.meets.Way == engine.ByPull {
					return // it has answered before
				}
				w := words()
				c := b.post(chatPath, askStream(``))
				decode, prefill := d.call(t, 1), p.call(t, 1)
				decode.send(w[0])
				test.play(prefill)
				decode.send(w[1])
				decode.end(infer.ReasonStop, w[2])
				time.Sleep(attempt.LastWord)
				c.wantWhole(text(w[:3]...), "stop")
				if test.leg == "p cancelled" {
					wantAborted(t, prefill)
				}
				prefill.prefilled() // late
				wantLegs(t, b.wantRecord(c, "finished", ""), test.leg, "d finished")
			})
		})
	}
}

// The bounds of a pair's waits, and what is told to stop when they run out.
func TestPairTimeouts(t *testing.T) {
	for _, test := range []struct {
		name     string
		accept   func(context.Context, *call) error
		answers  bool
		bound    time.Duration
		says     string
		p, d     string
		decoding bool
	}{
		{"not confirmed", never, false, 10 * time.Second, "within 10s (--submit-timeout)", "p deadline", "d cancelled", false},
		{"not answered", nil, false, time.Minute, "did not answer within 1m0s (--prefill-timeout)", "p deadline", "d cancelled", false},
		{"not handed over", nil, true, 30 * time.Second, "within 30s after the prefill engine's answer (--transfer-timeout)", "p finished", "d deadline", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
				p.accept = test.accept
				c := b.post(chatPath, askStream(``))
				prefill := p.call(t, 1)
				if test.answers {
					prefill.prefilled()
				}
				time.Sleep(test.bound - time.Nanosecond)
				if a := c.answer(); a.status != 0 {
					t.Fatalf("status %d before the time is out", a.status)
				}
				time.Sleep(time.Nanosecond)
				wantParts(t, c.refusal(504).Message, test.says)
				if !test.answers {
					wantAborted(t, prefill)
				}
				if test.decoding || p.meets.Way != engine.ByPull {
					decode := d.call(t, 1)
					wantAborted(t, decode)
					// Where it has not answered, the prefill engine may still write its KV.
					if written := test.answers && p.meets.Way == engine.ByRoom; decode.released != written {
						t.Errorf("the decode half was released: %v", decode.released)
					}
				} else {
					d.call(t, 0)
				}
				wantLegs(t, b.wantRecord(c, "failed", "deadline"), test.p, test.d)
			})
		})
	}
}

// A decode engine's failure ends the prefill half, and is its own. Where it only says that
// the halves have failed between them the prefill engine is asked for its word.
func TestDecodeFails(t *testing.T) {
	between := func(c *call) {
		f := ending(infer.ReasonError)
		f.Err = c.engine.fault(infer.CodeEngine, false)
		f.Err.Handover = true
		c.offer(nil, f)
		synctest.Wait()
	}
	for _, test := range []struct {
		name string
		play func(prefill, decode *call)
		wait time.Duration
		says string
		legs []string
	}{
		{"by itself", func(_, decode *call) { decode.fail(infer.CodeEngine, false) }, 0, "d", []string{"p cancelled", "d engine"}},
		{"between them", func(_, decode *call) { between(decode) }, attempt.LastWord, "d", []string{"p cancelled", "d engine"}},
		{"between them, because prefill did", func(prefill, decode *call) {
			between(decode)
			prefill.fail(infer.CodeInvalid, false)
		}, 0, "p", []string{"p invalid", "d cancelled"}},
		{"and prefill says that it was between them", func(prefill, decode *call) {
			between(prefill)
			decode.fail(infer.CodeInvalid, false)
		}, 0, "d", []string{"p engine", "d invalid"}},
		{"between them, as both say", func(prefill, decode *call) { between(decode); between(prefill) }, 0, "d", []string{"p engine", "d engine"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
				if p.meets.Way == engine.ByPull {
					return // prefill has answered before
				}
				c := b.post(chatPath, askStream(``))
				prefill, decode := p.call(t, 1), d.call(t, 1)
				test.play(prefill, decode)
				if test.wait > 0 {
					time.Sleep(test.wait - time.Nanosecond)
					if a := c.answer(); a.status != 0 {
						t.Fatalf("status %d at once", a.status)
					}
					time.Sleep(time.Nanosecond)
				}
				if a := c.answer(); a.status < 400 {
					t.Fatalf("status %d", a.status)
				}
				if test.legs[0] == "p cancelled" {
					wantAborted(t, prefill)
				}
				wantLegs(t, b.record(c), test.legs...)
				if faults := b.metric("weir_engine_faults_total"); len(faults) != 1 || faults[0].labels["engine"] != test.says {
					t.Errorf("faults %v", faults)
				}
			})
		})
	}
}

// A client that hangs up, wherever its pair stands, frees both engines at once, but for the
// prefill half that meets the other by push before its KV was written (TestOwedKV).
func TestPairHangUp(t *testing.T) {
	for _, test := range []struct {
		name   string
		accept func(context.Context, *call) error
		play   func(p, d *tokenEngine)
	}{
		{"before the hand-over is confirmed", never, func(p, d *tokenEngine) {}},
		{"before the prefill engine's answer", nil, func(p, d *tokenEngine) {}},
		{"before the decode engine's first output", nil, func(p, d *tokenEngine) { p.handed()[0].prefilled() }},
		{"in the answer", nil, func(p, d *tokenEngine) { p.handed()[0].prefilled(); d.handed()[0].send(words()[0]) }},
		{"in the answer, before the prefill engine's", nil, func(p, d *tokenEngine) {
			if p.meets.Way == engine.ByPull {
				p.handed()[0].prefilled()
			}
			d.handed()[0].send(words()[0])
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
				p.accept = test.accept
				c := b.post(chatPath, askStream(``))
				synctest.Wait()
				test.play(p, d)
				owed := p.meets.Way == engine.ByPush && strings.HasPrefix(test.name, "before") && (len(p.handed()) == 0 || p.handed()[0].total == 0)
				c.hangUp()
				wantAborted(t, d.handed()...)
				if owed {
					if b.g.Live() != 1 {
						t.Errorf("%d live requests", b.g.Live())
					}
					time.Sleep(time.Minute) // --prefill-timeout
					synctest.Wait()
				}
				if n := b.g.Live(); n != 0 {
					t.Errorf("%d live requests", n)
				}
				for _, call := range p.handed() {
					if call.total == 0 {
						wantAborted(t, call)
					}
				}
				b.wantRecord(c, "cancelled", "cancelled")
			})
		})
	}
}

// A decode half that SGLang may be writing KV for is aborted late, and at once as soon as its
// prefill engine is known to write none: it was sent nothing, says that it had computed nothing,
// or had handed all over before it knew of the abort.
func TestDecodeIsFreed(t *testing.T) {
	for _, test := range []struct {
		name  string
		sent  bool // the prefill half
		ends  func(c *call)
		freed bool
	}{
		{"the prefill half was not sent", false, nil, true},
		{"it waited in its engine's queue", true, func(c *call) {
			c.offer(nil, &infer.Finish{Reason: infer.ReasonAbort, PromptTokens: -1, CachedTokens: -1, Unbegun: true})
		}, true},
		{"it had been computed", true, func(c *call) { c.prefilled() }, true},
		{"it was being computed", true, func(c *call) { c.end(infer.ReasonAbort) }, false},
		{"it fails", true, func(c *call) { c.fail(infer.CodeEngine, true) }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, d := couple(engine.ByRoom)
			if !test.sent {
				var of *trace.Leg
				p.told = func(leg *trace.Leg) { of = leg }
				p.accept = func(ctx context.Context, c *call) error {
					of.ToServer = 0
					return never(ctx, c)
				}
			}
			inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, askStream(``))
				prefill, decode := p.call(t, 1), d.call(t, 1)
				c.hangUp()
				wantAborted(t, prefill, decode)
				decode.mu.Lock()
				early := decode.released
				decode.mu.Unlock()
				if early == test.sent {
					t.Errorf("released at once: %v", early)
				}
				if test.ends != nil {
					time.Sleep(time.Second)
					test.ends(prefill)
				}
				decode.mu.Lock()
				defer decode.mu.Unlock()
				if decode.released != test.freed {
					t.Errorf("released: %v", decode.released)
				}
			})
		})
	}
}

// By push a decode engine keeps the pages of a half that was given up until the KV has been
// written into them: the prefill half is served to its end, and the decode half is not.
func TestOwedKV(t *testing.T) {
	p, d := couple(engine.ByPush)
	inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		synctest.Wait()
		c.hangUp()
		wantAborted(t, d.handed()[0])
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if p.handed()[0].aborted() {
			t.Fatal("the prefill half is given up, and its KV never comes")
		}
		p.handed()[0].prefilled()
		if n := b.g.Live(); n != 0 || p.handed()[0].aborted() {
			t.Errorf("%d live requests, aborted %v", n, p.handed()[0].aborted())
		}
		b.wantRecord(c, "cancelled", "cancelled")
	})
}

// A pair that has failed is tried once more as another one, that meets elsewhere and under
// another name: with another engine in place of the one that has failed.
func TestPairRetries(t *testing.T) {
	for _, fails := range []string{"p", "d"} {
		t.Run(fails, func(t *testing.T) {
			for _, way := range tokenWays {
				t.Run(way.String(), func(t *testing.T) {
					p, d := couple(way)
					p2, d2 := couple(way)
					p2.name, d2.name = "p2", "d2"
					inBubble(t, Options{}, []any{p, d, p2, d2}, func(t *testing.T, b *bench) {
						c := b.post(chatPath, askStream(``))
						first := p.call(t, 1)
						if fails == "p" {
							first.fail(infer.CodeEngine, true)
						} else {
							first.prefilled()
							d.call(t, 1).fail(infer.CodeEngine, true)
						}
						time.Sleep(retry.AbortGrace)
						synctest.Wait()
						var prefill, decode *call
						for _, e := range []*tokenEngine{p, p2} {
							if n := e.count(); n > 0 && e.handed()[n-1] != first {
								prefill = e.handed()[n-1]
							}
						}
						if prefill == nil || fails == "p" && prefill.engine != p2 {
							t.Fatalf("%d and %d prefill halves", p.count(), p2.count())
						}
						if prefill.req.ID == first.req.ID || way == engine.ByRoom && prefill.req.Half.Bootstrap.Room == first.req.Half.Bootstrap.Room {
							t.Errorf("it is known as before: %+v", prefill.req)
						}
						prefill.prefilled()
						for _, e := range []*tokenEngine{d, d2} {
							if n := e.count(); n > 0 && e.handed()[n-1].req.ID == prefill.req.ID {
								decode = e.handed()[n-1]
							}
						}
						if decode == nil || fails == "d" && decode.engine != d2 {
							t.Fatalf("%d and %d decode halves", d.count(), d2.count())
						}
						decode.end(infer.ReasonStop, words()[0])
						c.wantWhole(text(words()[0]), "stop")
						if r := b.wantRecord(c, "finished", ""); len(r.Attempts) != 2 || !r.Attempts[0].Repeated {
							t.Errorf("attempts %+v", r.Attempts)
						}
					})
				})
			}
		})
	}
}

// A decode engine that is not there is suspected, although its half owed nothing yet.
func TestPairRefused(t *testing.T) {
	inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
		b.judged()
		d.accept = func(context.Context, *call) error {
			return &infer.Error{Code: infer.CodeUnavailable, Engine: d.name, Retryable: true, NotRun: true, Message: "scripted", Cause: syscall.ECONNREFUSED}
		}
		c := b.post(chatPath, askStream(``))
		if first := p.call(t, 1); p.meets.Way == engine.ByPull {
			first.prefilled()
		}
		c.refusal(503)
		if v := b.snapshot.Load().Engines[1].Ranks[0].Health.View(); v.State == health.Up || v.Given != 1 {
			t.Errorf("%+v", v)
		}
	})
}

// Where the halves of a pair have failed between them either engine may be why: neither is tried
// again where others are, although these have more to do.
func TestPairRetriesElsewhere(t *testing.T) {
	for _, way := range tokenWays {
		t.Run(way.String(), func(t *testing.T) {
			p, d := couple(way)
			p2, d2 := couple(way)
			p2.name, d2.name = "p2", "d2"
			inBubble(t, Options{Attempt: attempt.Options{TransferTimeout: time.Second}}, []any{p, d, p2, d2}, func(t *testing.T, b *bench) {
				const n = 8
				var callers []*caller
				for range n {
					callers = append(callers, b.post(chatPath, askStream(``)))
				}
				failing := p.count()
				for i := range failing {
					p.handed()[i].prefilled()
				}
				time.Sleep(time.Second + retry.AbortGrace)
				synctest.Wait()
				if p.count() != failing || p2.count() != n || failing == 0 {
					t.Errorf("of %d requests %d were at the first prefill engine, and are then %d at it, and %d at the other", n, failing, p.count(), p2.count())
				}
				for _, c := range callers {
					c.hangUp()
				}
				if way == engine.ByPush { // whose prefill halves are served to their ends
					for _, call := range p2.handed() {
						call.prefilled()
					}
				}
			})
		})
	}
}

// A half that waits for its partner is no sign of a hang: the decode engine's health hears of
// it when the prefill engine has answered.
func TestPairHealth(t *testing.T) {
	inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
		b.judged()
		open := func() (n [2]int) {
			for i, e := range b.snapshot.Load().Engines {
				n[i] = e.Ranks[0].Health.View().Open
			}
			return n
		}
		c := b.post(chatPath, askStream(``))
		if n := open(); n != [2]int{1, 0} {
			t.Errorf("while the prompt is computed %v requests are open", n)
		}
		p.call(t, 1).prefilled()
		if n := open(); n != [2]int{0, 1} {
			t.Errorf("after that %v requests are open", n)
		}
		d.call(t, 1).end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
		if n := open(); n != [2]int{0, 0} {
			t.Errorf("at the end %v requests are open", n)
		}
	})
}

// A pair leaves a prefill engine that goes down.
func TestPairEscape(t *testing.T) {
	for _, way := range tokenWays {
		t.Run(way.String(), func(t *testing.T) {
			p, d := couple(way)
			p2, _ := couple(way)
			p2.name = "p2"
			inBubble(t, Options{Attempt: attempt.Options{PrefillTimeout: time.Hour}}, []any{p, d, p2}, func(t *testing.T, b *bench) {
				first, end := b.failing(t)
				defer end()
				c := b.post(chatPath, askStream(``))
				p.call(t, 1)
				untilDown(t, first, p2.count)
				time.Sleep(retry.AbortGrace)
				wantAborted(t, p.call(t, 1))
				p2.call(t, 1).prefilled()
				decode := d.handed()[d.count()-1]
				decode.end(infer.ReasonStop, words()[0])
				c.wantWhole(text(words()[0]), "stop")
				b.wantRecord(c, "finished", "")
			})
		})
	}
}

// Where a prefill engine hands nothing over, the decode engine has the request whole, for as
// long as that takes.
func TestNothingHandedOver(t *testing.T) {
	p, d := couple(engine.ByPull)
	inBubble(t, Options{}, []any{p, d}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		p.call(t, 1).end(infer.ReasonLength, words()[5])
		decode := d.call(t, 1)
		if decode.req.Half != nil {
			t.Errorf("it is asked for %+v", decode.req.Half)
		}
		time.Sleep(5 * time.Minute)
		decode.end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
		wantLegs(t, b.wantRecord(c, "finished", ""), "p finished", "d finished")
	})
}

// How much of a prompt was cached is the prefill engine's word, also where the decode engine
// has another one of its own cache.
func TestPairCached(t *testing.T) {
	inPairs(t, Options{}, nil, func(t *testing.T, b *bench, p, d *tokenEngine) {
		c := b.post(chatPath, askStream(``))
		p.call(t, 1).prefilled() // which had 2
		decode := d.call(t, 1)
		f := ending(infer.ReasonStop)
		f.CachedTokens = 1
		decode.offer(words()[:1], f)
		c.wantWhole(text(words()[0]), "stop")
		if got := b.wantRecord(c, "finished", "").Attempts[0].Choice.Cached; got != 2 {
			t.Errorf("%d cached tokens, want those of the prefill engine", got)
		}
	})
}
