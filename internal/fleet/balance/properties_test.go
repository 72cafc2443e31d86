package balance_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
)

// TestLeastWork holds that what shares nothing with anything goes where the least work
// is ahead of as many requests, but for what may count as alike.
func TestLeastWork(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := fleet(even(6)...)
		each := rapid.IntRange(0, 4).Draw(t, "prompts of each")
		for i := range f.candidates {
			for _, n := range rapid.SliceOfN(rapid.IntRange(100, 20_000), each, each).Draw(t, "prompts") {
				f.candidates[i].Rank.Book(f.now, cost.Work{Length: n, New: n, Output: 50})
			}
		}
		q, _ := f.ask(prompt(0, 1, 0, rapid.IntRange(20, 10_000).Draw(t, "length")), 50, rapid.Uint64().Draw(t, "random"))
		var d balance.Decision
		at := new(balance.Cost).Pick(q, f.candidates, &d)
		least := math.Inf(1)
		for _, c := range f.candidates {
			least = min(least, c.Rank.Wait(f.now))
		}
		o := d.Choice()
		// Alike is what is within 5 % of the least cost, without its decoding.
		own := d.Best[0].Total - d.Best[0].Decode
		if alike := max(2, 0.05*own, f.candidates[at].Rank.Error(o.Work)) + cost.Typical.Step; o.Wait > least+alike {
			t.Fatalf("it waits %.1f ms, where another rank has %.1f", o.Wait, least)
		}
	})
}

// TestIdle has an idle fleet: what is resident decides, and new sessions spread.
func TestIdle(t *testing.T) {
	f := fleet(even(4)...)
	_, blocks := f.ask(prompt(1, 2, 8000, 8000), 100, 0)
	for i, share := range []int{0, 2, 4, 3} {
		f.caches[i].Place(blocks[:len(blocks)*share/4], 0)
	}
	p := new(balance.Cost)
	var d balance.Decision
	for i := range uint64(20) {
		q, _ := f.ask(prompt(1, 2, 8000, 8000), 100, i)
		if at := p.Pick(q, f.candidates, &d); at != 2 {
			t.Fatalf("chose %d", at)
		}
	}
	got := make([]int, 4)
	for i := range uint32(400) {
		q, _ := f.ask(prompt(0, i+10, 0, 1000), 100, uint64(i))
		got[p.Pick(q, f.candidates, &d)]++
	}
	if slices.Min(got) < 70 || slices.Max(got) > 130 {
		t.Errorf("new sessions went to %v", got)
	}
}

// TestHotPrefixSpreads holds that a request leaves its prefix just when waiting for it,
// and holding up the one that it waits for, costs more than computing it once more.
func TestHotPrefixSpreads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := fleet(even(2)...)
		shared := rapid.IntRange(2000, 8000).Draw(t, "shared") / blockTokens * blockTokens
		_, blocks := f.ask(prompt(1, 2, shared, shared), 10, 0)
		f.caches[0].Place(blocks, 0)
		ahead := rapid.IntRange(10, 20_000).Draw(t, "ahead")
		f.candidates[0].Rank.Book(f.now, cost.Work{Length: ahead, New: ahead, Output: 10})
		q, _ := f.ask(prompt(1, 3, shared, shared+200), 10, rapid.Uint64().Draw(t, "random"))
		// One request is there, and none elsewhere.
		here := f.candidates[0].Rank.Estimate(f.now, cost.Work{Length: shared + 200, New: 200, Output: 10})
		there := f.candidates[1].Rank.Estimate(f.now, cost.Work{Length: shared + 200, New: shared + 200, Output: 10})
		var d balance.Decision
		at := new(balance.Cost).Pick(q, f.candidates, &d)
		// Alike is what the cheaper one cannot be sure of, and what is within 5 % of its cost
		// without its decoding.
		own := here.Total - here.Decode
		if there.Total < here.Total {
			own = there.Total - there.Decode
		}
		alike := max(2, 0.05*own, f.candidates[0].Rank.Error(cost.Work{Length: shared + 200, New: 200}),
			f.candidates[1].Rank.Error(cost.Work{Length: shared + 200, New: shared + 200}))
		stay, leave := here.TTFT()+here.Decode+here.Others, there.TTFT()+there.Decode+there.Others
		if stay > leave+alike && at == 0 || stay < leave-alike && at == 1 {
			t.Fatalf("at %.1f ms with the prefix, and %.1f without, it chose %d", stay, leave, at)
		}
	})
}

