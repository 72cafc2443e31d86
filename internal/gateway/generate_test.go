package gateway

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"weir/internal/gateway/attempt"
	"weir/internal/gateway/drive"
	"weir/internal/infer"
	"weir/internal/trace"
)

// A streamed chat: the role first, each token as it comes, then the reason,
// the usage and the end marker.
func TestStreamedChat(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		w := words()
		c := b.post(chatPath, askStream(`,"max_tokens":5,"seed":7,"stream_options":{"include_usage":true}`))
		call := e.call(t, 1)
		if got := c.answer(); got.status != 0 {
			t.Fatalf("status %d before the engine has said anything", got.status)
		}
		if r := call.req; r.MaxTokens != 5 || r.Sampling.Seed == nil || *r.Sampling.Seed != 7 || len(r.Prompt) == 0 {
			t.Errorf("the engine was asked for %+v", r)
		}
		for i := range 4 {
			call.send(w[i])
			// Each token is with the client before the next one exists: nothing
			// is held, the first least of all.
			s := c.story()
			if s.text != text(w[:i+1]...) || s.finish != "" || s.whole {
				t.Fatalf("after token %d the client has %q, finish %q", i, s.text, s.finish)
			}
		}
		f := ending(infer.ReasonLength)
		f.CachedTokens = 2
		call.offer(w[4:5], f)
		s := c.wantWhole(text(w[:5]...), "length")
		if got := s.header.Get("Content-Type"); got != "text/event-stream" {
			t.Errorf("Content-Type %q", got)
		}
		if first := s.events[0].Choices[0].Delta; first.Role != "assistant" || first.Content != "" {
			t.Errorf("first event %+v", s.events[0])
		}
		// Role, five texts, reason, usage.
		if len(s.events) != 8 {
			t.Errorf("%d events, want 8", len(s.events))
		}
		for _, o := range s.events {
			if o.ID != "chatcmpl-"+c.id || o.Object != "chat.completion.chunk" || o.Model != "weir-sim" {
				t.Errorf("event %+v", o)
			}
		}
		prompt := len(call.req.Prompt)
		if u := s.usage; u == nil || u.Prompt != prompt || u.Completion != 5 || u.Total != prompt+5 || u.Details == nil || u.Details.Cached != 2 {
			t.Errorf("usage %+v", s.usage)
		}
		if last := s.events[len(s.events)-1]; len(last.Choices) != 0 {
			t.Errorf("the usage came with choices: %+v", last)
		}
		r := b.wantRecord(c, "finished", "")
		if r.Completion != 5 || r.Prompt != prompt || r.Cached != 2 || r.Status != 200 || r.Writes != 5 || r.BytesOut != len(s.body) {
			t.Errorf("record %+v; the body has %d bytes", r, len(s.body))
		}
		if call.aborted() {
			t.Error("a generation that ended by itself was aborted")
		}
	})
}

// An engine that claims to have had more of a prompt than there is has had all of it.
func TestMoreCachedThanThereIs(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		call := e.call(t, 1)
		f := ending(infer.ReasonStop)
		f.CachedTokens = 1 << 20
		call.offer(words()[:2], f)
		c.wantWhole(text(words()[:2]...), "stop")
		s := b.snapshot.Load().Engines[0].Ranks[0].Books.Shares
		if told, reported := s.Told.Load(), s.Reported.Load(); told != int64(len(call.req.Prompt)) || reported != told {
			t.Errorf("of %d tokens %d were cached", told, reported)
		}
	})
}

func TestStreamedWithoutUsage(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		e.call(t, 1).end(infer.ReasonStop, words()[:2]...)
		s := c.wantWhole(text(words()[:2]...), "stop")
		if s.usage != nil || strings.Contains(string(s.body), "usage") {
			t.Errorf("usage that nobody asked for: %s", s.body)
		}
	})
}

