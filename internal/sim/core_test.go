package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"weir/internal/infer"
	"weir/internal/workload/content"
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
		"priority":         {Params{Prompt: prompt, Priority: 1}, infer.CodeInvalid, "priority"},
		"adapter":          {Params{Prompt: prompt, LoRA: "x"}, infer.CodeInvalid, "lora"},
		"no such rank":     {Params{Prompt: prompt, DPRank: new(1)}, infer.CodeInvalid, "dp_rank"},
		"negative rank":    {Params{Prompt: prompt, DPRank: new(-1)}, infer.CodeInvalid, "dp_rank"},
		"interval":         {Params{Prompt: prompt, StreamInterval: -1}, infer.CodeInvalid, "stream_interval"},
		"empty script":     {Params{Prompt: prompt, Script: []uint32{}}, infer.CodeInvalid, "script"},
		"whole and alone":  {Params{Prompt: prompt, Await: true}, infer.CodeInvalid, "leg"},
		"negative lease":   {Params{Prompt: prompt, Leg: LegPrefill, Lease: -1}, infer.CodeInvalid, "leg"},
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
	// A KV cache smaller than the context bounds what nobody bounded.
	c = testCore(t, Options{KVTokens: 50, PageSize: 16})
	if r := prepare(t, c, Params{Prompt: prompt}); r.max != 45 {
		t.Errorf("in a cache of three pages: %d of 45", r.max)
	}
}

