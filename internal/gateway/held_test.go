package gateway

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/dialect/allow"
	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/models"
)

// serve answers an engine's n-th request.
func serve(t testing.TB, e *tokenEngine, n int) {
	t.Helper()
	e.call(t, n).end(infer.ReasonStop, words()[0])
}

// names gives the callers' ids in the order in which an engine was handed their requests, by
// the ids that they have of the gateway's: those count up.
func order(e *tokenEngine) (ids []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.calls {
		ids = append(ids, c.req.ID)
	}
	return ids
}

// A request that does not fit waits in the gateway, and goes to the engine in the order of arrival,
// as soon as there is room. The stage queue has its time, and no time is left unexplained.
func TestHoldsWhatDoesNotFit(t *testing.T) {
	a := &tokenEngine{name: "a", most: 2}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		var all []*caller
		for range 6 {
			all = append(all, b.post(chatPath, askStream(``)))
		}
		a.call(t, 2)
		if n := b.sum("weir_queue_requests"); n != 4 {
			t.Errorf("%v wait, want 4", n)
		}
		for n := 2; n < 6; n++ {
			time.Sleep(time.Second)
			serve(t, a, n)
			if a.count() != n+1 {
				t.Fatalf("after %d ends %d were handed over", n-1, a.count())
			}
		}
		if ids := order(a); !slices.IsSorted(ids) {
			t.Errorf("handed over in the order %v", ids)
		}
		for i := range 2 { // the first, and the last one
			a.mu.Lock()
			c := a.calls[i*5]
			a.mu.Unlock()
			c.end(infer.ReasonStop, words()[0])
		}
		for i, c := range all {
			c.wantWhole(text(words()[0]), "stop")
			r := b.wantRecord(c, "finished", "")
			if wait := time.Duration(r.Stages["queue"]); i >= 2 && wait != time.Duration(i-1)*time.Second || i < 2 && wait != 0 {
				t.Errorf("request %d was in the stage queue for %v", i, wait)
			}
		}
		if released, held := b.sum("weir_queue_released_total"), b.sum("weir_queue_held_total"); released != 6 || held != 4 {
			t.Errorf("%v released, %v held", released, held)
		}
		if n := b.sum("weir_queue_requests") + b.sum("weir_queue_bytes"); n != 0 {
			t.Errorf("%v wait at the end", n)
		}
	})
}

// A place is held until the answer has ended: neither its first token nor all that follow give
// it to the next one.
func TestPlaceIsHeldToTheEnd(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		first, second := b.post(chatPath, askStream(``)), b.post(chatPath, askStream(``))
		for _, id := range words()[:3] {
			time.Sleep(time.Second)
			a.call(t, 1).send(id)
			if n := b.sum("weir_queue_requests"); n != 1 || a.count() != 1 {
				t.Fatalf("while the first is answered %v wait and %d were handed over", n, a.count())
			}
		}
		serve(t, a, 1)
		serve(t, a, 2)
		for _, c := range []*caller{first, second} {
			b.wantRecord(c, "finished", "")
		}
	})
}

// A request for no answer of the model does not wait for room, because an engine's front end counts
// and cuts tokens beside the model. A request that the model computes waits.
func TestCountsDoNotWait(t *testing.T) {
	r := &relayEngine{name: "a", most: 1}
	inBubble(t, Options{}, []any{r}, func(t *testing.T, b *bench) {
		answer := b.post(chatPath, `{"model":"relayed","stream":true,"messages":[]}`)
		running := r.forward(t, 1)
		waits := b.post("/v1/embeddings", `{"model":"relayed","input":"x"}`)
		if n := b.sum("weir_queue_requests"); n != 1 {
			t.Errorf("%v wait, want the one", n)
		}
		for i, path := range []string{"/v1/messages/count_tokens", "/tokenize", "/detokenize"} {
			c := b.post(path, `{"model":"relayed","messages":[]}`)
			f := r.forward(t, 2+i)
			if f.req.Path != path {
				t.Fatalf("%s was given to the engine, want %s", f.req.Path, path)
			}
			f.send("data: {}\n\n")
			f.end()
			b.wantRecord(c, "finished", "")
		}
		running.send(relayToken, relayEnd)
		running.end()
		b.wantRecord(answer, "finished", "")
		f := r.forward(t, 5)
		if f.req.Path != "/v1/embeddings" {
			t.Errorf("%s was given to the engine", f.req.Path)
		}
		f.send("data: {}\n\n")
		f.end()
		b.wantRecord(waits, "finished", "")
	})
}

