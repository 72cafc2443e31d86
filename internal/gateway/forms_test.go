package gateway

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/models"
)

// unknownField is of no table of weir's: only an engine that is relayed may know it.
const unknownField = `,"engines_own":1`

// mixed is a model with an engine that takes ids and one that is relayed.
func mixed(t *testing.T, opts Options, f func(t *testing.T, b *bench, ids *tokenEngine, relay *relayEngine)) {
	ids, relay := &tokenEngine{name: "ids"}, &relayEngine{name: "relay", beside: true, polled: true}
	inBubble(t, opts, []any{ids, relay}, func(t *testing.T, b *bench) {
		ids.calls, relay.forwards = nil, nil
		f(t, b, ids, relay)
	})
}

// latest gives what the relay was handed last, of n in all.
func (e *relayEngine) latest(t *testing.T, n int) *forward {
	t.Helper()
	synctest.Wait()
	all := e.handed()
	if len(all) != n {
		t.Fatalf("engine %s was handed %d requests, want %d", e.name, len(all), n)
	}
	return all[n-1]
}

// Requests go to engines of both forms, and each is given its own.
func TestBothForms(t *testing.T) {
	mixed(t, Options{}, func(t *testing.T, b *bench, ids *tokenEngine, relay *relayEngine) {
		for range 4 {
			before, relayed := ids.count(), len(relay.handed())
			c := b.post(chatPath, askStream(``))
			synctest.Wait()
			if ids.count() > before {
				ids.call(t, before+1).end(infer.ReasonStop, words()[0])
				c.wantWhole(text(words()[0]), "stop")
				continue
			}
			f := relay.latest(t, relayed+1)
			if got := string(f.req.Body); got != askStream(``) {
				t.Errorf("the relay was given %s", got)
			}
			f.send(relayedChat("a"))
			f.end()
			c.wantWhole("a", "stop")
		}
		if ids.count() != 2 || len(relay.handed()) != 2 {
			t.Errorf("%d and %d requests, want 2 each", ids.count(), len(relay.handed()))
		}
	})
}

// relayedChat is a whole stream of a chat's answer.
func relayedChat(content string) string {
	const head = `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":`
	return head + `{"role":"assistant","content":"` + content + `"},"finish_reason":null}]}` + "\n\n" + head + `{},"finish_reason":"stop"}]}` + "\n\ndata: [DONE]\n\n"
}

// Before the first byte an attempt in the other form follows one that has failed, either
// way round, and the client sees its answer alone.
func TestRetriesInTheOtherForm(t *testing.T) {
	mixed(t, Options{}, func(t *testing.T, b *bench, ids *tokenEngine, relay *relayEngine) {
		down := func(context.Context, *forward) (*engine.RelayResponse, error) {
			return nil, &infer.Error{Code: infer.CodeUnavailable, Engine: "relay", Retryable: true, NotRun: true, Message: "refused"}
		}
		for range 2 { // in turn: whichever is asked first, the other one answers
			relay.reply = down
			c := b.post(chatPath, askStream(`,"user":"u"`))
			first := ids.call(t, ids.countAfter())
			first.end(infer.ReasonStop, words()[0])
			c.wantWhole(text(words()[0]), "stop")
			if got := c.answer().header.Get(prepare.IgnoredHeader); got != "user" {
				t.Errorf("answered from ids, ignored %q", got)
			}
		}
		relay.reply = nil
		fails := 0
		for range 2 {
			before, relayed := ids.count(), len(relay.handed())
			c := b.post(chatPath, askStream(`,"user":"u"`))
			synctest.Wait()
			if ids.count() > before {
				fails++
				ids.call(t, before+1).fail(infer.CodeEngine, true, words()[3])
			}
			f := relay.latest(t, relayed+1)
			if got := string(f.req.Body); got != askStream(`,"user":"u"`) {
				t.Errorf("the relay was given %s", got)
			}
			f.send(relayedChat("b"))
			f.end()
			c.wantWhole("b", "stop")
			if got := c.answer().header.Get(prepare.IgnoredHeader); got != "" {
				t.Errorf("relayed, and %q is said to be left out", got)
			}
			b.wantRecord(c, "finished", "")
		}
		if fails != 1 {
			t.Errorf("%d of 2 were given to the engine of ids first, want 1", fails)
		}
	})
}

// countAfter gives how many requests the engine was handed once all is settled.
func (e *tokenEngine) countAfter() int {
	synctest.Wait()
	return e.count()
}

