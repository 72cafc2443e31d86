package gateway

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/retry"
	"weir/internal/gateway/attempt"
	"weir/internal/gateway/place"
	"weir/internal/gateway/prepare"
	"weir/internal/infer"
	"weir/models"
)

// faults end a stream's attempt in each way that another engine can go on behind. Each gives
// what the attempt's leg has ended as.
var streamFaults = []struct {
	name, leg, why string
	happen         func(c *call)
}{
	{"lost", "engine", "lost", func(c *call) { c.fail(infer.CodeEngine, true) }},
	{"lost with the last ids", "engine", "lost", func(c *call) { c.fail(infer.CodeEngine, true, words()[3]) }},
	{"gave up", "engine", "lost", func(c *call) { c.end(infer.ReasonAbort) }},
	{"silent", "deadline", "silence", func(*call) { time.Sleep(time.Minute); synctest.Wait() }},
	{"wrong count", "integrity", "integrity", func(c *call) { c.raw(words()[9:10], 77, nil); synctest.Wait() }},
	{"wrong count behind good ids", "integrity", "integrity", func(c *call) {
		c.offer(words()[3:4], nil)
		c.raw(words()[9:10], 77, nil)
		synctest.Wait()
	}},
}

// A stream whose engine fails goes on at another one exactly behind what its client has, and
// its usage is that of one answer.
func TestContinuation(t *testing.T) {
	for _, f := range streamFaults {
		t.Run(f.name, func(t *testing.T) {
			a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
			inBubble(t, Options{Attempt: attempt.Options{IdleTimeout: time.Minute}}, []any{a, z}, func(t *testing.T, b *bench) {
				c := b.post(chatPath, askStream(`,"max_tokens":20,"min_tokens":6,"stream_options":{"include_usage":true}`))
				first := a.call(t, 1)
				prompt := slices.Clone(first.req.Prompt)
				first.send(words()[0])
				first.send(words()[1:3]...)
				f.happen(first)
				time.Sleep(time.Second)
				second := z.call(t, 1)
				given := len(second.req.Prompt) - len(prompt)
				if want := append(prompt, words()[:given]...); given < 3 || given > 4 || !slices.Equal(second.req.Prompt, want) {
					t.Fatalf("the other engine is asked with %v, want %v", second.req.Prompt, want)
				}
				if r := second.req; r.MaxTokens != 20-given || r.MinTokens != 6-given || r.Model != "m" && r.Model == "" {
					t.Errorf("at most %d, at least %d tokens are left of 20 and 6 after %d", r.MaxTokens, r.MinTokens, given)
				}
				if !first.aborted() {
					t.Error("the first attempt was not aborted")
				}
				first.offer(words()[11:12], nil) // comes too late
				second.send(words()[given:6]...)
				second.end(infer.ReasonStop, words()[6])
				s := c.wantWhole(text(words()[:7]...), "stop")
				if s.usage == nil || s.usage.Prompt != len(prompt) || s.usage.Completion != 7 || s.continued != 1 {
					t.Errorf("usage %+v, continued %d times", s.usage, s.continued)
				}
				r := b.wantRecord(c, "finished", "")
				wantLegs(t, r, "a "+f.leg, "z finished")
				if n := b.sum("weir_continuations_total"); n != 1 {
					t.Errorf("%v continuations", n)
				}
				if n := b.sum("weir_retries_total"); n != 0 {
					t.Errorf("%v retries", n)
				}
			})
		})
	}
}