// Nothing that an engine tells of its load is waited for: an hour after the last that was heard
// of it, those that wait leave one after the other, and one that comes is given to it.
func TestGoesOnWithoutReports(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	inBubble(t, Options{Place: PlaceOptions{Queue: place.Queueing{Timeout: 24 * time.Hour}}, Attempt: attempt.Options{FirstTimeout: 24 * time.Hour}}, []any{a}, func(t *testing.T, b *bench) {
		var all []*caller
		for range 3 {
			all = append(all, b.post(chatPath, askStream(``)))
		}
		for n := range all {
			time.Sleep(time.Hour)
			serve(t, a, n+1)
			if want := min(n+2, len(all)); a.count() != want {
				t.Fatalf("after %d ends %d were handed over, want %d", n+1, a.count(), want)
			}
		}
		time.Sleep(time.Hour)
		all = append(all, b.post(chatPath, askStream(``)))
		serve(t, a, 4)
		for _, c := range all {
			b.wantRecord(c, "finished", "")
		}
	})
}

// The queue off gives everything to the engine at once, and so it does where nobody knows how
// much that takes.
func TestPushesWithoutLimits(t *testing.T) {
	for name, test := range map[string]struct {
		o Options
		e *tokenEngine
	}{
		"off":        {Options{Place: PlaceOptions{Queue: place.Queueing{Off: true}}}, &tokenEngine{name: "a", most: 1}},
		"not known":  {Options{}, &tokenEngine{name: "a"}},
		"large":      {Options{}, &tokenEngine{name: "a", facts: &engine.Facts{MaxRunning: 1 << 40}}},
		"impossible": {Options{}, &tokenEngine{name: "a", facts: &engine.Facts{MaxRunning: -1, StepTokens: -5}}},
	} {
		t.Run(name, func(t *testing.T) {
			inOneWay(t, test.o, []any{test.e}, func(t *testing.T, b *bench) {
				for range 50 {
					b.post(chatPath, askStream(``))
				}
				test.e.call(t, 50)
			})
		})
	}
}

// An engine that schedules by priorities is given everything at once where clients may send
// those: also what carries none, and what comes with a low one. Elsewhere requests wait here.
func TestPushesToWhomSchedulesByPriority(t *testing.T) {
	fields := func(names ...string) allow.Rules {
		f, err := allow.ParseFields(names)
		if err != nil {
			t.Fatal(err)
		}
		return allow.Rules{Fields: f}
	}
	schedules := func() *tokenEngine {
		return &tokenEngine{name: "a", facts: &engine.Facts{MaxRunning: 1, Carries: infer.CarriesPriority}}
	}
	for name, test := range map[string]struct {
		o     Options
		e     *tokenEngine
		given int
	}{
		"by priorities":               {Options{Prepare: prepare.Options{Allow: fields("priority")}}, schedules(), 20},
		"by a header":                 {Options{Prepare: prepare.Options{Allow: fields("x-vllm-priority")}}, schedules(), 20},
		"no client may send them":     {Options{}, schedules(), 2},
		"something else may pass":     {Options{Prepare: prepare.Options{Allow: fields("cache_salt")}}, schedules(), 2},
		"it does not schedule by any": {Options{Prepare: prepare.Options{Allow: fields("priority")}}, &tokenEngine{name: "a", most: 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inOneWay(t, test.o, []any{test.e}, func(t *testing.T, b *bench) {
				for n := range 20 {
					rest := ``
					if n%2 == 0 && test.given == 20 && name != "by a header" {
						rest = fmt.Sprintf(`,"priority":%d`, n)
					}
					b.post(chatPath, askStream(rest))
				}
				test.e.call(t, test.given)
				if n := test.e.count(); n != test.given {
					t.Errorf("%d were handed over, want %d", n, test.given)
				}
				if n := b.sum("weir_queue_requests"); n != float64(20-test.given) {
					t.Errorf("%v wait", n)
				}
			})
		})
	}
}