func TestWholeAnswer(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		w := words()
		for i, test := range []struct{ path, body, object, prefix string }{
			{chatPath, askChat(`,"max_tokens":9`), "chat.completion", "chatcmpl-"},
			{completionsPath, askText(`,"max_tokens":9`), "text_completion", "cmpl-"},
		} {
			c := b.post(test.path, test.body)
			call := e.call(t, i+1)
			call.send(w[:3]...)
			if got := c.answer(); got.status != 0 {
				t.Fatalf("status %d before the answer is whole", got.status)
			}
			call.end(infer.ReasonStop, w[3])
			o := c.whole()
			if o.Object != test.object || o.ID != test.prefix+c.id || *o.Choices[0].FinishReason != "stop" {
				t.Errorf("answer %+v", o)
			}
			if got := o.Choices[0].Text + o.Choices[0].Message.Content; got != text(w[:4]...) {
				t.Errorf("text %q, want %q", got, text(w[:4]...))
			}
			if o.Usage == nil || o.Usage.Completion != 4 || o.Usage.Prompt != len(call.req.Prompt) || o.Usage.Details != nil {
				t.Errorf("usage %+v", o.Usage)
			}
			if r := b.wantRecord(c, "finished", ""); r.Writes != 1 {
				t.Errorf("%d writes", r.Writes)
			}
		}
	})
}

func TestStreamedCompletion(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(completionsPath, askText(`,"stream":true,"max_tokens":3`))
		call := e.call(t, 1)
		if got := call.req.Prompt; len(got) != 3 || got[0] != 300 || got[2] != 302 {
			t.Errorf("prompt %v", got)
		}
		call.send(words()[0])
		call.end(infer.ReasonStop)
		s := c.wantWhole(text(words()[0]), "stop")
		if len(s.events) != 2 || s.events[0].Object != "text_completion" {
			t.Errorf("events %+v", s.events)
		}
	})
}

// An answer may end before its first token.
func TestEmptyAnswer(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		e.call(t, 1).end(infer.ReasonStop)
		c.wantWhole("", "stop")
		d := b.post(chatPath, askChat(``))
		e.call(t, 2).end(infer.ReasonStop)
		if o := d.whole(); o.Choices[0].Message.Content != "" || o.Usage.Completion != 0 {
			t.Errorf("answer %+v", o)
		}
	})
}

// A connection serves one request after the other, streamed or not.
func TestKeepAlive(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		w := words()
		c := b.dial(0)
		for i := range 6 {
			if i%2 == 0 {
				c.send("POST", chatPath, askStream(``))
				e.call(t, i+1).end(infer.ReasonStop, w[i])
				c.wantWhole(text(w[i]), "stop")
			} else {
				c.send("POST", chatPath, askChat(``))
				e.call(t, i+1).end(infer.ReasonStop, w[i])
				c.whole()
			}
			b.wantRecord(c, "finished", "")
		}
	})
}

// A rune that several tokens make up is never split, whether they come one by
// one or merged.
func TestRuneAcrossTokens(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		call := e.call(t, 1)
		ids := tokensOf(t, "\xf0", "\x9f", "\x8c", "\x8a")
		for i, id := range ids {
			call.send(id)
			want := ""
			if i == 3 {
				want = "\U0001F30A"
			}
			if s := c.story(); s.text != want {
				t.Fatalf("after byte %d the client has %q", i, s.text)
			}
		}
		// The rest of a cut rune at the end becomes a replacement character.
		call.send(ids[:2]...)
		call.end(infer.ReasonLength)
		c.wantWhole("\U0001F30A\uFFFD", "length")
	})
}

