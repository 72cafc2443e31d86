package sim

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/workload/content"
)

// TestConservation drives engines of all kinds with random events and checks
// after each step that no request, token or page was lost, doubled or
// reordered, and that what is said is what an engine says that has all the
// room in the world.
func TestConservation(t *testing.T) {
	words := testWords(t)
	rapid.Check(t, func(t *rapid.T) {
		w := newWitness(t, drawOptions(t, words))
		t.Repeat(map[string]func(*rapid.T){
			"submit":  w.submit,
			"again":   w.submit, // as often as two of the others
			"abort":   func(*rapid.T) { w.conclude(w.core.Abort, infer.ReasonAbort) },
			"stop":    func(*rapid.T) { w.conclude(w.core.Stop, infer.ReasonStop) },
			"retract": func(t *rapid.T) { w.core.Retract(rapid.IntRange(1, 3).Draw(t, "n")) },
			"meet":    func(*rapid.T) { w.join((*Core).Meet) },
			"offer":   func(*rapid.T) { w.join(func(c *Core, now int64, ref Ref) { c.Offer(now, ref, Offer{}) }) },
			"release": func(*rapid.T) { w.join(func(c *Core, now int64, ref Ref) { c.Release(now, ref) }) },
			"expire":  func(*rapid.T) { w.join(func(c *Core, now int64, ref Ref) { c.Expire(now, ref) }) },
			"renew":   func(*rapid.T) { w.join(func(c *Core, now int64, ref Ref) { c.Renew(now, ref, 20*time.Millisecond) }) },
			"written": func(*rapid.T) { w.write() },
			"compute": func(*rapid.T) {
				w.join(func(c *Core, now int64, ref Ref) {
					if c.Compute(now, ref); c.details[ref].leg == Whole {
						w.live[ref].params.Leg = Whole
					}
				})
			},
			"break": func(*rapid.T) {
				w.join(func(c *Core, now int64, ref Ref) {
					if w.live[ref].params.Leg != Whole {
						c.Break(now, ref, infer.Errorf(infer.CodeEngine, "broken"))
					}
				})
			},
			"flush": func(t *rapid.T) {
				if done := w.core.FlushCache(); done != (len(w.live) == 0) {
					t.Fatalf("flushed: %v with %d requests", done, len(w.live))
				}
				w.pages()
			},
			"run": func(t *rapid.T) {
				w.runTo(w.now + rapid.Int64Range(0, int64(30*time.Millisecond)).Draw(t, "for"))
			},
		})
		w.rest()
	})
}

func drawOptions(t *rapid.T, words *content.Words) Options {
	o := Options{
		Words:              words,
		MaxRunning:         rapid.IntRange(1, 8).Draw(t, "max_running"),
		MaxQueued:          rapid.IntRange(0, 5).Draw(t, "max_queued"),
		StepTokens:         rapid.IntRange(8, 64).Draw(t, "step_tokens"),
		ChunkedPrefill:     rapid.IntRange(0, 64).Draw(t, "chunk"),
		EOS:                []uint32{2, 3},
		MeanTokens:         rapid.IntRange(1, 30).Draw(t, "mean"),
		PageSize:           rapid.IntRange(1, 8).Draw(t, "page"),
		DPSize:             rapid.IntRange(1, 3).Draw(t, "dp"),
		LoRAs:              []string{"x", "y"},
		PriorityScheduling: rapid.Bool().Draw(t, "priority"),
		// Below all differences, above all, or between.
		PreemptionThreshold: new(rapid.SampledFrom([]int{-1, 0, 1, 10}).Draw(t, "threshold")),
		StreamInterval:      rapid.IntRange(1, 4).Draw(t, "interval"),
		Retraction:          Retraction(rapid.IntRange(0, 3).Draw(t, "retraction")),
		Transfer: Transfer{BytesPerToken: 1000, Bandwidth: float64(rapid.IntRange(0, 3).Draw(t, "bandwidth")) * 1e6,
			Latency: time.Duration(rapid.IntRange(0, 9).Draw(t, "latency")) * time.Millisecond},
		Cost: Constant{Prefill: 5 * time.Millisecond, Decode: time.Millisecond},
	}
	if rapid.Bool().Draw(t, "speculate") {
		o.Speculation = rapid.Float64Range(1, 3).Draw(t, "speculation")
	}
	if rapid.IntRange(0, 3).Draw(t, "limited") > 0 {
		o.Conservativeness = rapid.Float64Range(0.01, 2).Draw(t, "conservativeness")
		o.KVTokens = rapid.IntRange(20, 200).Draw(t, "kv")
		o.KVEvents = rapid.Bool().Draw(t, "kv_events")
	}
	return o
}