// One that hangs up while it waits frees its place at once, wherever it is.
func TestHangsUpInTheQueue(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	inBubble(t, Options{Place: PlaceOptions{Queue: place.Queueing{Requests: 3}}}, []any{a}, func(t *testing.T, b *bench) {
		b.post(chatPath, askStream(``))
		var all []*caller
		for range 3 {
			all = append(all, b.post(chatPath, askStream(``)))
		}
		b.post(chatPath, askStream(``)).refusal(429)
		at := time.Now()
		all[1].hangUp()
		if n := b.sum("weir_queue_requests"); n != 2 {
			t.Errorf("%v wait after one has hung up", n)
		}
		within(t, "freeing its place", time.Since(at), 0, 100*time.Millisecond)
		last := b.post(chatPath, askStream(``)) // takes the place
		all[0].hangUp()
		for n := range 3 {
			serve(t, a, n+1)
		}
		all[2].wantWhole(text(words()[0]), "stop")
		last.wantWhole(text(words()[0]), "stop")
		b.wantRecord(all[1], "cancelled", "cancelled")
		a.call(t, 3)
	})
}

// A request that its engine has failed keeps its place: it is before all that came later, and
// holds up none that can go where it cannot.
func TestRetryKeepsItsPlace(t *testing.T) {
	a, z := &tokenEngine{name: "a", most: 1}, &tokenEngine{name: "z", most: 1}
	inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
		first := b.post(chatPath, askStream(``))
		b.post(chatPath, askStream(``))
		third, fourth := b.post(chatPath, askStream(``)), b.post(chatPath, askStream(``))
		a.call(t, 1).fail(infer.CodeEngine, true)
		time.Sleep(time.Second)
		a.call(t, 2) // the third has taken the place at the engine that failed
		z.call(t, 1)
		serve(t, z, 1)
		if id := z.call(t, 2).req.ID; id[:len(id)-2] > order(a)[1] {
			t.Errorf("the engine was given %s, and not the first request again", id)
		}
		serve(t, z, 2)
		first.wantWhole(text(words()[0]), "stop")
		wantLegs(t, b.wantRecord(first, "finished", ""), "a engine", "z finished")
		serve(t, z, 3)
		serve(t, a, 2)
		third.wantWhole(text(words()[0]), "stop")
		fourth.wantWhole(text(words()[0]), "stop")
	})
}

// When the engines are gone those that wait are told so once it is clear that none comes back,
// and with 503: nothing is there to wait for.
func TestEnginesLeaveTheQueue(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		running := b.post(chatPath, askStream(``))
		var all []*caller
		for range 5 {
			all = append(all, b.post(chatPath, askStream(``)))
		}
		gone := fleetOf(make(chan struct{}))
		for _, m := range gone.Models {
			m.Settled = true
		}
		b.snapshot.Store(gone)
		close(b.changed)
		b.changed = nil
		for _, c := range all {
			if e := c.refusal(503); !strings.Contains(e.Message, "no engine") {
				t.Errorf("refused with %q", e.Message)
			}
			if why := c.answer().header.Get("X-Refusal-Reason"); why != "no_engine" {
				t.Errorf("the reason is %q", why)
			}
		}
		a.call(t, 1).end(infer.ReasonStop, words()[0])
		running.wantWhole(text(words()[0]), "stop")
	})
}

// An engine that comes back while they wait gives them room, in their order.
func TestEnginesComeBack(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	inBubble(t, Options{Place: PlaceOptions{EngineTimeout: 5 * time.Second}}, []any{a}, func(t *testing.T, b *bench) {
		b.post(chatPath, askStream(``))
		var all []*caller
		for range 4 {
			all = append(all, b.post(chatPath, askStream(``)))
		}
		b.publish() // none is there, and one may be starting
		time.Sleep(time.Second)
		// With room for two, two are given to it at once, and either may be the first to hand
		// itself over.
		more := &tokenEngine{name: "b", most: 1}
		b.publish(more)
		for n := range 4 {
			serve(t, more, n+1)
		}
		if ids := order(more); !slices.IsSorted(ids) || len(ids) != 4 {
			t.Errorf("handed over in the order %v", ids)
		}
		for _, c := range all {
			c.wantWhole(text(words()[0]), "stop")
		}
		a.call(t, 1).end(infer.ReasonStop, words()[0])
	})
}

// The end of the gateway ends those that wait, with an error that says so.
func TestCutEndsTheQueue(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		b.post(chatPath, askStream(``))
		waiting, late := b.post(chatPath, askStream(``)), b.dial(0)
		b.g.Drain()
		late.send("POST", chatPath, askStream(``))
		if e := late.refusal(503); !strings.Contains(e.Message, "shutting down") {
			t.Errorf("refused with %q", e.Message)
		}
		serve(t, a, 1) // what waits is served while the gateway drains
		a.call(t, 2)
		cut := b.post(chatPath, askStream(``))
		cut.answer()
		b.g.Cut()
		synctest.Wait()
		b.wantRecord(waiting, "failed", "shutdown")
	})
}