// A request that needs what engines of one form carry goes to those, and is refused only
// where neither does.
func TestNarrowedToAForm(t *testing.T) {
	ids := lacking("ids", infer.Lack{What: infer.CarriesGuides, Why: "has no grammar"})
	relay := &relayEngine{name: "relay", beside: true, lacks: []infer.Lack{{What: infer.SpelledSuffix, Why: "is a relay without suffixes"}}, reply: held}
	inBubble(t, Options{}, []any{ids, relay}, func(t *testing.T, b *bench) {
		ids.calls, relay.forwards = nil, nil
		relayed := 0
		for _, test := range []struct{ path, body string }{
			{chatPath, askChat(unknownField)},                              // in no table
			{chatPath, askChat(schemaField)},                               // that no engine of ids carries here
			{completionsPath, askText(`,"echo":true`)},                     // that none does anywhere
			{chatPath, askChat(`,"max_tokens":9000000`)},                   // too much for the context that the folder has
			{"/v1/embeddings", `{"model":"weir-sim","input":"a"}`},         // a path of relays only
			{"/v1/messages/count_tokens", askMessage(`,"engines_own":{}`)}, // that weir would answer itself
		} {
			for range 2 {
				relayed++
				c := b.post(test.path, test.body)
				f := relay.latest(t, relayed)
				f.replies("200", `{"ok":true}`)
				if a := c.answer(); a.status != 200 || string(a.body) != `{"ok":true}` {
					t.Errorf("%s %s: status %d, %s", test.path, test.body, a.status, a.body)
				}
			}
		}
		for range 2 {
			c := b.post("/generate", `{"model":"weir-sim","text":"a"}`) // a path of ids only
			ids.call(t, ids.countAfter()).end(infer.ReasonStop, words()[0])
			if a := c.answer(); a.status != 200 {
				t.Errorf("/generate: status %d, %s", a.status, a.body)
			}
		}
		if n := ids.count(); n != 2 {
			t.Errorf("the engine of ids was handed %d requests", n)
		}
		if a := b.post("/v1/messages/count_tokens", `{"model":"weir-sim","messages":[{"role":"user","content":"a"}]}`).answer(); a.status != 200 || !strings.Contains(string(a.body), "input_tokens") {
			t.Errorf("count: status %d, %s", a.status, a.body)
		}
		if a := b.post("/tokenize", `{"model":"weir-sim","prompt":"a"}`).answer(); a.status != 200 || !strings.Contains(string(a.body), `"tokens"`) {
			t.Errorf("tokenize: status %d, %s", a.status, a.body)
		}
		e := b.post(completionsPath, askText(`,"suffix":"z"`)).refusal(400)
		if e.Param == nil || *e.Param != "suffix" || !strings.Contains(e.Message, "suffix is not supported by engine kind") || !strings.Contains(e.Message, "is a relay without suffixes") {
			t.Errorf("neither carries it: %+v", e)
		}
	})
}

// A request that only absent engines of one form carry waits for them, as for any engine, and is
// then refused with the reason. It holds up nobody.
func TestOnlyTheOtherFormIsThere(t *testing.T) {
	mixed(t, Options{Place: PlaceOptions{EngineTimeout: time.Second}}, func(t *testing.T, b *bench, ids *tokenEngine, relay *relayEngine) {
		b.publish(ids)
		m := b.snapshot.Load().Models[models.SimName]
		m.Relayed, m.Awaited = route.Side{Kind: "openai", Carries: infer.CarriesAnything}, true // it is known, and down
		waits := b.post(chatPath, askChat(unknownField))
		time.Sleep(time.Minute)
		e := waits.refusal(503)
		if !strings.Contains(e.Message, "engines_own") || !strings.Contains(e.Message, "relayed") {
			t.Errorf("%+v", e)
		}
		c := b.post(chatPath, askStream(``))
		ids.call(t, 1).end(infer.ReasonStop, words()[0])
		c.wantWhole(text(words()[0]), "stop")
	})
}

// A request that must be relayed waits for room at relays only, and those behind it that have
// both forms go by it.
func TestFormsDoNotBlockEachOther(t *testing.T) {
	ids, relay := &tokenEngine{name: "ids", most: 1}, &relayEngine{name: "relay", beside: true, most: 1}
	inBubble(t, Options{}, []any{ids, relay}, func(t *testing.T, b *bench) {
		ids.calls, relay.forwards = nil, nil
		first := b.post(chatPath, askStream(unknownField))
		busy := relay.latest(t, 1)
		waits := b.post(chatPath, askStream(unknownField))
		for n := 1; n <= 3; n++ {
			c := b.post(chatPath, askStream(``))
			ids.call(t, n).end(infer.ReasonStop, words()[0])
			c.wantWhole(text(words()[0]), "stop")
		}
		if n := len(relay.handed()); n != 1 {
			t.Fatalf("the relay, which takes one at once, was handed %d", n)
		}
		busy.send(relayedChat("a"))
		busy.end()
		first.wantWhole("a", "stop")
		f := relay.latest(t, 2)
		f.send(relayedChat("b"))
		f.end()
		waits.wantWhole("b", "stop")
	})
}