// ledger is what a careful client of the engine keeps of one request.
type ledger struct {
	params      Params
	ids         []uint32
	first       First
	retractions int
	ended       infer.Reason // what the client asked for
	kept        bool         // a prefill leg, whose KV is or was kept
}

// witness drives an engine and believes nothing it says.
type witness struct {
	t    *rapid.T
	opts Options
	core *Core
	now  int64
	live map[Ref]*ledger

	owed   map[int]bool          // what is kept of legs that have ended is known by
	parent map[uint64]uint64     // of the pages ever entered into a tree, by key
	heard  []map[uint64][]uint32 // by rank, what the events say that it has: pages, and their prompts up to there

	accepted, refused, displaced, done, ids, retracted uint64
	prompts                                            uint64 // tokens of the requests that were served
	again                                              uint64 // tokens of the requests that were sent back
	cut                                                bool   // a request was ended from outside
}

func newWitness(t *rapid.T, o Options) *witness {
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return &witness{t: t, opts: *c.Options(), core: c, live: map[Ref]*ledger{}, owed: map[int]bool{}, parent: map[uint64]uint64{}, heard: make([]map[uint64][]uint32, o.DPSize)}
}

func (w *witness) submit(t *rapid.T) {
	limit := rapid.IntRange(1, 20).Draw(t, "max")
	// Few prompts that often have their beginnings in common.
	p := Params{
		Prompt:    make([]uint32, rapid.IntRange(1, 60).Draw(t, "prompt")),
		MaxTokens: limit,
		MinTokens: rapid.IntRange(0, limit).Draw(t, "min"),
		IgnoreEOS: rapid.Bool().Draw(t, "ignore_eos"),
		Seed:      rapid.Uint64Range(0, 2).Draw(t, "seed"),
		Stall:     rapid.IntRange(0, 19).Draw(t, "stall") == 0,
		LoRA:      rapid.SampledFrom([]string{"", "", "x", "y"}).Draw(t, "lora"),
	}
	p.StallAfter = rapid.IntRange(0, 5).Draw(t, "stall_after")
	for i, parts := 0, rapid.IntRange(0, 2).Draw(t, "other"); i < parts && len(p.Prompt) > 0; i++ {
		p.Prompt[rapid.IntRange(0, len(p.Prompt)-1).Draw(t, "place")] = uint32(i + 1)
	}
	if rapid.IntRange(0, 4).Draw(t, "follow") == 0 && len(w.live) > 0 {
		// The turn after one that may still be going on.
		l := w.live[slices.Min(slices.Collect(maps.Keys(w.live)))]
		p.Prompt = slices.Concat(l.params.Prompt, l.ids, []uint32{7})
	}
	if w.opts.PriorityScheduling {
		p.Priority = rapid.IntRange(-2, 2).Draw(t, "priority")
	}
	if rank := rapid.IntRange(-1, w.opts.DPSize-1).Draw(t, "rank"); rank >= 0 {
		p.DPRank = &rank
	}
	if rapid.IntRange(0, 3).Draw(t, "scripted") == 0 {
		p.Script = rapid.SliceOfN(rapid.Uint32Range(50, 60), 0, 12).Draw(t, "script")
		p.StopIDs = []uint32{55}
	}
	p.StreamInterval = rapid.IntRange(0, 3).Draw(t, "stream_interval")
	if p.Leg = Leg(rapid.IntRange(0, 2).Draw(t, "leg")); p.Leg != Whole {
		p.Await = rapid.Bool().Draw(t, "await")
		p.Fresh = rapid.Bool().Draw(t, "fresh")
		if p.Leg == LegDecode {
			p.Pages = Pages(rapid.IntRange(int(PagesFreed), int(PagesOwed)).Draw(t, "pages"))
		}
		p.Patience = time.Duration(rapid.IntRange(0, 30).Draw(t, "patience")) * time.Millisecond
		p.Lease = time.Duration(rapid.IntRange(0, 30).Draw(t, "lease")) * time.Millisecond
	}
	r, err := w.core.Options().Prepare(p)
	if err != nil {
		if room := w.opts.KVTokens/w.opts.PageSize*w.opts.PageSize - w.opts.drafts(); w.opts.KVTokens == 0 || len(p.Prompt)+limit <= room {
			t.Fatalf("refused what fits: %v", err)
		}
		return
	}
	ref, err := w.core.Submit(w.now, w.now, r)
	if err != nil {
		if p.Await || w.opts.MaxQueued == 0 || w.core.Counts().Waiting < w.opts.MaxQueued || w.outranks(p.Priority) {
			t.Fatalf("refused with room: %v", err)
		}
		w.refused++
		return
	}
	if w.live[ref] != nil {
		t.Fatalf("ref %d is in use", ref)
	}
	w.accepted++
	w.live[ref] = &ledger{params: p}
}

