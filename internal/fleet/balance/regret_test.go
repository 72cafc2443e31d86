package balance_test

import (
	"math"
	"testing"

	"weir/internal/fleet/balance"
)

// TestRegret has every policy's choice regretted by what it costs more than the least, whether
// the policy looks at costs or not, and without allocating.
func TestRegret(t *testing.T) {
	f := fleet(3, 1, 2, 4, 1.5, 5)
	q, _ := f.ask(prompt(0, 1, 0, 4000), 100, 7)
	var all balance.Decision
	new(balance.Cost).Pick(q, f.candidates, &all)
	least := all.Choice().Total
	if regret := all.Regret(new(balance.Cost), q, f.candidates); regret != 0 {
		t.Errorf("the least cost is regretted by %v ms", regret)
	}
	turns := new(balance.RoundRobin)
	for i := range f.candidates {
		var d balance.Decision
		if at := turns.Pick(q, f.candidates, &d); at != i {
			t.Fatalf("turn %d went to %d", i, at)
		}
		if got, want := d.Regret(turns, q, f.candidates), d.Choice().Total-least; math.Abs(got-want) > 1e-6 || got < 0 || (got > 0) != (i != 1) {
			t.Errorf("turn %d is regretted by %v ms, want %v", i, got, want)
		}
	}
	// An engine that has failed the request is no choice for it.
	q.Tried = append(q.Tried, f.candidates[1].Rank)
	var d balance.Decision
	if turns.Pick(q, f.candidates[:2], &d); d.Chosen != 0 || d.Regret(turns, q, f.candidates[:2]) != 0 {
		t.Errorf("%d was chosen, and is regretted by %v ms", d.Chosen, d.Regret(turns, q, f.candidates[:2]))
	}
	q.Tried = nil
	for _, name := range balance.Names() {
		p, _ := balance.New(name)
		var d balance.Decision
		p.Pick(q, f.candidates, &d)
		d.Regret(p, q, f.candidates)
		if n := testing.AllocsPerRun(100, func() { d.Regret(p, q, f.candidates) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if d := (balance.Decision{Chosen: -1}); d.Regret(turns, q, f.candidates) != 0 {
		t.Error("no choice is regretted")
	}
}