// TestTies holds that what is alike is drawn.
func TestTies(t *testing.T) {
	f := fleet(even(5)...)
	got := make([]int, 5)
	var d balance.Decision
	for i := range uint64(1000) {
		q, _ := f.ask(prompt(0, 1, 0, 500), 100, i)
		got[new(balance.Cost).Pick(q, f.candidates, &d)]++
		if d.Why != balance.Chance {
			t.Fatalf("by %v", d.Why)
		}
	}
	if slices.Min(got) < 150 || slices.Max(got) > 250 {
		t.Errorf("%v", got)
	}
}

// TestMoreDecoders holds that a rank with more decoders costs more, and that of two such
// the one with fewer is chosen.
func TestMoreDecoders(t *testing.T) {
	f := fleet(even(2)...)
	for i, n := range []int{8, 2} {
		for range n {
			f.candidates[i].Rank.Book(f.now, cost.Work{Length: 10, New: 1, Output: 100}).First(f.now+1, -1, 0)
		}
	}
	w := cost.Work{Length: 1000, New: 1000, Output: 100}
	a, b := f.candidates[0].Rank.Estimate(f.now+ms, w), f.candidates[1].Rank.Estimate(f.now+ms, w)
	if a.Total <= b.Total || a.Others <= b.Others {
		t.Errorf("beside 8: %+v; beside 2: %+v", a, b)
	}
}

// TestPlainPick holds that the choice is that of the rule written down plainly: every cost as one
// rank says it, and of what is alike the least to compute, then the least share of KV, then chance.
func TestPlainPick(t *testing.T) {
	p := new(balance.Cost)
	var d balance.Decision
	rapid.Check(t, func(t *rapid.T) {
		f := fleet(rapid.SliceOfN(rapid.SampledFrom([]float64{1, 1, 1, 1.5}), 1, 8).Draw(t, "slowness")...)
		for i := range f.candidates {
			c := &f.candidates[i]
			for range rapid.IntRange(0, 5).Draw(t, "requests") {
				n := rapid.IntRange(10, 9000).Draw(t, "prompt")
				b := c.Rank.Book(f.now, cost.Work{Length: n, New: n, Output: 60})
				if rapid.Bool().Draw(t, "begun") {
					b.First(f.now+1, -1, 0)
				}
			}
			if n := rapid.IntRange(0, 1500).Draw(t, "has"); n >= blockTokens {
				_, blocks := f.ask(prompt(1, uint32(i)+2, n, n), 1, 1)
				f.caches[i].Place(blocks, f.now+rapid.SampledFrom([]int64{0, 40 * ms}).Draw(t, "soon"))
			}
		}
		q, _ := f.ask(prompt(1, 1, 1500, rapid.IntRange(1500, 4000).Draw(t, "length")), 80, rapid.Uint64().Draw(t, "random"))
		q.Now += rapid.Int64Range(0, 200*ms).Draw(t, "later")
		if rapid.Bool().Draw(t, "tried") {
			q.Tried = append(q.Tried, f.candidates[0].Rank)
		}
		if got, want := p.Pick(q, f.candidates, &d), plainly(q, f.candidates); got != want {
			t.Fatalf("chose %d, and the rule %d", got, want)
		}
	})
}