// outranks reports whether in every full queue somebody waits with a lower
// priority.
func (w *witness) outranks(priority int) bool {
	for i := range w.core.ranks {
		k := &w.core.ranks[i]
		_, lower := k.waiting.last(func(ref Ref) bool {
			return w.core.requests[ref].ended == notEnded && w.core.details[ref].priority < priority
		})
		if k.waiting.len()-k.displaced >= w.opts.MaxQueued && !lower {
			return false
		}
	}
	return w.opts.PriorityScheduling
}

// write has the KV come of the first leg whose pages are kept for it.
func (w *witness) write() {
	for name := range w.owed {
		w.core.Written(w.now, name)
		delete(w.owed, name)
		return
	}
}

func (w *witness) conclude(how func(int64, Ref), reason infer.Reason) {
	if len(w.live) == 0 {
		return
	}
	ref := slices.Max(slices.Collect(maps.Keys(w.live)))
	w.end(ref, how, reason)
}

// join has something happen to a leg.
func (w *witness) join(what func(*Core, int64, Ref)) {
	if len(w.live) > 0 {
		what(w.core, w.now, slices.Min(slices.Collect(maps.Keys(w.live))))
	}
}

func (w *witness) end(ref Ref, how func(int64, Ref), reason infer.Reason) {
	w.cut = true
	how(w.now, ref)
	if l := w.live[ref]; l.ended == "" {
		l.ended = reason
	}
}

func (w *witness) runTo(until int64) {
	for {
		due, ok := w.core.Due()
		if !ok || due > until {
			break
		}
		w.now = max(w.now, due)
		for s := w.core.Advance(w.now); s != nil; s = w.core.Advance(w.now) {
			w.step(s)
			w.pages()
		}
	}
	w.now = until
}

// step checks what an engine says of a step.
func (w *witness) step(s *Step) {
	t, o := w.t, &w.opts
	if s.Batch.Prefill+s.Batch.Decode > o.StepTokens*o.DPSize || s.Batch.Prefill > o.ChunkedPrefill*o.DPSize {
		t.Fatalf("step of %+v is over the budget %d", s.Batch, o.StepTokens)
	}
	if s.Running > o.MaxRunning*o.DPSize {
		t.Fatalf("%d running", s.Running)
	}
	for i, ref := range s.Ref {
		l := w.live[ref]
		if l == nil {
			t.Fatalf("an id for %d, which is not live", ref)
		}
		l.ids = append(l.ids, s.ID[i])
		if int(s.Total[i]) != len(l.ids) {
			t.Fatalf("total %d, want %d", s.Total[i], len(l.ids))
		}
	}
	for _, f := range s.First {
		if l := w.live[f.Ref]; l.first.Stamps.FirstToken != 0 || len(l.ids) == 0 {
			t.Fatalf("first twice, or before the first id: %+v, %d ids", f, len(l.ids))
		}
		w.live[f.Ref].first = f
		w.stamps(s, f)
	}
	for _, k := range s.Kept {
		l := w.live[k.Ref]
		if l == nil || l.kept || l.params.Leg != LegPrefill || k.Tokens != len(l.params.Prompt)+len(l.ids)-1 || o.KVTokens > 0 && len(k.Pages)*o.PageSize < k.Tokens {
			t.Fatalf("kept %+v of %+v", k, l)
		}
		l.kept = true
	}
	for _, r := range s.Reserved {
		if l := w.live[r.Ref]; l == nil || l.params.Leg != LegDecode || r.Tokens <= 0 {
			t.Fatalf("reserved %+v of %+v", r, l)
		}
	}
	for _, ref := range s.Fetched {
		if l := w.live[ref]; l == nil || l.params.Leg != LegDecode {
			t.Fatalf("fetched for %+v", l)
		}
	}
	for _, d := range s.Done {
		w.ended(d)
	}
	for _, ref := range s.Retracted {
		l := w.live[ref]
		if l == nil {
			t.Fatalf("%d is retracted and not live", ref)
		}
		l.retractions++
		w.retracted++
		w.cut = w.cut || o.Retraction != RetractRecompute // what is restored is nobody's work
		w.again += uint64(len(l.params.Prompt)) + uint64(w.core.requests[ref].generated)
	}
	n := w.core.Counts()
	if n.Received != n.Finished+n.Aborted+n.Rejected+uint64(n.Running+n.Waiting+n.Kept) {
		t.Fatalf("counts do not add up: %+v", n)
	}
	if n.Received != w.accepted+w.refused || n.Rejected != w.refused+w.displaced || n.Finished+n.Aborted+w.displaced != w.done || n.Retracted != w.retracted {
		t.Fatalf("counts %+v; seen %d accepted, %d refused, %d done, %d retracted", n, w.accepted, w.refused, w.done, w.retracted)
	}
	ids := w.ids
	for ref, l := range w.live {
		ids += uint64(len(l.ids) + len(w.core.details[ref].unsent))
		if held := len(w.core.details[ref].unsent); held >= max(1, l.params.StreamInterval, o.StreamInterval) {
			t.Fatalf("%d ids are held back", held)
		}
	}
	if n.Generated != ids {
		t.Fatalf("%d ids generated, %d seen", n.Generated, ids)
	}
}