func TestOptionsRefuse(t *testing.T) {
	for name, o := range map[string]Options{
		"no words":     {},
		"small budget": {Words: testWords(t), MaxRunning: 100, StepTokens: 99},
		"negative":     {Words: testWords(t), MaxQueued: -1},
		"chunk":        {Words: testWords(t), ChunkedPrefill: -1},
		"small cache":  {Words: testWords(t), KVTokens: 15},
		"no page":      {Words: testWords(t), PageSize: -1},
		"ranks":        {Words: testWords(t), DPSize: -1},
		"speculation":  {Words: testWords(t), Speculation: 0.5},
		"far":          {Words: testWords(t), Speculation: 9},
		"no number":    {Words: testWords(t), Speculation: math.NaN()},
		"generous":     {Words: testWords(t), Conservativeness: -1},
		"nameless":     {Words: testWords(t), LoRAs: []string{""}},
		"retraction":   {Words: testWords(t), Retraction: 9},
		"link":         {Words: testWords(t), Transfer: Transfer{Bandwidth: -1}},
		"context":      {Words: testWords(t), ContextLength: math.MaxInt32},
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

// The ids a step brings on average are those asked for.
func TestSpeculationMean(t *testing.T) {
	for _, mean := range []float64{1.01, 1.5, 2, 3.25, 8} {
		c := testCore(t, Options{Speculation: mean, MeanTokens: -1, Cost: Constant{Decode: 1}})
		const n = 20000
		if _, err := c.Submit(0, 0, prepare(t, c, Params{Prompt: []uint32{1}, MaxTokens: n, Seed: 3})); err != nil {
			t.Fatal(err)
		}
		finishAll(c)
		if got := n / float64(c.Counts().Steps); got < 0.98*mean || got > 1.02*mean {
			t.Errorf("%.3f ids a step, want %v", got, mean)
		}
	}
}

// A cache that is full, and a queue and a batch that come and go, need no more
// memory than the first time.
func TestMemoryIsBounded(t *testing.T) {
	c := testCore(t, Options{KVTokens: 1600, Cost: Constant{Prefill: 1, Decode: 1}})
	round := func(seed uint32) {
		for i := range uint32(20) {
			prompt := make([]uint32, 100)
			prompt[0] = 20*seed + i
			if _, err := c.Submit(0, 0, prepare(t, c, Params{Prompt: prompt, MaxTokens: 60})); err != nil {
				t.Fatal(err)
			}
		}
		finishAll(c)
	}
	for seed := range uint32(100) {
		round(seed)
	}
	k := c.ranks[0].kv
	if len(k.byKey) > 100 || len(k.pages) > 100 || len(c.requests) > 20 || c.Counts().Evicted < 1e5 {
		t.Errorf("%d keys, %d pages, %d requests, %d tokens evicted", len(k.byKey), len(k.pages), len(c.requests), c.Counts().Evicted)
	}
}

// An engine that is advanced late, as on a machine with other work, admits nobody
// before they came: all that was over by then ends before what comes then.
func TestLateAdvance(t *testing.T) {
	c := testCore(t, Options{Cost: Constant{Prefill: 3 * time.Millisecond, Decode: 2 * time.Millisecond}})
	var first []First
	advance := func(now int64) {
		for s := c.Advance(now); s != nil; s = c.Advance(now) {
			first = append(first, s.First...)
		}
		if due, ok := c.Due(); ok && due <= now {
			t.Errorf("at %d something is due since %d", now, due)
		}
	}
	const late = int64(5 * time.Millisecond)
	for _, now := range []int64{0, late, 3 * late} {
		advance(now)
		if _, err := c.Submit(now, now, prepare(t, c, Params{Prompt: []uint32{1}, MaxTokens: 1, IgnoreEOS: true})); err != nil {
			t.Fatal(err)
		}
	}
	advance(10 * late)
	for _, f := range first {
		if s := f.Stamps; s.QueueEnd != s.QueueStart || s.PrefillEnd != s.QueueEnd+int64(3*time.Millisecond) {
			t.Errorf("%+v", s)
		}
	}
	if len(first) != 3 {
		t.Errorf("%d first ids", len(first))
	}
}

func runningCore(t testing.TB, n int, o Options) (*Core, int64) {
	o.MaxRunning, o.StepTokens, o.ContextLength = n, 16*n, 1<<30
	o.Cost = Constant{Prefill: time.Millisecond, Decode: time.Millisecond}
	c := testCore(t, o)
	for i := range n {
		prompt := make([]uint32, 16)
		prompt[0] = uint32(i)
		if _, err := c.Submit(0, 0, prepare(t, c, Params{Prompt: prompt, IgnoreEOS: true})); err != nil {
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
	for name, o := range map[string]Options{"unlimited": {}, "interval": {StreamInterval: 4}, "speculation": {Speculation: 2}} {
		c, now := runningCore(t, 64, o)
		ids := 0
		advance := func() {
			ids += len(c.Advance(now).ID)
			now += int64(time.Millisecond)
		}
		for range 200 { // until the columns are as long as they ever get
			advance()
		}
		if n := testing.AllocsPerRun(100, advance); n != 0 || ids < 300*64 {
			t.Errorf("%s: %v allocations a step, %d ids", name, n, ids)
		}
	}
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

// BenchmarkStep is the cost of one step of decoding requests; ns/token is the
// figure to watch.
func BenchmarkStep(b *testing.B) {
	for _, x := range []struct {
		name string
		n    int
		o    Options
	}{
		{"4096", 4096, Options{}},
		{"10000", 10000, Options{}},
		{"interval=4", 4096, Options{StreamInterval: 4}},
		{"speculation=3", 4096, Options{Speculation: 3}},
	} {
		b.Run(x.name, func(b *testing.B) {
			c, now := runningCore(b, x.n, x.o)
			ids := 0
			b.ReportAllocs()
			for b.Loop() {
				ids += len(c.Advance(now).ID)
				now += int64(time.Millisecond)
			}
			b.ReportMetric(float64(b.Elapsed())/float64(ids), "ns/token")
		})
	}
}

// BenchmarkChurn is the cost of a token where 4096 requests run that come and
// go, with 16 tokens of prompt and 256 of output: without a limit to the KV
// cache, and with one that is full of the prefixes of those before.
func BenchmarkChurn(b *testing.B) {
	for name, kv := range map[string]int{"unlimited": 0, "kv": 4096 * 400} {
		b.Run(name, func(b *testing.B) {
			const n = 4096
			c := testCore(b, Options{MaxRunning: n, StepTokens: 16 * n, KVTokens: kv, Cost: Constant{Prefill: 1, Decode: 1}})
			submitted, ids := uint32(0), 0
			prompt := make([]uint32, 16)
			submit := func(now int64) {
				submitted++
				prompt[0] = submitted
				// The lengths differ, so that ends and beginnings spread out.
				r := prepare(b, c, Params{Prompt: prompt, MaxTokens: 128 + int(submitted*2654435761>>24)})
				if _, err := c.Submit(now, now, r); err != nil {
					b.Fatal(err)
				}
			}
			for range n {
				submit(0)
			}
			b.ReportAllocs()
			for b.Loop() {
				now, _ := c.Due()
				if s := c.Advance(now); s != nil {
					ids += len(s.ID)
					for range s.Done {
						submit(now)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed())/float64(ids), "ns/token")
			if kv > 0 {
				b.ReportMetric(float64(c.Counts().Retracted)/float64(submitted), "retractions/request")
			}
		})
	}
}
