package gateway

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weir/internal/gateway/prepare"
	"weir/internal/gateway/record"
	"weir/internal/infer"
	"weir/internal/trace"
	"weir/models"
)

// occupy takes the pool's worker for a time.
func (b *bench) occupy(d time.Duration, cost int) {
	go func() {
		if _, err := b.g.preparer.Pool.Run(b.t.Context(), cost, func() { time.Sleep(d) }); err != nil {
			b.t.Error(err)
		}
	}()
	synctest.Wait()
}

// large is a chat of many words.
func large(model string, size int) string {
	return `{"model":"` + model + `","max_tokens":8,"messages":[{"role":"user","content":"` + strings.Repeat("word ", size/5) + `"}]}`
}

// A large body is decoded, rendered and tokenized in the pool: it waits where
// a small one does not, once for the decision and once for the work, and what
// it waited is in its record.
func TestLargeBodiesWait(t *testing.T) {
	e, r := &tokenEngine{name: "a"}, &relayEngine{name: "r"}
	inBubble(t, Options{}, []any{e, r}, func(t *testing.T, b *bench) {
		b.occupy(time.Second, 1)
		small := b.post(chatPath, large("gpt-9", 1000))
		small.refusal(404)
		unknown := b.post(chatPath, large("gpt-9", 100_000))
		relayed := b.post("/v1/embeddings", large("relayed", 100_000))
		tokens := b.post(chatPath, large(models.SimName, 200_000))
		time.Sleep(2 * time.Second)
		unknown.refusal(404)
		f := r.forward(t, 1)
		f.send("data: {}\n\n")
		f.end()
		relayed.answer()
		e.call(t, 1).end(infer.ReasonStop)
		tokens.answer()
		if got := b.wantRecord(small, "rejected", "not_found"); got.total() != 0 || got.Stages["pool_wait"] != 0 {
			t.Errorf("a small body took %v, stages %v", got.total(), got.Stages)
		}
		for _, c := range []struct {
			*caller
			outcome, code string
		}{{unknown, "rejected", "not_found"}, {relayed, "finished", ""}, {tokens, "finished", ""}} {
			got := b.wantRecord(c.caller, c.outcome, c.code)
			if got.Stages["pool_wait"] != int64(time.Second) {
				t.Errorf("stages %v", got.Stages)
			}
		}
		if s := b.g.preparer.Pool.Stats(); s.Completed != 5 { // occupy, three decisions, one prompt
			t.Errorf("pool: %+v", s)
		}
	})
}

// A request whose wait for the pool would be longer than it may be is refused
// before any work, with a hint.
func TestPoolRefuses(t *testing.T) {
	e := &tokenEngine{name: "a"}
	opts := Options{}
	opts.Prepare.Pool.MaxWait = 2 * time.Second
	inBubble(t, opts, []any{e}, func(t *testing.T, b *bench) {
		b.occupy(10*time.Second, 1000) // 10 ms a byte
		time.Sleep(10 * time.Second)
		b.occupy(time.Second, 1) // and busy again
		ask := func(words int) *caller {
			return b.post(completionsPath, `{"model":"`+models.SimName+`","max_tokens":4,"prompt":"`+strings.Repeat("word ", words)+`"}`)
		}
		first, waits, over := ask(1), ask(100), ask(1)
		if err := over.refusal(503); err.code() != "deadline_exceeded" {
			t.Errorf("error %+v", err)
		}
		if got := over.answer().header.Get("Retry-After"); got != "5" {
			t.Errorf("Retry-After %q", got)
		}
		time.Sleep(2 * time.Second)
		e.call(t, 2)
		for _, call := range e.handed() {
			call.end(infer.ReasonStop)
		}
		for _, c := range []*caller{first, waits} {
			c.answer()
			b.wantRecord(c, "finished", "")
		}
		if got := b.wantRecord(over, "rejected", "deadline"); got.total() != 0 {
			t.Errorf("refused after %v", got.total())
		}
	})
}

// A client that leaves while its prompt is in the pool costs no more work, and
// no engine hears of it.
func TestHangUpInPool(t *testing.T) {
	for _, stage := range []trace.Stage{trace.Parse, trace.Render, trace.Tokenize} {
		e := &tokenEngine{name: "a"}
		opts := Options{Record: record.Options{StageDelay: map[trace.Stage]time.Duration{stage: time.Second}}}
		inBubble(t, opts, []any{e}, func(t *testing.T, b *bench) {
			c := b.post(chatPath, large(models.SimName, 100_000))
			time.Sleep(time.Second / 2)
			c.hangUp()
			time.Sleep(time.Second)
			if got := b.wantRecord(c, "cancelled", "cancelled"); got.total() > time.Second || got.Prompt != 0 {
				t.Errorf("%v: took %v, %d prompt tokens", stage, got.total(), got.Prompt)
			}
			if len(e.handed()) != 0 {
				t.Errorf("%v: the engine was called", stage)
			}
		})
	}
}

// Prompts that are sent again are found, and the metrics say so.
func TestPrefixMetrics(t *testing.T) {
	e := &tokenEngine{name: "a"}
	inBubble(t, Options{}, []any{e}, func(t *testing.T, b *bench) {
		for n := range 3 {
			c := b.post(chatPath, large(models.SimName, 5000))
			e.call(t, n+1).end(infer.ReasonStop)
			c.answer()
		}
		tokens, reused := b.sum("weir_prefix_tokens_total"), b.sum("weir_prefix_reused_tokens_total")
		if tokens < 3000 || reused < 0.6*tokens || reused > 0.67*tokens {
			t.Errorf("%v of %v tokens reused", reused, tokens)
		}
		if lookups, hits := b.sum("weir_prefix_lookups_total"), b.sum("weir_prefix_hits_total"); lookups != 3 || hits != 2 {
			t.Errorf("%v hits in %v look-ups", hits, lookups)
		}
		if held := b.sum("weir_prefix_bytes"); held < 5000 || b.sum("weir_prefix_entries") != 1 {
			t.Errorf("%v bytes held", held)
		}
	})
	inBubble(t, Options{Prepare: prepare.Options{PrefixCache: -1}}, []any{&tokenEngine{name: "a"}}, func(t *testing.T, b *bench) {
		if len(b.metric("weir_prefix_bytes")) != 0 {
			t.Error("there is a cache")
		}
	})
}