func (w *witness) stamps(s *Step, f First) {
	st, p := f.Stamps, w.live[f.Ref].params
	order := []int64{0, st.ServerCreated, st.QueueStart, st.QueueEnd, st.PrefillStart, st.PrefillEnd, st.FirstToken, s.End}
	if p.Await {
		order = slices.Insert(order, 2, st.BootstrapStart, st.BootstrapEnd)
	}
	if p.Leg == LegDecode {
		order = []int64{0, st.ServerCreated, st.BootstrapStart, st.BootstrapEnd, st.QueueStart, st.QueueEnd, st.TransferStart, st.TransferEnd, st.WaitingToRunning, st.FirstToken, s.End}
		if !p.Await {
			order = slices.Delete(order, 2, 4)
		}
		t := w.opts.Transfer
		least := int64(t.Latency)
		if t.Bandwidth > 0 {
			least += int64(float64(len(p.Prompt)-f.Cached) * float64(t.BytesPerToken) / t.Bandwidth * 1e9)
		}
		if st.TransferEnd-st.TransferStart != least || st.PrefillStart != 0 || st.PrefillEnd != 0 {
			w.t.Fatalf("transfer of %d tokens took %d, want %d: %+v", len(p.Prompt)-f.Cached, st.TransferEnd-st.TransferStart, least, st)
		}
	}
	if !slices.IsSorted(order) {
		w.t.Fatalf("stamps go back: %v", order)
	}
	if f.Cached >= len(p.Prompt) || w.opts.KVTokens == 0 && f.Cached != 0 || f.Cached%w.opts.PageSize != 0 {
		w.t.Fatalf("%d of %d tokens cached", f.Cached, len(p.Prompt))
	}
	if p.DPRank != nil && f.DPRank != *p.DPRank {
		w.t.Fatalf("rank %d, asked for %d", f.DPRank, *p.DPRank)
	}
}

// ended checks the last word on a request against what it got and against an
// engine with room for all.
func (w *witness) ended(d Done) {
	t, l := w.t, w.live[d.Ref]
	if l == nil {
		t.Fatalf("%d done twice or never submitted", d.Ref)
	}
	if owed := d.Owed != 0; owed && (l.params.Pages != PagesOwed || d.Reason != infer.ReasonAbort || w.owed[d.Owed]) {
		t.Fatalf("the pages of %+v are kept: %+v", l, d)
	} else if owed {
		w.owed[d.Owed] = true
	}
	if d.Completion != len(l.ids) || d.PromptTokens != len(l.params.Prompt) || d.Retractions != l.retractions {
		t.Fatalf("done %+v, seen %+v", d, l)
	}
	want, reason, matched := w.alone(l.params)
	if d.Err != nil {
		switch {
		case d.Reason == infer.ReasonAbort && d.Stage != StageNone && l.params.Leg != Whole:
		case !w.opts.PriorityScheduling || w.opts.MaxQueued == 0 || d.Reason != infer.ReasonAbort || d.Err.Code != infer.CodeOverloaded:
			t.Fatalf("aborted by the engine: %+v", d)
		default:
			w.displaced++
		}
		w.cut = true
		l.ended = infer.ReasonAbort
	}
	switch {
	case l.ended != "" && d.Reason == l.ended:
		if !slices.Equal(l.ids, want[:min(len(l.ids), len(want))]) {
			t.Fatalf("got %v, alone %v", l.ids, want)
		}
	case !slices.Equal(l.ids, want) || d.Reason != reason || d.Matched != matched:
		t.Fatalf("got %v, %+v; alone %v, %s, %d", l.ids, d, want, reason, matched)
	}
	if ended := d.Reason != infer.ReasonAbort && l.ended == ""; l.params.Leg == LegPrefill && ended && !l.kept {
		t.Fatalf("kept: %v, and then %+v", l.kept, d)
	}
	w.prompts += uint64(d.PromptTokens)
	w.ids += uint64(len(l.ids))
	delete(w.live, d.Ref)
	w.done++
}

