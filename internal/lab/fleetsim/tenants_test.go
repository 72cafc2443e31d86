package fleetsim_test

import (
	"testing"
	"time"

	"weir/internal/lab/fleetsim"
	"weir/internal/sim"
)

// At ten times what the fleet can do, with one of a hundred tenants that sends 95 % of it, each
// of the others gets its share within 5 %, and TTFT p99 within 1.5 times of what it is without
// that one. By arrival neither is so.
func TestOverloadByOneTenant(t *testing.T) {
	o := fleetsim.Overload{
		Engine: sim.Options{Words: words, KVTokens: 400_000}, Engines: 8, MaxRunning: 64, Strict: true, Work: "input=lognormal(1500,2000),output=lognormal(200,200)",
		Policy: "cost", Load: 10, Tenants: 100, Greedy: 0.95, Seed: 1, For: 20 * time.Second, Warm: 8 * time.Second, Patience: 10 * time.Second,
	}
	for _, p := range sim.Profiles() {
		if p.Name == "llama-3.1-8b-h100" {
			o.Engine.Cost = p.Cost
		}
	}
	capacity, err := o.Capacity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all, err := o.Run(t.Context(), capacity)
	if err != nil {
		t.Fatal(err)
	}
	without := &all[2]
	for i := range all {
		s := &all[i]
		t.Logf("%s: least %.3f, %d of %d, TTFT p50 %.0f ms, p99 %.0f ms, the greedy one %.1f/s", s.Name, s.Least, s.Served, s.Asked, s.TTFT.P50, s.TTFT.P99, s.Greedy)
		wrong := s.Judge(without, 0.05, 1.5)
		if s.Name == fleetsim.ByArrival {
			if len(wrong) != 2 {
				t.Errorf("the control fails in %q only: the load is none", wrong)
			}
		} else if wrong != nil {
			t.Errorf("%s: %s", s.Name, wrong)
		}
	}
	if s := &all[0]; s.Greedy < capacity/4 {
		t.Errorf("what the others leave is not used: the greedy one gets %.1f/s of %.1f", s.Greedy, capacity)
	}
}