// Each reason that forbids a continuation ends the stream with an error that names it.
func TestContinuationForbidden(t *testing.T) {
	for _, test := range []struct {
		bar    prepare.Bar
		fields string
		opts   Options
		parts  []string
	}{
		{prepare.BarOff, ``, Options{Attempt: attempt.Options{Continue: attempt.Continuing{Off: true}}}, []string{"scripted failure"}},
		{prepare.BarGuide, `,"response_format":{"type":"json_object"}`, Options{}, []string{"grammar"}},
		{prepare.BarChoices, `,"n":2`, Options{}, []string{"several choices"}},
		{prepare.BarLogprobs, `,"logprobs":true`, Options{}, []string{"log probabilities"}},
		{prepare.BarSeed, `,"seed":7`, Options{}, []string{"seed"}},
		{prepare.BarPenalties, `,"presence_penalty":0.5`, Options{}, []string{"penalties"}},
		{prepare.BarMemory, ``, Options{Attempt: attempt.Options{Continue: attempt.Continuing{Memory: 1}}}, []string{"--continuation-memory"}},
	} {
		for _, f := range streamFaults {
			t.Run(test.bar.String()+"/"+f.name, func(t *testing.T) {
				facts := &engine.Facts{Carries: infer.CarriesAll}
				a, z := &tokenEngine{name: "a", facts: facts}, &tokenEngine{name: "z", facts: facts}
				test.opts.Attempt.IdleTimeout = time.Minute
				inWays(t, ways[:1], test.opts, []any{a, z}, func(t *testing.T, b *bench) {
					c := b.post(chatPath, askStream(test.fields))
					synctest.Wait()
					one := a.handed()[0]
					one.scores = test.bar == prepare.BarLogprobs
					one.send(words()[0])
					f.happen(one)
					time.Sleep(time.Second)
					if n := z.count(); n != 0 {
						t.Errorf("%d attempts elsewhere", n)
					}
					s := c.story()
					if s.err == nil {
						t.Fatalf("no error: %s", s.body)
					}
					if test.bar != prepare.BarOff {
						wantParts(t, s.err.Message, "could not go on at another engine")
					}
					if test.bar != prepare.BarOff || f.name == "lost" {
						wantParts(t, s.err.Message, test.parts...)
					}
					if n := b.sum("weir_continuations_refused_total"); test.bar != prepare.BarOff && n != 1 {
						t.Errorf("%v were refused", n)
					}
				})
			})
		}
	}
}

// loss is how an attempt of a random history is lost, and what it has given before.
type loss struct {
	sizes []int // of its deltas
	kind  string
	late  int // ids that come of it when another engine has the stream
}

