package balance_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/balance"
	"weir/internal/cost"
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
