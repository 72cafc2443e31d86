package sim

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/internal/content"
	"weir/internal/infer"
)

// testWords is a synthetic vocabulary of 1024 words, ids 10 to 1033.
func testWords(t testing.TB) *content.Words {
	t.Helper()
	w, err := content.New(2000, func(id uint32) ([]byte, bool) {
		if id < 10 {
			return nil, false
		}
		n := id - 10
		return []byte{' ', 'a' + byte(n%26), 'a' + byte(n/26%26), 'a' + byte(n/676%26)}, n < 1024
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func testCore(t testing.TB, o Options) *Core {
	t.Helper()
	if o.Words == nil {
		o.Words = testWords(t)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func prepare(t testing.TB, c *Core, p Params) Request {
	t.Helper()
	r, err := c.Options().Prepare(p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ledger is what a careful client of the core would keep of one request.
type ledger struct {
	params Params
	stream content.Stream
	total  uint32
	first  bool
	ended  infer.Reason // what the client asked for
}

// TestConservation drives the core with random events and checks after each
// step that nothing was lost, doubled or reordered.
func TestConservation(t *testing.T) {
	words := testWords(t)
	rapid.Check(t, func(t *rapid.T) {
		opts := Options{
			Words:      words,
			MaxRunning: rapid.IntRange(1, 8).Draw(t, "max_running"),
			MaxQueued:  rapid.IntRange(0, 5).Draw(t, "max_queued"),
			StepTokens: rapid.IntRange(8, 64).Draw(t, "step_tokens"),
			EOS:        []uint32{2, 3},
			MeanTokens: rapid.IntRange(1, 30).Draw(t, "mean"),
			Cost:       Constant{Prefill: 5 * time.Millisecond, Decode: time.Millisecond},
		}
		c, err := New(opts)
		if err != nil {
			t.Fatal(err)
		}
		live := map[Ref]*ledger{}
		var now int64
		var accepted, refused, done, prompts, ids uint64

		check := func(s *Step) {
			if s.Batch.Prefill+s.Batch.Decode > opts.StepTokens {
				t.Fatalf("step of %+v is over the budget %d", s.Batch, opts.StepTokens)
			}
			if s.Running > opts.MaxRunning {
				t.Fatalf("%d running", s.Running)
			}
			if len(s.Ref) > s.Batch.Decode+s.Batch.Chunks {
				t.Fatalf("%d ids from %+v", len(s.Ref), s.Batch)
			}
			for i, ref := range s.Ref {
				l := live[ref]
				if l == nil {
					t.Fatalf("an id for %d, which is not live", ref)
				}
				l.total++
				ids++
				if s.Total[i] != l.total {
					t.Fatalf("total %d, want %d", s.Total[i], l.total)
				}
				if s.ID[i] != 2 && s.ID[i] != 3 && s.ID[i] != words.Next(&l.stream) {
					t.Fatalf("id %d is not what comes next", s.ID[i])
				}
				words.Push(&l.stream, s.ID[i])
			}
			for _, f := range s.First {
				st := f.Stamps
				order := []int64{0, st.ServerCreated, st.QueueStart, st.QueueEnd, st.PrefillStart, st.PrefillEnd, st.FirstToken, s.End}
				for i := 1; i < len(order); i++ {
					if order[i] < order[i-1] {
						t.Fatalf("stamps go back: %v", order)
					}
				}
				if live[f.Ref].first {
					t.Fatal("first twice")
				}
				live[f.Ref].first = true
			}
			for _, d := range s.Done {
				l := live[d.Ref]
				if l == nil {
					t.Fatalf("%d done twice or never submitted", d.Ref)
				}
				if d.Completion != int(l.total) || d.PromptTokens != len(l.params.Prompt) || l.first != (l.total > 0) {
					t.Fatalf("done %+v, seen %+v", d, l)
				}
				switch {
				case l.ended != "" && d.Reason != l.ended:
					t.Fatalf("done %+v, asked for %s", d, l.ended)
				case l.ended != "":
				case d.Reason == infer.ReasonAbort:
					t.Fatalf("aborted by nobody: %+v", d)
				case d.Reason == infer.ReasonLength && d.Completion != l.params.MaxTokens,
					d.Reason == infer.ReasonStop && (d.Completion <= l.params.MinTokens || l.params.IgnoreEOS),
					d.Completion > l.params.MaxTokens,
					l.params.Stall && d.Completion > l.params.StallAfter:
					t.Fatalf("done %+v, params %+v", d, l.params)
				}
				prompts += uint64(len(l.params.Prompt))
				delete(live, d.Ref)
				done++
			}
			n := c.Counts()
			if n.Received != n.Finished+n.Aborted+n.Rejected+uint64(n.Running+n.Waiting) {
				t.Fatalf("counts do not add up: %+v", n)
			}
			if n.Received != accepted+refused || n.Rejected != refused || n.Finished+n.Aborted != done || n.Generated != ids {
				t.Fatalf("counts %+v; seen %d accepted, %d refused, %d done, %d ids", n, accepted, refused, done, ids)
			}
		}
		runTo := func(until int64) {
			for {
				due, ok := c.Due()
				if !ok || due > until {
					break
				}
				now = max(now, due)
				for s := c.Advance(now); s != nil; s = c.Advance(now) {
					check(s)
				}
			}
			now = until
		}

		t.Repeat(map[string]func(*rapid.T){
			"submit": func(t *rapid.T) {
				limit := rapid.IntRange(1, 20).Draw(t, "max")
				p := Params{
					Prompt:    rapid.SliceOfN(rapid.Uint32Range(0, 2000), 1, 100).Draw(t, "prompt"),
					MaxTokens: limit,
					MinTokens: rapid.IntRange(0, limit).Draw(t, "min"),
					IgnoreEOS: rapid.Bool().Draw(t, "ignore_eos"),
					Stall:     rapid.IntRange(0, 9).Draw(t, "stall") == 0,
				}
				p.StallAfter = rapid.IntRange(0, 5).Draw(t, "stall_after")
				r, err := c.Options().Prepare(p)
				if err != nil {
					t.Fatal(err)
				}
				ref, err := c.Submit(now, now, r)
				if err != nil {
					if opts.MaxQueued == 0 || c.Counts().Waiting < opts.MaxQueued {
						t.Fatalf("refused with room: %v", err)
					}
					refused++
					return
				}
				if live[ref] != nil {
					t.Fatalf("ref %d is in use", ref)
				}
				accepted++
				live[ref] = &ledger{params: p, stream: words.Start(p.Prompt, 0)}
			},
			"abort": func(t *rapid.T) {
				for ref, l := range live {
					c.Abort(now, ref)
					if l.ended == "" {
						l.ended = infer.ReasonAbort
					}
					break
				}
			},
			"stop": func(t *rapid.T) {
				for ref, l := range live {
					c.Stop(now, ref)
					if l.ended == "" {
						l.ended = infer.ReasonStop
					}
					break
				}
			},
			"run": func(t *rapid.T) {
				runTo(now + rapid.Int64Range(0, int64(30*time.Millisecond)).Draw(t, "for"))
			},
		})

		// At rest everything was accounted for; only stalled requests remain, and
		// those that wait behind them.
		runTo(now + int64(time.Hour))
		for ref, l := range live {
			c.Abort(now, ref)
			if l.ended == "" {
				l.ended = infer.ReasonAbort
			}
		}
		runTo(now + int64(time.Hour))
		if len(live) != 0 || done != accepted || c.Counts().Running != 0 || c.Counts().Waiting != 0 {
			t.Fatalf("%d live, %d of %d done, counts %+v", len(live), done, accepted, c.Counts())
		}
		if _, ok := c.Due(); ok {
			t.Fatal("an idle engine wants to be called")
		}
		if n := c.Counts(); n.Prefilled > prompts {
			t.Fatalf("%d prompt tokens computed of %d", n.Prefilled, prompts)
		}
	})
}

func TestPrepareRefuses(t *testing.T) {
	c := testCore(t, Options{ContextLength: 10, VocabSize: 50})
	prompt := []uint32{1, 2, 3}
	for name, x := range map[string]struct {
		p     Params
		code  infer.Code
		param string
	}{
		"empty":            {Params{}, infer.CodeInvalid, "prompt"},
		"negative limit":   {Params{Prompt: prompt, MaxTokens: -1}, infer.CodeInvalid, "max_tokens"},
		"negative min":     {Params{Prompt: prompt, MinTokens: -1}, infer.CodeInvalid, "min_tokens"},
		"min over max":     {Params{Prompt: prompt, MaxTokens: 2, MinTokens: 3}, infer.CodeInvalid, "min_tokens"},
		"too long":         {Params{Prompt: prompt, MaxTokens: 8}, infer.CodeContext, "max_tokens"},
		"prompt too long":  {Params{Prompt: make([]uint32, 10)}, infer.CodeContext, "prompt"},
		"not in the vocab": {Params{Prompt: []uint32{49, 50}}, infer.CodeInvalid, "prompt"},
	} {
		_, err := c.Options().Prepare(x.p)
		if e := infer.AsError(err); e == nil || e.Code != x.code || e.Param != x.param {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := prepare(t, c, Params{Prompt: prompt})
	if r.max != 7 || r.PromptTokens() != 3 {
		t.Errorf("without a limit: %d of 7", r.max)
	}
}

func TestOptionsRefuse(t *testing.T) {
	for name, o := range map[string]Options{
		"no words":     {},
		"small budget": {Words: testWords(t), MaxRunning: 100, StepTokens: 99},
		"negative":     {Words: testWords(t), MaxQueued: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The chunks of a prompt cost together what the prompt costs at once, but for
// the base that every step has.
func TestChunksSumToTheWhole(t *testing.T) {
	cost := PerBatch{Square: 1e-3, Linear: 1e-2, PrefillBase: 0, DecodeBase: 1, Each: 1}
	took := func(budget int) time.Duration {
		c := testCore(t, Options{Cost: cost, StepTokens: budget, MaxRunning: 1})
		if _, err := c.Submit(0, 0, prepare(t, c, Params{Prompt: make([]uint32, 1000), MaxTokens: 1})); err != nil {
			t.Fatal(err)
		}
		var end int64
		for {
			due, ok := c.Due()
			if !ok {
				return time.Duration(end)
			}
			for s := c.Advance(due); s != nil; s = c.Advance(due) {
				end = s.End
			}
		}
	}
	whole, parts := took(1000), took(64)
	if d := whole - parts; d < -time.Microsecond || d > time.Microsecond {
		t.Errorf("at once %v, in chunks %v", whole, parts)
	}
}

func TestPublishedCost(t *testing.T) {
	for _, x := range []struct {
		b    Batch
		want float64
	}{
		{Batch{Decode: 1}, 6.35},
		{Batch{Decode: 100}, 41},
		{Batch{Prefill: 10000, Chunks: 1, Attended: 1e8}, 42.1 + 152 + 16.5},
		{Batch{Prefill: 100, Chunks: 1, Attended: 1e4, Decode: 10}, 0.00421 + 1.52 + 16.5 + 9.5},
	} {
		got := PerBatch{}.StepTime(x.b).Seconds() * 1e3
		if got < x.want-0.001 || got > x.want+0.001 {
			t.Errorf("%+v takes %.3f ms, want %.3f", x.b, got, x.want)
		}
	}
}

// A driver that is late catches up on the schedule; one that is too late gives
// the time up, and says so.
func TestLateness(t *testing.T) {
	start := func() *Core {
		c := testCore(t, Options{Cost: Constant{Prefill: 10, Decode: 10}, MaxLag: 100})
		if _, err := c.Submit(0, 0, prepare(t, c, Params{Prompt: []uint32{1}, MaxTokens: 50})); err != nil {
			t.Fatal(err)
		}
		c.Advance(0)
		return c
	}
	ends := func(c *Core, now int64) (ends []int64) {
		for s := c.Advance(now); s != nil; s = c.Advance(now) {
			ends = append(ends, s.End)
		}
		return ends
	}
	c := start()
	if got := fmt.Sprint(ends(c, 35)); got != "[10 20 30]" {
		t.Errorf("late by 25: steps end at %v", got)
	}
	if c.Counts().Lost != 0 {
		t.Errorf("lost %v", c.Counts().Lost)
	}
	c = start()
	if got := fmt.Sprint(ends(c, 1000)); got != "[10]" {
		t.Errorf("late by 990: steps end at %v", got)
	}
	if got := c.Counts().Lost; got != 990 {
		t.Errorf("lost %v", got)
	}
	if due, _ := c.Due(); due != 1010 {
		t.Errorf("next step ends at %d", due)
	}
}

func runningCore(t testing.TB, n int) (*Core, int64) {
	c := testCore(t, Options{MaxRunning: n, StepTokens: 16 * n, ContextLength: 1 << 30, Cost: Constant{Prefill: time.Millisecond, Decode: time.Millisecond}})
	for range n {
		if _, err := c.Submit(0, 0, prepare(t, c, Params{Prompt: make([]uint32, 16), IgnoreEOS: true})); err != nil {
			t.Fatal(err)
		}
	}
	c.Advance(0)
	due, _ := c.Due()
	if s := c.Advance(due); s == nil || len(s.Ref) != n {
		t.Fatalf("first step: %+v", s)
	}
	due, _ = c.Due()
	return c, due
}

func TestStepDoesNotAllocate(t *testing.T) {
	c, now := runningCore(t, 64)
	if n := testing.AllocsPerRun(100, func() {
		if s := c.Advance(now); len(s.Ref) != 64 {
			t.Fatalf("%d ids", len(s.Ref))
		}
		now += int64(time.Millisecond)
	}); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

// BenchmarkStep is the cost of one step of 4096 decoding requests; ns/token is
// the figure to watch.
func BenchmarkStep(b *testing.B) {
	const n = 4096
	c, now := runningCore(b, n)
	b.ReportAllocs()
	for b.Loop() {
		c.Advance(now)
		now += int64(time.Millisecond)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/n, "ns/token")
}

// finishAll runs an engine until nothing more happens and gives what a request
// got and how it ended, by ref.
func finishAll(c *Core) (ids map[Ref][]uint32, done map[Ref]Done) {
	ids, done = map[Ref][]uint32{}, map[Ref]Done{}
	for {
		due, ok := c.Due()
		if !ok {
			return ids, done
		}
		for s := c.Advance(due); s != nil; s = c.Advance(due) {
			for i, ref := range s.Ref {
				ids[ref] = append(ids[ref], s.ID[i])
			}
			for _, d := range s.Done {
				done[d.Ref] = d
			}
		}
	}
}

func TestScript(t *testing.T) {
	eos := []uint32{2, 3}
	script := []uint32{100, 101, 102}
	for name, x := range map[string]struct {
		eos    []uint32
		p      Params
		ids    int // said
		reason infer.Reason
		ended  bool // by an id that is reported
	}{
		"said":          {eos, Params{Script: script}, 4, infer.ReasonStop, true},
		"nothing":       {eos, Params{Script: []uint32{}}, 1, infer.ReasonStop, true},
		"cut":           {eos, Params{Script: script, MaxTokens: 3}, 3, infer.ReasonLength, false},
		"cut at end id": {eos, Params{Script: script, MaxTokens: 4}, 4, infer.ReasonStop, true},
		"ignored end":   {eos, Params{Script: script, MaxTokens: 9, IgnoreEOS: true}, 9, infer.ReasonLength, false},
		"min":           {eos, Params{Script: script, MinTokens: 6}, 7, infer.ReasonStop, true},
		"stop id":       {eos, Params{Script: script, StopIDs: []uint32{101}}, 2, infer.ReasonStop, true},
		"no end ids":    {nil, Params{Script: script}, 3, infer.ReasonStop, false},
	} {
		c := testCore(t, Options{EOS: x.eos})
		x.p.Prompt = []uint32{1}
		ref, err := c.Submit(0, 0, prepare(t, c, x.p))
		if err != nil {
			t.Fatal(err)
		}
		ids, done := finishAll(c)
		got, d := ids[ref], done[ref]
		if len(got) != x.ids || d.Completion != x.ids || d.Reason != x.reason || (d.Matched >= 0) != x.ended {
			t.Errorf("%s: %v, %+v", name, got, d)
			continue
		}
		if x.ended && d.Matched != int(got[len(got)-1]) {
			t.Errorf("%s: matched %d, the last id is %d", name, d.Matched, got[len(got)-1])
		}
		for i := range min(len(got), len(x.p.Script)) {
			if got[i] != x.p.Script[i] {
				t.Errorf("%s: %v", name, got)
			}
		}
	}
}