// TestPlainPickOfMany is TestPlainPick among many ranks, whose costs are not found where a bound
// is enough: some are full, not yet measured or not for long, late, shared with other gateways or
// without room in their caches. The best are named as the rule names them, too.
func TestPlainPickOfMany(t *testing.T) {
	f := fleet(slices.Repeat([]float64{1, 1, 1.02, 1.1, 2}, 12)...)
	for range 4 { // of which nothing is known
		cache := f.index.Cache(kvTokens / blockTokens)
		f.caches = append(f.caches, cache)
		f.candidates = append(f.candidates, balance.Candidate{Rank: f.model.Join(f.now, 0), Cache: cache.ID, KV: kvTokens})
	}
	for i := range f.candidates {
		if n := i % 7 * 200; n >= blockTokens {
			_, blocks := f.ask(prompt(1, uint32(i)+2, n, n), 1, 1)
			f.caches[i].Place(blocks, f.now+int64(i%3)*40*ms)
		}
	}
	const seed = 5
	r := rand.New(rand.NewPCG(seed, seed))
	var open []*cost.Booking
	p, begun := new(balance.Cost), map[*cost.Booking]bool{}
	var d balance.Decision
	for round := range 3000 {
		c := &f.candidates[r.IntN(len(f.candidates))]
		switch what := r.IntN(100); {
		case what < 45:
			n := 10 + r.IntN(9000)
			open = append(open, c.Rank.Book(f.now, cost.Work{Length: n, New: 1 + r.IntN(n), Output: 60}))
		case what < 85 && len(open) > 0:
			i := r.IntN(len(open))
			b := open[i]
			if begun[b] {
				b.End(f.now, 5)
				delete(begun, b)
				open = slices.Delete(open, i, i+1)
			} else {
				b.First(f.now, -1, 0)
				begun[b] = true
			}
		case what < 88:
			c.Rank.SetPeers(cost.Peers{Drained: f.now + r.Int64N(400*ms), InFlight: r.Int64N(6), Held: r.Int64N(9000)})
		case what < 91:
			c.Rank.SetLimits(cost.Limits{Running: r.IntN(9)})
		case what < 94:
			c.Rank.SetRoom(cost.Room{KV: kvTokens, InUse: r.Int64N(kvTokens), Kept: r.Int64N(kvTokens), Reuse: r.Float64()})
		}
		f.now += r.Int64N(30 * ms)
		if r.IntN(400) == 0 {
			f.now += 40_000 * ms // some have not been measured for long then
		}
		q, _ := f.ask(prompt(1, 1, 1300, 1300+r.IntN(4000)), 1+r.Float64()*300, r.Uint64())
		if r.IntN(5) == 0 {
			q.Tried = append(q.Tried, f.candidates[r.IntN(9)].Rank)
		}
		if got, want := p.Pick(q, f.candidates, &d), plainly(q, f.candidates); got != want {
			t.Fatalf("round %d: chose %d, and the rule %d", round, got, want)
		}
		var costs []float64
		for i := range f.candidates {
			if c := &f.candidates[i]; !slices.Contains(q.Tried, c.Rank) {
				costs = append(costs, c.Rank.Estimate(f.now, q.Work(c)).Total)
			}
		}
		slices.Sort(costs)
		for i, o := range d.Best[:d.N-1] { // the last one may be the choice
			if math.Abs(o.Total-costs[i]) > 1e-9*costs[i] {
				t.Fatalf("round %d: number %d of the best costs %v, and by the rule %v", round, i, o.Total, costs[i])
			}
		}
	}
}

func plainly(q *balance.Request, candidates []balance.Candidate) int {
	chosen, least, fastest := -1, math.Inf(1), math.Inf(1)
	costs, works := make([]float64, len(candidates)), make([]cost.Work, len(candidates))
	for i := range candidates {
		c := &candidates[i]
		works[i], costs[i] = q.Work(c), math.Inf(1)
		if slices.Contains(q.Tried, c.Rank) {
			continue
		}
		e := c.Rank.Estimate(q.Now, works[i])
		costs[i], fastest = e.Total, min(fastest, e.StepTime)
		if e.Total < least {
			chosen, least = i, e.Total
		}
	}
	if chosen < 0 || len(candidates)-len(q.Tried) == 1 {
		return chosen
	}
	first := candidates[chosen].Rank
	own := max(least-min(q.Output, first.Model().Moment(q.Now).Horizon)*fastest, 0)
	alike := least + max(2, 0.05*own, min(first.Error(works[chosen]), own))
	fresh, share, ties, x := q.Length, math.Inf(1), uint64(0), q.Random
	for i, c := range candidates {
		n, used := works[i].New, float64(c.Rank.Held())/float64(c.KV)
		switch {
		case costs[i] > alike || n >= fresh+q.BlockTokens:
		case n <= fresh-q.BlockTokens || used < share:
			chosen, fresh, share, ties = i, n, used, 1
		case used == share:
			x += 0x9e3779b97f4a7c15
			x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
			x = (x ^ x>>27) * 0x94d049bb133111eb
			x ^= x >> 31
			if ties++; x%ties == 0 {
				chosen = i
			}
		}
	}
	return chosen
}
