package sim

import (
	"fmt"
	"testing"
	"time"

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