// A stop string cuts text and usage where it completes, however tokens and
// deltas cut it; the engine is told to stop, and what it still sends is
// dropped.
func TestStopStrings(t *testing.T) {
	parts := []string{"a", "b", "S", "T", "O", "P", "c", "d"}
	for _, test := range []struct {
		name   string
		deltas []int // tokens in each; the rest is sent after the stop
		stream bool
	}{
		{"one token each", []int{1, 1, 1, 1, 1, 1}, true},
		{"all in one", []int{8}, true},
		{"cut inside", []int{4, 4}, true},
		{"cut before and after", []int{2, 4}, true},
		{"not streamed", []int{3, 4}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := &tokenEngine{name: "a"}
			inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
				ids := tokensOf(t, parts...)
				fields := `,"stop":["nope","STOP"],"max_tokens":50`
				if test.stream {
					fields += `,"stream":true,"stream_options":{"include_usage":true}`
				}
				c := b.post(chatPath, askChat(fields))
				call := e.call(t, 1)
				for _, n := range test.deltas {
					if call.aborted() {
						t.Fatal("aborted before the stop string was complete")
					}
					call.send(ids[:n]...)
					ids = ids[n:]
				}
				if !call.aborted() {
					t.Fatal("the engine was not told to stop")
				}
				call.send(ids...)
				call.end(infer.ReasonAbort)
				var u *usage
				if test.stream {
					u = c.wantWhole("ab", "stop").usage
				} else {
					o := c.whole()
					u = o.Usage
					if o.Choices[0].Message.Content != "ab" || *o.Choices[0].FinishReason != "stop" {
						t.Errorf("answer %+v", o)
					}
				}
				// The six tokens up to the one that completed it.
				if u == nil || u.Completion != 6 {
					t.Errorf("usage %+v, want 6 tokens", u)
				}
				if r := b.wantRecord(c, "finished", ""); r.Completion != 6 {
					t.Errorf("record has %d tokens, want 6", r.Completion)
				}
			})
		})
	}
}

// Text that might begin a stop string is held, and given out when it does not.
func TestStopStringHeldBack(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(`,"stop":"STOP"`))
		call := e.call(t, 1)
		call.send(tokensOf(t, "a", "S", "T")...)
		if s := c.story(); s.text != "a" {
			t.Fatalf("the client has %q while STOP may come", s.text)
		}
		call.send(tokensOf(t, "b")...)
		if s := c.story(); s.text != "aSTb" {
			t.Fatalf("the client has %q", s.text)
		}
		call.end(infer.ReasonStop, tokensOf(t, "S", "T")...)
		c.wantWhole("aSTbST", "stop")
	})
}

// A stop string in the delta that ends the generation needs no abort, and the
// engine's own count of cached tokens is kept.
func TestStopStringInTheLastDelta(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(`,"stop":"STOP","stream_options":{"include_usage":true}`))
		call := e.call(t, 1)
		f := ending(infer.ReasonLength)
		f.CachedTokens = 3
		call.offer(tokensOf(t, "a", "S", "T", "O", "P", "b"), f)
		s := c.wantWhole("a", "stop")
		if s.usage == nil || s.usage.Completion != 5 || s.usage.Details == nil || s.usage.Details.Cached != 3 {
			t.Errorf("usage %+v", s.usage)
		}
		if call.aborted() {
			t.Error("a generation that has ended was aborted")
		}
	})
}

// The id that ended an answer is counted, and its text is left out; an id of that
// kind that did not end it is text.
func TestStopIDHasNoText(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		ids := tokensOf(t, "a", "b", "c")
		stop := fmt.Sprintf(`,"stop_token_ids":[%d],"stream_options":{"include_usage":true}`, ids[2])
		for i, test := range []struct {
			fields, text string
			reason       infer.Reason
			last         int
		}{
			{stop, "ab", infer.ReasonStop, 3},
			{stop, "abc", infer.ReasonLength, 3},
			{stop, "ab", infer.ReasonStop, 2}, // ended by something else
			{`,"stream_options":{"include_usage":true}`, "abc", infer.ReasonStop, 3},
		} {
			c := b.post(chatPath, askStream(test.fields))
			call := e.call(t, i+1)
			call.send(ids[0])
			call.end(test.reason, ids[1:test.last]...)
			if s := c.wantWhole(test.text, string(test.reason)); s.usage == nil || s.usage.Completion != test.last {
				t.Errorf("%+v: usage %+v", test, s.usage)
			}
		}
	})
}