// alone returns what an engine says that has but this request, no cache, one rank
// and no drafts.
func (w *witness) alone(p Params) (ids []uint32, reason infer.Reason, matched int) {
	p.Priority, p.DPRank, p.LoRA, p.StreamInterval = 0, nil, "", 0
	p.Leg, p.Await, p.Fresh, p.Pages, p.Patience, p.Lease = Whole, false, false, PagesFreed, 0, 0
	c, err := New(Options{Words: w.opts.Words, EOS: w.opts.EOS, MeanTokens: w.opts.MeanTokens, Cost: Constant{}})
	if err != nil {
		w.t.Fatal(err)
	}
	r, err := c.Options().Prepare(p)
	if err != nil {
		w.t.Fatal(err)
	}
	ref, err := c.Submit(0, 0, r)
	if err != nil {
		w.t.Fatal(err)
	}
	said, done := finishAll(c)
	if _, ok := done[ref]; !ok {
		return said[ref], "stalled", -1
	}
	return said[ref], done[ref].Reason, done[ref].Matched
}

// rest lets all end and checks that everything was accounted for; only stalled
// requests remain, and those that wait behind them.
func (w *witness) rest() {
	t := w.t
	// Each leg finds its partner.
	for range 100 {
		for _, ref := range slices.Sorted(maps.Keys(w.live)) {
			w.core.Meet(w.now, ref)
			w.core.Offer(w.now, ref, Offer{})
			w.core.Release(w.now, ref)
		}
		w.write()
		w.runTo(w.now + int64(time.Minute))
	}
	stalled := 0
	for ref := range w.live {
		if w.core.requests[ref].held {
			stalled++
		}
	}
	if len(w.live) > 0 && stalled == 0 {
		t.Fatalf("%d requests wait for nothing", len(w.live))
	}
	for ref := range w.live {
		w.end(ref, w.core.Abort, infer.ReasonAbort)
	}
	w.runTo(w.now + int64(time.Hour))
	if n := w.core.Counts(); n.Owed != len(w.owed) {
		t.Fatalf("%d legs are owed their KV, counted %d", len(w.owed), n.Owed)
	}
	for len(w.owed) > 0 {
		w.write()
	}
	w.runTo(w.now + int64(time.Hour))
	n := w.core.Counts()
	if n.Owed != 0 || len(w.live) != 0 || w.done != w.accepted || n.Running != 0 || n.Waiting != 0 || n.Kept != 0 {
		t.Fatalf("%d live, %d of %d done, counts %+v", len(w.live), w.done, w.accepted, n)
	}
	if _, ok := w.core.Due(); ok {
		t.Fatal("an idle engine wants to be called")
	}
	// Every token of a prompt was computed, found or transferred, once for each
	// time that its request was admitted.
	if got, want := n.Prefilled+n.Cached+n.Transferred, w.prompts+w.again; got > want || got < want && !w.cut {
		t.Fatalf("%d prompt tokens computed, %d cached, %d transferred, of %d", n.Prefilled, n.Cached, n.Transferred, want)
	}
	for i, l := range w.core.Loads(nil) {
		if l != (Load{KVTotal: l.KVTotal, KVIdle: l.KVIdle}) {
			t.Fatalf("rank %d rests with %+v", i, l)
		}
	}
	if !w.core.FlushCache() {
		t.Fatal("an idle engine does not flush its cache")
	}
	w.pages()
}