// The cut ends requests one after the other, and none of those that wait gets what another
// one's end frees.
func TestCutGivesNothing(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		var all []*caller
		for range 50 {
			all = append(all, b.post(chatPath, askStream(``)))
		}
		a.call(t, 1)
		b.g.Cut()
		synctest.Wait()
		if n := a.count(); n != 1 {
			t.Errorf("%d requests were handed over, want 1", n)
		}
		for _, c := range all {
			b.wantRecord(c, "failed", "shutdown")
		}
	})
}

// Nobody waits beyond his time, whoever has set it.
func TestWaitRunsOut(t *testing.T) {
	for _, test := range []struct {
		name, header, value string
		after               time.Duration
	}{
		{"the gateway", "", "", 3 * time.Second},
		{"the caller", "X-Request-Timeout", "1.5", 1500 * time.Millisecond},
		{"the caller, as a time", "X-Request-Deadline", "2000-01-01T00:00:02.25Z", 2250 * time.Millisecond},
		{"an SDK", "X-Stainless-Read-Timeout", "2", 2 * time.Second},
		{"an SDK that says nothing", "X-Stainless-Timeout", "NOT_GIVEN", 3 * time.Second},
		{"a hundred years", "X-Request-Timeout", "3155760000", 3 * time.Second},
		{"for ever", "X-Request-Timeout", "1e400", 0},
		{"a hundred years, as a time", "X-Request-Deadline", "2100-01-01T00:00:00Z", 3 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &tokenEngine{name: "a", most: 1}
			inOneWay(t, Options{Place: PlaceOptions{Queue: place.Queueing{Timeout: 3 * time.Second}}}, []any{a}, func(t *testing.T, b *bench) {
				b.post(chatPath, askStream(``))
				at := time.Now()
				var headers []string
				if test.header != "" {
					headers = []string{test.header, test.value}
				}
				c := b.post(chatPath, askStream(``), headers...)
				for c.answer().status == 0 && time.Since(at) < 10*time.Second {
					time.Sleep(time.Millisecond)
				}
				if test.after == 0 {
					c.refusal(400)
					return
				}
				within(t, "the wait", time.Since(at), test.after, test.after+10*time.Millisecond)
				c.refusal(429)
				got := c.answer().header
				if got.Get("X-Refusal-Reason") != "timeout" || got.Get("Retry-After") != "" {
					t.Errorf("headers %v: want the reason, and no hint where nobody knows when", got)
				}
				b.wantRecord(c, "rejected", "overloaded")
			})
		})
	}
}

// A time that is over, or makes no sense, is refused as the request comes; an engine that is
// free makes no difference.
func TestBadDeadlines(t *testing.T) {
	a := &tokenEngine{name: "a"}
	for _, test := range []struct {
		header, value string
		status        int
	}{
		{"X-Request-Deadline", "1999-12-31T23:59:59Z", 429},
		{"X-Request-Deadline", "0000-01-01T00:00:00Z", 429},
		{"X-Request-Deadline", "tomorrow", 400},
		{"X-Request-Timeout", "-5", 429},
		{"X-Request-Timeout", "0", 429},
		{"X-Request-Timeout", "soon", 400},
		{"X-Request-Timeout", "NaN", 400},
		{"X-Request-Timeout", strings.Repeat("9", 5000), 400},
	} {
		t.Run(test.header+" "+test.value[:min(len(test.value), 24)], func(t *testing.T) {
			inOneWay(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, askStream(``), test.header, test.value)
				e := c.refusal(test.status)
				if test.status == 400 && !strings.Contains(e.Message, test.header) {
					t.Errorf("%q does not name the header", e.Message)
				}
				if test.status == 429 && c.answer().header.Get("X-Refusal-Reason") != "timeout" {
					t.Errorf("headers %v", c.answer().header)
				}
				a.call(t, 0)
			})
		})
	}
}

