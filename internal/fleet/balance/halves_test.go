package balance_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
)

// TestLeastPair has a request be divided between ranks, or not, at what costs least over all
// pairs and all that serve it alone, but for what may count as alike.
func TestLeastPair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, d := fleet(even(3)...), fleet(even(4)...)
		for i := range d.candidates {
			d.candidates[i].Does = balance.Does(rapid.IntRange(0, 2).Draw(t, "does"))
		}
		now := max(p.now, d.now)
		load := func(f *bench, part cost.Part, decoders, prompts int) {
			for i := range f.candidates {
				r := f.candidates[i].Rank
				for range rapid.IntRange(0, decoders).Draw(t, "decoders") {
					r.Book(now, cost.Work{Length: 500, New: 1, Output: 50}).First(now, -1, 0)
				}
				for _, n := range rapid.SliceOfN(rapid.IntRange(100, 10_000), 0, prompts).Draw(t, "prompts") {
					r.Book(now, cost.Work{Length: n, New: n, Output: 50, Part: part})
				}
			}
		}
		load(p, cost.PrefillPart, 0, 4)
		load(d, cost.Whole, 30, 2)
		q, _ := d.ask(prompt(0, 1, 0, rapid.IntRange(1, 20_000).Draw(t, "length")), float64(rapid.IntRange(1, 300).Draw(t, "output")), rapid.Uint64().Draw(t, "random"))
		q.Now = now
		h := &balance.Halves{Asks: true}
		q.Halves = h
		var first, then balance.Decision
		policy := new(balance.Cost)
		if policy.Pick(q, p.candidates, &first) < 0 {
			t.Fatal("no rank computes the prompt")
		}
		e := first.Choice().Estimate
		*h = balance.Halves{Partner: true, Ready: e.TTFT(), Delays: e.Others + e.Evicts, Fixed: 5, PerToken: 0.01}
		if policy.Pick(q, d.candidates, &then) < 0 {
			t.Fatal("no rank serves it")
		}
		// The least cost of all possible choices.
		whole := cost.Work{Length: q.Length, New: q.Length, Output: q.Output}
		half, least, fastest, unsure := whole, math.Inf(1), math.Inf(1), 0.0
		half.Part, half.Output = cost.PrefillPart, 0
		for _, serves := range d.candidates {
			if serves.Does != balance.Decode {
				e := serves.Rank.Estimate(now, whole)
				least, fastest = min(least, e.Total), min(fastest, e.StepTime)
				unsure = max(unsure, serves.Rank.Error(whole))
			}
			if serves.Does == balance.All {
				continue
			}
			for _, computes := range p.candidates {
				at := computes.Rank.Estimate(now, half)
				w := whole
				w.Part, w.After = cost.DecodePart, float32(at.TTFT()+5+0.01*float64(q.Length))
				e := serves.Rank.Estimate(now, w)
				least, fastest = min(least, e.Total+at.Others+at.Evicts), min(fastest, e.StepTime)
				unsure = max(unsure, computes.Rank.Error(half))
			}
		}
		// Alike is what lies within 5 % or the error, of the prefill rank and of the other.
		if got := then.Choice().Total; got > least+2*max(2, 0.05*least, unsure)+1 {
			t.Fatalf("it costs %.1f ms, and %.1f elsewhere", got, least)
		}
		if c := d.candidates[then.Chosen]; c.Does == balance.All && then.Choice().Work.Part != cost.Whole || c.Does == balance.Decode && then.Choice().Work.Part != cost.DecodePart {
			t.Fatalf("a rank that can do %d has part %d", c.Does, then.Choice().Work.Part)
		}
	})
}

// TestDivided holds what a request is divided for, with one rank for prompts and one that can do
// either: long prompts beside others that decode, and no short ones, cached ones or ones for
// which the other has more to do before.
func TestDivided(t *testing.T) {
	for name, test := range map[string]struct {
		length, cached, decoders, ahead int
		want                            cost.Part
	}{
		"long, beside others":           {8000, 0, 8, 0, cost.DecodePart},
		"long, alone":                   {8000, 0, 0, 0, cost.Whole},
		"short":                         {20, 0, 0, 0, cost.Whole},
		"short, behind others' prompts": {20, 0, 8, 40_000, cost.Whole},
		"cached":                        {8000, 7984, 4, 0, cost.Whole},
		"half of it cached":             {8000, 4000, 8, 0, cost.DecodePart},
		"long, behind others' prompts":  {2000, 0, 4, 80_000, cost.Whole},
	} {
		p, d := fleet(even(1)...), fleet(even(1)...)
		d.candidates[0].Does = balance.Either
		q, blocks := d.ask(prompt(0, 1, 0, test.length), 100, 1)
		now := max(p.now, d.now)
		q.Now = now
		d.caches[0].Place(blocks[:test.cached/blockTokens], 0)
		q.Matches = d.index.Match(nil, blocks, now)
		for range test.decoders {
			d.candidates[0].Rank.Book(now, cost.Work{Length: 500, New: 1, Output: 50}).First(now, -1, 0)
		}
		if test.ahead > 0 {
			p.candidates[0].Rank.Book(now, cost.Work{Length: test.ahead, New: test.ahead, Part: cost.PrefillPart})
		}
		alone := cost.Work{Length: test.length, New: test.length, Part: cost.PrefillPart}
		e := p.candidates[0].Rank.Estimate(now, alone)
		q.Halves = &balance.Halves{Partner: true, Ready: e.TTFT(), Delays: e.Others, Fixed: 5, PerToken: 0.013}
		var dec balance.Decision
		new(balance.Cost).Pick(q, d.candidates, &dec)
		if got := dec.Choice().Work.Part; got != test.want {
			t.Errorf("%s: part %d, where the prompt is computed elsewhere in %.0f ms; %+v", name, got, e.TTFT(), dec.Choice().Estimate)
		}
		// A policy that looks at no cost uses the ranks for what they are there for.
		if i := new(balance.RoundRobin).Pick(q, d.candidates, &dec); i != 0 || dec.Choice().Work.Part != cost.DecodePart {
			t.Errorf("%s: in turn it is part %d", name, dec.Choice().Work.Part)
		}
	}
}