// However a stream's engines give and fail, another one is asked exactly for what follows,
// and the client has what an engine that does not fail gives: text, reasoning, calls, end and
// counts. It ends with an error only where it is not to go on, behind a beginning of that.
func TestHoweverItContinues(t *testing.T) {
	words()
	dir := t.TempDir()
	long := strings.Repeat("some more words of a longer answer, ", 12)
	rapid.Check(t, func(rt *rapid.T) {
		way := rapid.SampledFrom(ways).Draw(rt, "way")
		reply := rapid.SampledFrom(replies).Draw(rt, "reply")
		if rapid.Bool().Draw(rt, "long") {
			reply.fields, reply.text, reply.reason, reply.want = "", long, infer.ReasonStop, told{content: long, finish: "stop"}
		}
		losses := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) loss {
			return loss{
				sizes: rapid.SliceOfN(rapid.IntRange(0, 9), 0, 8).Draw(rt, "sizes"),
				kind:  rapid.SampledFrom([]string{"lost", "lost with ids", "count", "abort", "silence", "refused"}).Draw(rt, "kind"),
				late:  rapid.IntRange(0, 3).Draw(rt, "late"),
			}
		}), 0, 10).Draw(rt, "losses")
		var err error
		synctest.Test(t, func(t *testing.T) {
			err = continued(t, dir, way, reply.fields, said(t, reply.text), reply.reason, reply.want, losses)
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// continued plays a history and says what was wrong. Which ids come is a function of all
// before: the engine that is asked for others has been given others.
func continued(t *testing.T, dir string, way way, fields string, ids []uint32, reason infer.Reason, want told, losses []loss) error {
	engines := []*tokenEngine{{name: "a"}, {name: "b"}, {name: "z"}}
	b := newBench(t, dir, Options{Attempt: attempt.Options{IdleTimeout: time.Minute, FirstTimeout: time.Minute}}, []any{engines[0], engines[1], engines[2]}, way)
	defer b.end()
	c := b.post(chatPath, askStream(`,"stream_options":{"include_usage":true}`+fields))
	seen := map[*call]bool{}
	next := func() *call {
		for range 40 {
			synctest.Wait()
			for _, e := range engines {
				for _, call := range e.handed() {
					if !seen[call] {
						seen[call] = true
						return call
					}
				}
			}
			time.Sleep(250 * time.Millisecond)
		}
		return nil
	}
	var prompt []uint32
	most := 0 // tokens of the answer
	given, begun, times, some, over := 0, 0, 0, false, false
	var before *call
	for i := 0; ; i++ {
		at := next()
		if at == nil {
			break
		}
		if prompt == nil {
			prompt, most = slices.Clone(at.req.Prompt), at.req.MaxTokens
		}
		if !some {
			given = 0
		}
		if wanted := slices.Concat(prompt, ids[:given]); !slices.Equal(at.req.Prompt, wanted) {
			return fmt.Errorf("attempt %d is asked with %d ids, want the %d of the prompt and %d", i, len(at.req.Prompt), len(prompt), given)
		}
		if at.req.MaxTokens != most-given {
			return fmt.Errorf("attempt %d may have %d tokens, want %d without %d", i, at.req.MaxTokens, most, given)
		}
		if over {
			return fmt.Errorf("attempt %d, although the stream had failed %d times in a row and went on %d times", i, begun, times)
		}
		if i >= len(losses) {
			sendReply(at, ids[given:], 5, reason)
			break
		}
		l, from := losses[i], given
		give := func(n int) []uint32 {
			n = max(min(n, len(ids)-given-1), 0)
			given += n
			return ids[given-n : given]
		}
		for _, n := range l.sizes {
			if part := give(n); len(part) > 0 && !at.aborted() {
				at.offer(part, nil)
				some = true
			}
			if n%3 == 0 {
				synctest.Wait()
			}
		}
		if before != nil {
			before.offer(ids[:min(l.late, len(ids))], nil)
		}
		if synctest.Wait(); at.aborted() { // it has been told to stop: the answer is whole
			break
		}
		switch l.kind {
		case "lost with ids":
			part := give(2)
			some = some || len(part) > 0 && i > 0 && from > 0
			if !some { // nothing of them has reached the client
				given = from
			}
			at.fail(infer.CodeEngine, true, part...)
		case "count":
			if !some && given == from {
				at.fail(infer.CodeEngine, true)
				break
			}
			at.raw(ids[:1], 999, nil)
		case "abort":
			at.end(infer.ReasonAbort)
		case "silence":
			time.Sleep(time.Minute + time.Second)
		case "refused":
			at.fail(infer.CodeOverloaded, true)
		default:
			at.fail(infer.CodeEngine, true)
		}
		synctest.Wait()
		if given-from >= retry.Proven {
			begun = 0
		}
		begun++
		if some {
			over = begun >= retry.MaxBegun || times >= retry.MaxContinued
			times++
		} else {
			over = begun >= retry.MaxBegun
		}
		before = at
	}
	s := c.story()
	got := told{}
	if s.status == http.StatusOK {
		got = s.told(t)
	}
	if over && s.err != nil || s.status != http.StatusOK {
		if !over {
			return fmt.Errorf("it has failed with %q", s.body)
		}
		if !strings.HasPrefix(want.content, got.content) || !strings.HasPrefix(want.reasoning, got.reasoning) {
			return fmt.Errorf("the client has %+v, which is no beginning of %+v", got, want)
		}
		return nil
	}
	if !got.same(want) || !s.done || s.err != nil {
		return fmt.Errorf("the client has %+v, error %+v, want %+v", got, s.err, want)
	}
	if n := len(ids); s.usage.Prompt != len(prompt) || s.usage.Completion > n || s.usage.Completion < 1 || reason == infer.ReasonLength && s.usage.Completion != n {
		return fmt.Errorf("usage %+v of a prompt of %d and %d ids", s.usage, len(prompt), n)
	}
	return nil
}

// Streams go on in turn, so many of a model at once as they may: one whose turn does not come
// in time ends with an error, and so does one for which no engine is left. A client that hangs
// up meanwhile is gone at once, and its turn is the next one's.
func TestContinuationsInTurn(t *testing.T) {
	a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
	inBubble(t, Options{Attempt: attempt.Options{Continue: attempt.Continuing{AtOnce: 1, Timeout: 10 * time.Second}}}, []any{a, z}, func(t *testing.T, b *bench) {
		var callers []*caller
		for range 8 {
			c := b.post(chatPath, askStream(``))
			synctest.Wait()
			callers = append(callers, c)
		}
		calls := slices.Concat(a.handed(), z.handed())
		at, elsewhere := a, z
		if a.count() < 4 {
			at, elsewhere = z, a
		}
		for _, call := range calls {
			call.send(words()[0])
		}
		had := elsewhere.count()
		lost := at.handed()[:4]
		for _, call := range lost {
			call.fail(infer.CodeEngine, true)
		}
		if n := elsewhere.count() - had; n != 1 {
			t.Fatalf("%d go on at once, want 1", n)
		}
		if n := b.sum("weir_continuations_waiting"); n != 3 {
			t.Errorf("%v wait, want 3", n)
		}
		first := elsewhere.handed()[had]
		first.send(words()[1]) // its first output is the next one's turn
		if n := elsewhere.count() - had; n != 2 {
			t.Fatalf("%d went on, want 2", n)
		}
		first.end(infer.ReasonStop)
		time.Sleep(11 * time.Second) // the second gives nothing
		synctest.Wait()
		if n := b.sum("weir_continuations_refused_total"); n != 2 {
			t.Errorf("%v had no turn in time, want 2", n)
		}
		for _, c := range callers {
			c.answer()
			c.conn.Close()
		}
		synctest.Wait()
		if n := b.sum("weir_continuations_under_way"); n != 0 {
			t.Errorf("%v are under way although nobody is there", n)
		}
		if n := b.g.attempts.Kept.Load(); n != 0 {
			t.Errorf("%d bytes are kept of streams that have ended", n)
		}
	})
}

// A turn that an engine's output frees is the next one's at that engine, whose next step begins
// soonest, and not at one that is in the midst of its step, although by the number of requests
// either would do.
func TestTurnsStayWithTheirEngine(t *testing.T) {
	a, y, z := &tokenEngine{name: "a"}, &tokenEngine{name: "y"}, &tokenEngine{name: "z"}
	engines := []*tokenEngine{a, y, z}
	inBubble(t, Options{Attempt: attempt.Options{Continue: attempt.Continuing{AtOnce: 8}}}, []any{a, y, z}, func(t *testing.T, b *bench) {
		b.snapshot.Load().Models[models.SimName].Policy = balance.LeastLoad{}
		var callers []*caller
		for range 72 {
			callers = append(callers, b.post(chatPath, askStream(``)))
			synctest.Wait()
		}
		for _, e := range engines {
			for _, call := range e.handed() {
				call.send(words()[0])
			}
		}
		had := map[*tokenEngine]int{y: y.count(), z: z.count()}
		for _, call := range a.handed() {
			call.fail(infer.CodeEngine, true)
		}
		synctest.Wait()
		given := func(e *tokenEngine) []*call { return e.handed()[had[e]:] }
		if len(given(y)) != 4 || len(given(z)) != 4 {
			t.Fatalf("%d and %d go on at once, want 4 and 4", len(given(y)), len(given(z)))
		}
		// Steps of y and z end by turns.
		for range 2 {
			for _, e := range []*tokenEngine{y, z} {
				other := y
				if e == y {
					other = z
				}
				step, before := given(e), len(given(other))
				had[e] += len(step)
				for _, call := range step {
					call.send(words()[1])
				}
				synctest.Wait()
				if n := len(given(e)); n != len(step) || len(given(other)) != before {
					t.Fatalf("a step of %d at %s has freed turns, and %d of them are there, %d at %s", len(step), e.name, n, len(given(other))-before, other.name)
				}
			}
		}
		for _, c := range callers {
			c.answer()
			c.conn.Close()
		}
		synctest.Wait()
		if n := b.sum("weir_continuations_under_way"); n != 0 {
			t.Errorf("%v are under way although nobody is there", n)
		}
	})
}

// First outputs of one step that come one after the other free their turns together, so that the
// streams that follow are in one step too; but a turn is not kept for one whose step comes later
// than the next.
func TestTurnsAreGivenOnTogether(t *testing.T) {
	a, y := &tokenEngine{name: "a"}, &tokenEngine{name: "y"}
	inBubble(t, Options{Attempt: attempt.Options{Continue: attempt.Continuing{AtOnce: 4}}}, []any{a, y}, func(t *testing.T, b *bench) {
		b.snapshot.Load().Models[models.SimName].Policy = balance.LeastLoad{}
		var callers []*caller
		for range 24 {
			callers = append(callers, b.post(chatPath, askStream(``)))
			synctest.Wait()
		}
		for _, e := range []*tokenEngine{a, y} {
			for _, call := range e.handed() {
				call.send(words()[0])
			}
		}
		had := y.count()
		for _, call := range a.handed() {
			call.fail(infer.CodeEngine, true)
		}
		synctest.Wait()
		next := func(want int) []*call {
			t.Helper()
			synctest.Wait()
			calls := y.handed()[had:]
			if len(calls) != want {
				t.Fatalf("%d have gone on, want %d", len(calls), want)
			}
			return calls
		}
		step := next(4)
		time.Sleep(75 * time.Millisecond) // the step
		for _, call := range step[:3] {
			call.send(words()[1])
			time.Sleep(5 * time.Millisecond)
			next(4)
		}
		step[3].send(words()[1])
		step = next(8)[4:]
		time.Sleep(75 * time.Millisecond)
		for _, call := range step[:3] {
			call.send(words()[1])
		}
		time.Sleep(74 * time.Millisecond)
		next(8)
		time.Sleep(2 * time.Millisecond)
		next(11)
		for _, c := range callers {
			c.conn.Close()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := b.sum("weir_continuations_under_way"); n != 0 {
			t.Errorf("%v are under way although nobody is there", n)
		}
		for n := range 4 {
			if _, err := b.g.attempts.Turns.Take(t.Context(), new(place.Turn), models.SimName, time.Millisecond); err != nil {
				t.Errorf("%d turns are free", n)
			}
		}
	})
}

// A stream goes on once more when the engine fails that went on with it, and ends with an
// error where no other one is left.
func TestContinuationOfContinuation(t *testing.T) {
	a, y, z := &tokenEngine{name: "a"}, &tokenEngine{name: "y"}, &tokenEngine{name: "z"}
	inBubble(t, Options{}, []any{a, y, z}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(`,"max_tokens":60`))
		latest := func(n int) *call {
			synctest.Wait()
			var found *call
			for _, e := range []*tokenEngine{a, y, z} {
				for _, call := range e.handed() {
					if call.attempt == uint32(n) {
						found = call
					}
				}
			}
			if found == nil {
				t.Fatalf("there is no attempt %d", n)
			}
			return found
		}
		given := 0
		for i := 1; i <= 3; i++ { // each gives enough to show that the request is not what ends engines
			call := latest(i)
			if call.req.MaxTokens != 60-given {
				t.Errorf("attempt %d may have %d tokens, want %d", i, call.req.MaxTokens, 60-given)
			}
			call.send(words()[given : given+17]...)
			given += 17
			call.fail(infer.CodeEngine, true)
			time.Sleep(time.Second)
		}
		latest(4).send(words()[given])
		latest(4).fail(infer.CodeEngine, true) // and a second one in a row
		s := c.wantBroken(text(words()[:given+1]...), "engine_error")
		wantParts(t, s.err.Message, "two engines in a row")
		if s.continued != 3 {
			t.Errorf("continued %d times for the client", s.continued)
		}
	})
}

// A stream whose model was removed while its engine failed ends with an error that says so.
func TestModelGoneMeanwhile(t *testing.T) {
	a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
	inBubble(t, Options{}, []any{a, z}, func(t *testing.T, b *bench) {
		c := b.post(chatPath, askStream(``))
		one := a.call(t, 1)
		one.send(words()[0])
		without := *b.snapshot.Load()
		without.Models = maps.Clone(without.Models)
		delete(without.Models, models.SimName)
		b.snapshot.Store(&without)
		one.fail(infer.CodeEngine, true)
		time.Sleep(time.Second)
		s := c.wantBroken(text(words()[0]), "engine_error")
		if !strings.Contains(s.err.Message, "could not go on at another engine") {
			t.Errorf("%s", s.err.Message)
		}
		if n := b.sum("weir_continuations_refused_total"); n != 1 {
			t.Errorf("%v refused", n)
		}
		if n := z.count(); n != 0 {
			t.Errorf("%d requests at the other engine", n)
		}
	})
}

// An engine may collect the ids of an answer that is not streamed, and no others: nobody waits
// for one of them, no stop string is found among them, and no wait for the next is so short
// that the engine would be taken for silent or stalled.
func TestCollected(t *testing.T) {
	const collected, slowest = 8, time.Second
	for name, test := range map[string]struct {
		body string
		opts Options
		want int
	}{
		"whole":             {askChat(""), Options{}, collected},
		"completion":        {askText(""), Options{}, collected},
		"stream":            {askStream(""), Options{}, 0},
		"stop string":       {askChat(`,"stop":["zqzqz"]`), Options{}, 0},
		"stop id":           {askChat(`,"stop_token_ids":[5]`), Options{}, collected},
		"short stall":       {askChat(""), Options{Attempt: attempt.Options{Continue: attempt.Continuing{Stall: collected*slowest - 1}}}, 0},
		"no shorter":        {askChat(""), Options{Attempt: attempt.Options{Continue: attempt.Continuing{Stall: collected * slowest}}}, collected},
		"short idle":        {askChat(""), Options{Attempt: attempt.Options{IdleTimeout: collected*slowest - 1}}, 0},
		"choices, one each": {askChat(`,"n":2`), Options{}, collected},
	} {
		t.Run(name, func(t *testing.T) {
			a, z := &tokenEngine{name: "a"}, &tokenEngine{name: "z"}
			inWays(t, ways[:1], test.opts, []any{a, z}, func(t *testing.T, b *bench) {
				path := chatPath
				if strings.Contains(test.body, `"prompt"`) {
					path = completionsPath
				}
				c := b.post(path, test.body)
				synctest.Wait()
				for _, call := range a.handed() {
					if call.req.Portion != test.want {
						t.Errorf("the engine may collect %d ids, want %d", call.req.Portion, test.want)
					}
				}
				if strings.Contains(test.body, `"n":2`) {
					c.hangUp()
					return
				}
				// An answer that has not begun begins anew at another engine, on the same terms.
				first := a.call(t, 1)
				first.send(words()[0])
				first.send(words()[1:5]...)
				first.fail(infer.CodeEngine, true)
				time.Sleep(time.Second)
				second := z.call(t, 1)
				if second.req.Portion != test.want {
					t.Errorf("the other engine may collect %d ids, want %d", second.req.Portion, test.want)
				}
				second.end(infer.ReasonStop, words()[5])
				if name == "stream" {
					c.wantWhole(text(words()[:6]...), "stop")
				} else if o := c.whole(); o.Usage.Completion != 1 || o.Choices[0].Text+o.Choices[0].Message.Content != text(words()[5]) {
					t.Errorf("the answer is %+v", o)
				}
			})
		})
	}
}