// A request beyond the bounds is refused with 429. The refusal has the time until the waiting
// requests have left, by the rate of the latest ones.
func TestQueueIsBounded(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	inBubble(t, Options{Place: PlaceOptions{Queue: place.Queueing{Requests: 4}}}, []any{a}, func(t *testing.T, b *bench) {
		b.post(chatPath, askStream(``))
		for range 4 {
			b.post(chatPath, askStream(``))
		}
		c := b.post(chatPath, askStream(``))
		c.refusal(429)
		if got := c.answer().header; got.Get("X-Refusal-Reason") != "queue_full" || got.Get("Retry-After") != "" {
			t.Errorf("before anything has left: headers %v", got)
		}
		for n := range 10 {
			time.Sleep(2 * time.Second)
			serve(t, a, n+1)
			b.post(chatPath, askStream(``))
		}
		c = b.post(chatPath, askStream(``))
		if e := c.refusal(429); !strings.Contains(e.Message, "--max-queue") {
			t.Errorf("%q does not name the limit", e.Message)
		}
		if got := c.answer().header; got.Get("Retry-After") != "8" {
			t.Errorf("4 wait, of which one leaves in 2 s: Retry-After %q", got.Get("Retry-After"))
		}
		// One that could not be served in its time is refused now, and not then.
		c = b.post(chatPath, askStream(``), "X-Request-Timeout", "3")
		c.refusal(429)
		if why := b.metric("weir_queue_refused_total"); len(why) == 0 {
			t.Error("nothing is counted")
		}
	})
	inOneWay(t, Options{Place: PlaceOptions{Queue: place.Queueing{Bytes: 2000}}}, []any{a}, func(t *testing.T, b *bench) {
		b.post(chatPath, askStream(``))
		b.post(chatPath, askStream(``))
		c := b.post(chatPath, askStream(`,"user":"`+strings.Repeat("x", 2000)+`"`))
		c.refusal(429)
		if why := c.answer().header.Get("X-Refusal-Reason"); why != "queue_bytes" {
			t.Errorf("refused for %q", why)
		}
	})
}

// One that would wait in vain is refused before the work, even while there is a place for it.
func TestRefusesWhatWouldBeTooLate(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	inBubble(t, Options{}, []any{a}, func(t *testing.T, b *bench) {
		b.post(chatPath, askStream(``))
		for range 5 {
			b.post(chatPath, askStream(``))
		}
		for n := range 10 {
			time.Sleep(2 * time.Second)
			serve(t, a, n+1)
			b.post(chatPath, askStream(``))
		}
		c := b.post(chatPath, askStream(``), "X-Request-Timeout", "3")
		c.refusal(429)
		if got := c.answer().header; got.Get("X-Refusal-Reason") != "too_late" || got.Get("Retry-After") != "10" {
			t.Errorf("headers %v", got)
		}
		if n := b.record(c).Stages["queue"]; n != 0 {
			t.Errorf("it was in the queue for %v", time.Duration(n))
		}
		if c = b.post(chatPath, askStream(``), "X-Request-Timeout", "15"); c.answer().status != 0 {
			t.Error("one that has the time was refused")
		}
	})
}

// A refusal has the shape of each dialect's errors.
func TestRefusalsByDialect(t *testing.T) {
	const ask = `{"model":"` + models.SimName + `",`
	for _, test := range []struct {
		path, body string
		status     int
		member     string
	}{
		{chatPath, askChat(``), 429, "error"},
		{completionsPath, ask + `"prompt":"a b","max_tokens":4}`, 429, "error"},
		{"/v1/messages", ask + `"max_tokens":4,"messages":[{"role":"user","content":"a"}]}`, 529, "error"},
		{"/v1/responses", ask + `"input":"a b","max_output_tokens":16,"store":false}`, 429, "error"},
		{"/generate", ask + `"text":"a b","sampling_params":{"max_new_tokens":4}}`, 503, "error"},
	} {
		t.Run(test.path, func(t *testing.T) {
			a := &tokenEngine{name: "a", most: 1}
			inOneWay(t, Options{Place: PlaceOptions{Queue: place.Queueing{Requests: 1}}}, []any{a}, func(t *testing.T, b *bench) {
				b.post(chatPath, askChat(``))
				b.post(chatPath, askChat(``))
				c := b.post(test.path, test.body)
				got := c.answer()
				var e map[string]json.RawMessage
				if err := json.Unmarshal(got.body, &e); err != nil || got.status != test.status || e[test.member] == nil {
					t.Errorf("status %d, body %s", got.status, got.body)
				}
				if got.header.Get("X-Refusal-Reason") != "queue_full" || !strings.Contains(string(got.body), "--max-queue") {
					t.Errorf("headers %v, body %s", got.header, got.body)
				}
			})
		})
	}
}