// While a client does not take what is written, what comes in merges without
// loss: one event when it reads on.
func TestMergesUnderABlockedClient(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		w := words()[:400]
		c := b.dial(1 << 10)
		c.send("POST", chatPath, askStream(`,"max_tokens":400`))
		call := e.call(t, 1)
		sent := 0
		for b.g.Pending() == 0 { // until the handler is stuck in a write
			if sent == 399 {
				t.Fatal("a client that reads nothing blocks no write")
			}
			call.send(w[sent])
			sent++
		}
		wrote := sent // at most that many writes so far
		for ; sent < 399; sent++ {
			call.send(w[sent])
		}
		if n := b.g.Pending(); n != 1 {
			t.Errorf("%d streams have output pending, want 1", n)
		}
		call.end(infer.ReasonLength, w[399])
		for range 100 { // each reading frees the window once
			c.answer()
		}
		s := c.wantWhole(text(w...), "length")
		// The role, a token an event while nothing was stuck, all the rest as
		// one, the reason.
		if len(s.events) > wrote+3 {
			t.Errorf("%d events, of which %d before the client was stuck", len(s.events), wrote)
		}
		if r := b.wantRecord(c, "finished", ""); r.Completion != 400 || r.Writes > wrote+1 {
			t.Errorf("%d tokens in %d writes", r.Completion, r.Writes)
		}
	})
}

// An engine that says it aborted what nobody asked it to abort has not given a
// whole answer: before the first byte another engine may, after it the client
// is told.
func TestAbortNobodyAskedFor(t *testing.T) {
	a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
	inBubble(t, Options{Attempt: attempt.Options{Continue: attempt.Continuing{Off: true}}}, []any{a, z}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		call := a.call(t, 1)
		call.send(words()[0])
		call.end(infer.ReasonAbort)
		c.wantBroken(text(words()[0]), "engine_error")
		b.wantRecord(c, "failed", "engine")

		d := b.post(chatPath, askStream(``))
		z.call(t, 1).end(infer.ReasonAbort)
		a.call(t, 2).end(infer.ReasonStop, words()[1])
		d.wantWhole(text(words()[1]), "stop")
	})
}

// Between Begin and End what a reader offers gathers; nothing is lost when
// readers overlap or what is queued is not theirs.
func TestBatch(t *testing.T) {
	batch := new(drive.Batch)
	a := &tokenEngine{name: "a"}
	inBubble(t, Options{Stream: drive.Options{Batch: batch}}, []any{a}, func(t *testing.T, b *bench) {
		w := words()
		c, d := b.post(chatPath, askStream(``)), b.post(chatPath, askStream(``))
		one, two := a.call(t, 2), a.handed()[0]
		if one == two {
			t.Fatal("one call twice")
		}
		one.send(w[0])
		two.send(w[0])
		gathers := b.g.front.Returned().Serving.Load() // streams are driven
		first, second := batch.Reader("weir"), batch.Reader("weir")
		first.Begin(trace.Now())
		second.Begin(trace.Now())
		one.send(w[1])
		one.send(w[2])
		synctest.Wait()
		if got := d.story().text; gathers != (got == text(w[0])) {
			t.Errorf("readers are at it, and the client has %q", got)
		}
		two.send(w[1])
		second.End(1)
		first.End(1)
		synctest.Wait()
		for _, c := range []*caller{c, d} {
			if got := c.story().text; !strings.HasPrefix(got, text(w[0], w[1])) {
				t.Errorf("no reader is at it, and the client has %q", got)
			}
		}
		one.end(infer.ReasonStop)
		two.end(infer.ReasonStop)
	})
}