// A prompt that is known by its ids is not believed to be at a relay, nor the reverse: the same
// prompt is resident where it was served, in whichever form, and nowhere else.
func TestPrefixesOfForms(t *testing.T) {
	mixed(t, Options{}, func(t *testing.T, b *bench, ids *tokenEngine, relay *relayEngine) {
		relay.reply = held
		body := `{"model":"weir-sim","messages":[{"role":"user","content":"` + strings.Repeat("word after word ", 100) + `"}]}`
		m := b.snapshot.Load().Models[models.SimName]
		resident := func() (atIDs, atRelay, length int) {
			t.Helper()
			turns := m.Policy
			m.Policy = new(balance.Cost) // which compares them
			rec, _, err := b.g.Explain(t.Context(), chatPath, nil, []byte(body))
			if m.Policy = turns; err != nil {
				t.Fatal(err)
			}
			c := &rec.Attempts[0].Choice
			for _, o := range c.Best {
				if o.Engine == "ids" {
					atIDs = int(o.Resident)
				} else {
					atRelay = int(o.Resident)
				}
			}
			return atIDs, atRelay, int(c.Length)
		}
		if i, r, _ := resident(); i != 0 || r != 0 {
			t.Fatalf("%d and %d tokens are resident before anything was sent", i, r)
		}
		answered := map[string]bool{}
		for range 2 {
			before := ids.count()
			c := b.post(chatPath, body)
			if synctest.Wait(); ids.count() > before {
				ids.call(t, before+1).end(infer.ReasonStop, words()[0])
				answered["ids"] = true
			} else {
				relay.latest(t, 1).replies("200", `{"choices":[],"usage":{"prompt_tokens":1500,"completion_tokens":1}}`)
				answered["relay"] = true
			}
			c.answer()
			i, r, length := resident()
			if (i > 0) != answered["ids"] || (r > 0) != answered["relay"] {
				t.Errorf("served at %v, and %d and %d tokens are resident", answered, i, r)
			}
			for _, n := range []int{i, r} {
				if n > 0 && (n < length/2 || n >= length) {
					t.Errorf("%d of %d tokens are resident", n, length)
				}
			}
		}
		if len(answered) != 2 {
			t.Errorf("only %v were asked", answered)
		}
	})
}

// Matches of text are in blocks of ids, rounded down, and never more than the prompt.
func TestMatchesOfText(t *testing.T) {
	mixed(t, Options{}, func(t *testing.T, b *bench, _ *tokenEngine, _ *relayEngine) {
		snap := b.snapshot.Load()
		m := snap.Models[models.SimName]
		at := map[bool]*route.Books{}
		for _, target := range m.Targets {
			at[target.Relay != nil] = target.Books
		}
		texts, blocks := []kvindex.Block{1, 2, 3}, []kvindex.Block{11, 12, 13, 14, 15, 16, 17, 18}
		at[true].Place(texts[:2], 0)
		at[false].Place(blocks[:3], 0)
		var c route.Choice
		p := route.Prompt{Blocks: blocks, Length: 130, ByIDs: true, Text: texts, TextTokens: 40}
		m.Match(snap.Index, &c, &p, 1)
		if got := c.Request.Matches.Of(at[true].Cache.ID).Resident; got != 5 { // of 80 tokens
			t.Errorf("%d blocks at the relay, want 5", got)
		}
		if got := c.Request.Matches.Of(at[false].Cache.ID).Resident; got != 3 {
			t.Errorf("%d blocks at the engine of ids, want 3", got)
		}
		p.TextTokens = 4000
		m.Match(snap.Index, &c, &p, 1)
		if got := c.Request.Matches.Of(at[true].Cache.ID).Resident; got != 8 {
			t.Errorf("%d blocks at the relay, want all 8", got)
		}
	})
}

// The caller's bytes are kept for another attempt, and let go of when the answer begins.
func TestFormsAreForgotten(t *testing.T) {
	mixed(t, Options{}, func(t *testing.T, b *bench, ids *tokenEngine, relay *relayEngine) {
		for ids.count() == 0 {
			b.post(chatPath, askStream(``))
			synctest.Wait()
		}
		var x *exchange
		for _, s := range b.g.recorder.Streams() {
			if of := s.(*exchange); of.try.Target.Tokens != nil {
				x = of
			}
		}
		if x.prepared.Body == nil || x.prepared.Request == nil {
			t.Error("a form is gone before the answer has begun")
		}
		ids.call(t, 1).send(words()[0])
		if x.prepared.Body != nil || x.prepared.Head.Body != nil || x.prepared.IDs != nil {
			t.Error("a form is kept although the answer has begun")
		}
		ids.call(t, 1).end(infer.ReasonStop)
		for _, f := range relay.handed() {
			f.send(relayedChat("a"))
			f.end()
		}
	})
}