// Requests that need what few engines carry keep nobody from the others, and relayed ones wait
// as those of ids do.
func TestNobodyWaitsForAnothersEngines(t *testing.T) {
	a := &tokenEngine{name: "a", most: 1}
	z := &tokenEngine{name: "z", most: 1, facts: &engine.Facts{Carries: infer.CarriesUsual}}
	r := &relayEngine{name: "r", most: 1}
	inBubble(t, Options{}, []any{a, z, r}, func(t *testing.T, b *bench) {
		scored := `,"logprobs":true`
		b.post(chatPath, askStream(scored))
		waits := b.post(chatPath, askStream(scored))
		a.call(t, 1)
		z.call(t, 0)
		b.post(chatPath, askStream(``))
		z.call(t, 1)
		relayed := strings.Replace(askStream(``), models.SimName, "relayed", 1)
		b.post(chatPath, relayed)
		second := b.post(chatPath, relayed)
		r.forward(t, 1).hangs(t)
		if second.answer().status != 0 || waits.answer().status != 0 {
			t.Error("it did not wait")
		}
		if n := b.sum("weir_queue_requests"); n != 2 {
			t.Errorf("%v wait", n)
		}
	})
}

// hangs leaves a relayed answer open.
func (f *forward) hangs(t testing.TB) {
	t.Helper()
	if f.abandoned() {
		t.Error("it was given up")
	}
}

// By cost, a request whose prompt an engine has waits for that engine although another one has
// room, and lets others by. While it waits nothing spins: virtual time would stand still.
func TestWaitsForTheEngineThatHasItsPrompt(t *testing.T) {
	a, z := &tokenEngine{name: "a", most: 1}, &tokenEngine{name: "z", most: 1}
	inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
		b.snapshot.Load().Models[models.SimName].Policy = new(balance.Cost)
		long := askStream(`,"user":"x"`)
		long = strings.Replace(long, `"content":"`, `"content":"`+strings.Repeat("a b c d ", 3000), 1)
		first := b.post(chatPath, long)
		e, other := a, z
		if a.count() == 0 {
			e, other = z, a
		}
		serve(t, e, 1) // its prompt is there now
		first.wantWhole(text(words()[0]), "stop")
		b.post(chatPath, long)
		e.call(t, 2)
		waits := b.post(chatPath, long)
		short := b.post(chatPath, askStream(``))
		e.call(t, 2)
		other.call(t, 1)
		time.Sleep(10 * time.Millisecond)
		if waits.answer().status != 0 || b.sum("weir_queue_requests") != 1 {
			t.Error("it did not wait for the engine that has its prompt")
		}
		serve(t, e, 2)
		e.call(t, 3)
		serve(t, e, 3)
		waits.wantWhole(text(words()[0]), "stop")
		serve(t, other, 1)
		short.wantWhole(text(words()[0]), "stop")
	})
}

// A crowd that waits while engines come, go and end requests: whatever happens, each that is
// served was served in its order, the engine never has more than it may, and nobody is left.
func TestQueueUnderway(t *testing.T) {
	a, z := &tokenEngine{name: "a", most: 3}, &tokenEngine{name: "z", most: 2}
	inBubble(t, Options{Place: PlaceOptions{Queue: place.Queueing{Timeout: time.Hour}}}, []any{a, z}, func(t *testing.T, b *bench) {
		open := map[*tokenEngine][]*call{}
		var all []*caller
		for round := range 60 {
			for range round % 4 {
				all = append(all, b.post(chatPath, askStream(``)))
			}
			if round%7 == 3 {
				all[len(all)-1].hangUp()
			}
			for _, e := range []*tokenEngine{a, z} {
				synctest.Wait()
				e.mu.Lock()
				var live []*call
				for _, c := range e.calls {
					if !slices.Contains(open[e], c) && !c.aborted() {
						live = append(live, c)
					}
				}
				e.mu.Unlock()
				if len(live) > e.most {
					t.Fatalf("engine %s has %d requests, and may have %d", e.name, len(live), e.most)
				}
				if len(live) > 0 && round%3 != 0 {
					open[e] = append(open[e], live[0])
					live[0].end(infer.ReasonStop, words()[0])
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		for _, e := range []*tokenEngine{a, z} {
			if ids := order(e); !slices.IsSorted(ids) {
				t.Errorf("%s was given %v", e.name, ids)
			}
		}
	})
}
