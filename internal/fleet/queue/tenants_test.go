package queue

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
)

func caller(band, tenant string, share float64) *tenancy.Caller {
	return &tenancy.Caller{Band: band, Tenant: tenant, Share: share}
}

// endOne ends the request that has run longest and settles its turn.
func (w *world) endOne(ms float64) (r *Request) {
	for _, r := range w.left {
		if w.bookings[r] != nil {
			w.q.Settle(&r.Turn, ms)
			w.end(r)
			return r
		}
	}
	return nil
}

// One tenant has a thousand requests that wait when others come with one each: those leave
// next. By arrival they would leave last.
func TestGreedyTenant(t *testing.T) {
	for _, one := range []bool{false, true} {
		w := newWorld(Limits{}, 1, 4)
		greedy := caller("default", "greedy", 1)
		for range 1000 {
			w.come(&Request{Model: "m", Caller: greedy, Cost: 10})
		}
		var others []*Request
		for i := range 99 {
			r := &Request{Model: "m", Caller: caller("default", fmt.Sprint(i), 1), Cost: 10}
			if one {
				r.Caller = greedy
			}
			others = append(others, r)
			w.come(r)
		}
		for range 120 {
			w.endOne(10)
		}
		n := 0
		for _, r := range others {
			if !r.Waits() {
				n++
			}
		}
		if want := 99; !one && n != want || one && n != 0 {
			t.Errorf("%d of the others have left; as one tenant: %t", n, one)
		}
	}
}

// Bands have their shares, not an order: three of four turns go to the one with three.
func TestBandsShare(t *testing.T) {
	w := newWorld(Limits{Bands: fair.Bands{"interactive": 3}}, 2, 4)
	had := map[string]float64{}
	some := []*tenancy.Caller{caller("interactive", "a", 1), caller("batch", "b", 1), caller("batch", "c", 3)}
	for i := range 3000 {
		w.come(&Request{Model: "m", Caller: some[i%3], Cost: 10})
	}
	for range 1000 {
		r := w.endOne(20)
		had[r.Caller.Tenant] += 20
	}
	for name, share := range map[string]float64{"a": 0.75, "b": 0.0625, "c": 0.1875} {
		if got := had[name] / 20000; math.Abs(got-share) > 0.02 {
			t.Errorf("tenant %s has had %.3f, want %.3f", name, got, share)
		}
	}
}

// Among a tenant's requests the earliest deadline is first, and does not help it against
// others. One without a deadline is overtaken by those of 30 s only.
func TestDeadlines(t *testing.T) {
	w := newWorld(Limits{}, 1, 1)
	a, b := caller("default", "a", 1), caller("default", "b", 1)
	var order []*Request
	come := func(who *tenancy.Caller, in int64) *Request {
		r := &Request{Model: "m", Caller: who, Cost: 10}
		if in != 0 {
			r.Deadline = w.now + in*1000*ms
		}
		w.come(r)
		return r
	}
	come(a, 0)
	plain := come(a, 0)
	soon := come(a, 2)
	distant := come(a, 600)
	other := come(b, 0)
	w.now += 31_000 * ms
	later := come(a, 1)
	for w.q.Len() > 0 {
		w.endOne(10)
		order = append(order, w.left[len(w.left)-1])
	}
	if !slices.Equal(order, []*Request{other, soon, plain, distant, later}) && !slices.Equal(order, []*Request{soon, other, plain, distant, later}) {
		for _, r := range order {
			t.Errorf("%s, place %d", r.Caller.Tenant, r.Place)
		}
	}
}

// When as many wait as may, the largest user gives way, and only it.
func TestLargestUserGivesWay(t *testing.T) {
	for _, l := range []Limits{{Requests: 10}, {Bytes: 1000}} {
		w := newWorld(l, 1, 1)
		greedy := caller("default", "greedy", 1)
		for range 30 {
			w.come(&Request{Model: "m", Caller: greedy, Bytes: 100})
		}
		if w.q.Len() != 10 {
			t.Fatalf("%d wait", w.q.Len())
		}
		var small []*Request
		for i := range 20 {
			r := &Request{Model: "m", Caller: caller("default", fmt.Sprint(i), 1), Bytes: 100}
			w.come(r)
			small = append(small, r)
		}
		n, out := 0, 0
		for _, r := range small {
			if r.Waits() {
				n++
			}
		}
		for r := w.q.Displaced(); r != nil; r = w.q.Displaced() {
			if out++; r.Caller != greedy || r.Waits() {
				t.Fatalf("%s was put out", r.Caller.Tenant)
			}
		}
		if n != 9 || out != 9 || w.q.Len() != 10 {
			t.Errorf("%d small ones wait, %d were put out, %d wait in all", n, out, w.q.Len())
		}
	}
}

// A tenant's wait is predicted by its own rate: another tenant's thousand requests do not make its
// requests too late.
func TestOwnDrain(t *testing.T) {
	w := newWorld(Limits{}, 1, 1)
	greedy, small := caller("default", "greedy", 1), caller("default", "small", 1)
	for range 1000 {
		w.come(&Request{Model: "m", Caller: greedy, Cost: 10})
	}
	for range 40 {
		w.come(&Request{Model: "m", Caller: small, Cost: 10})
		w.now += 100 * ms
		w.endOne(10)
	}
	if why, after := w.q.Refuses(greedy, "m", w.now+5000*ms, 0, w.now); why != TooLate || after.Seconds() < 50 {
		t.Errorf("the greedy one: %v after %v", why, after)
	}
	if why, after := w.q.Refuses(small, "m", w.now+5000*ms, 0, w.now); why != None || after.Seconds() > 5 {
		t.Errorf("the small one: %v after %v", why, after)
	}
}

// For any requests, ends, hang-ups, failures and deadlines of tenants: the bounds hold, nobody
// waits while there is room, the numbers of waiting and settled requests add up by tenant, and at
// each rank the request that leaves is the one whose turn it is.
func TestAnyTenants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{
			Requests: rapid.SampledFrom([]int{0, 0, 3, 10}).Draw(t, "requests"), Bytes: rapid.SampledFrom([]int64{0, 0, 500}).Draw(t, "bytes"),
			Bands: fair.Bands{"a": 3},
		}
		w := newWorld(limits, rapid.IntRange(1, 3).Draw(t, "ranks"), rapid.IntRange(1, 3).Draw(t, "most"))
		w.takes = func(r *Request, rank int) bool { return r.Class&(1<<rank) == 0 }
		picky := rapid.Bool().Draw(t, "picky")
		var who []*tenancy.Caller
		for i := range 6 {
			who = append(who, caller([]string{"a", "b"}[i%2], fmt.Sprint("t", i/2), float64(1+i)))
		}
		var all []*Request
		settled := map[[2]string]float64{}
		displaced := func() {
			for r := w.q.Displaced(); r != nil; r = w.q.Displaced() {
				w.refused[r] = Full
			}
		}
		one := func(keep func(*Request) bool) *Request { return anyOf(t, all, keep) }
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				displaced()
				w.check(t, all)
				waits, costs := map[[2]string]int{}, map[[2]string]float64{}
				for _, r := range all {
					if r.Waits() {
						k := [2]string{r.Caller.Band, r.Caller.Tenant}
						waits[k]++
						costs[k] += r.Cost
					}
				}
				for _, x := range w.q.Tenants() {
					k := [2]string{x.Band, x.Name}
					if x.Waiting != waits[k] || math.Abs(x.WaitingMS-costs[k]) > 1e-6 || math.Abs(x.ServedMS-settled[k]) > 1e-6 {
						t.Fatalf("of %v %d wait with %v ms and %v ms are settled; want %d, %v and %v", k, x.Waiting, x.WaitingMS, x.ServedMS, waits[k], costs[k], settled[k])
					}
				}
				if n := limits.Requests; n > 0 && w.q.Stats()["m"].Waiting > n {
					t.Fatalf("%d wait", w.q.Stats()["m"].Waiting)
				}
				if n := limits.Bytes; n > 0 && w.q.Len() > 1 && w.q.Bytes() > n {
					t.Fatalf("%d bytes wait", w.q.Bytes())
				}
			},
			"hang up": func(t *rapid.T) { w.hangUp(one((*Request).Waits)) }, "rank": w.rank, "time": w.time,
			"come": func(t *rapid.T) {
				r := &Request{
					Model: rapid.SampledFrom([]string{"m", "m-lora"}).Draw(t, "model"), Pool: "m", Caller: rapid.SampledFrom(who).Draw(t, "who"),
					Bytes: int64(rapid.IntRange(0, 300).Draw(t, "bytes")), Cost: float64(rapid.IntRange(1, 100).Draw(t, "ms")),
				}
				if rapid.Bool().Draw(t, "deadline") {
					r.Deadline = w.now + int64(rapid.IntRange(1, 60_000).Draw(t, "in"))*ms
				}
				if rapid.IntRange(0, 3).Draw(t, "expires") == 0 {
					r.Expires = max(w.now+int64(rapid.IntRange(-10, 500).Draw(t, "in"))*ms, 1)
				}
				if picky {
					w.choosy(t, r)
				}
				all = append(all, r)
				w.come(r)
			},
			"end": func(t *rapid.T) {
				if r := one(func(r *Request) bool { return w.bookings[r] != nil }); r != nil {
					took := float64(rapid.IntRange(0, 300).Draw(t, "took"))
					settled[[2]string{r.Caller.Band, r.Caller.Tenant}] += took
					w.q.Settle(&r.Turn, took)
					w.q.Settle(&r.Turn, 1000)
					w.end(r)
				}
			},
			"again": func(t *rapid.T) {
				if r := one(func(r *Request) bool { return w.bookings[r] != nil }); r != nil {
					w.q.Settle(&r.Turn, 0)
					w.fail(r)
					r.Again = true
					w.come(r)
				}
			},
		})
	})
}

// Beyond a thousand tenants the rest of a band is one.
func TestManyTenants(t *testing.T) {
	w := newWorld(Limits{}, 1, 1)
	for i := range 3000 {
		w.come(&Request{Model: "m", Caller: caller([]string{"a", "b"}[i%2], fmt.Sprint(i), 1), Cost: 1})
	}
	all, n := w.q.Tenants(), 0
	for _, x := range all {
		if n += x.Waiting; x.Name == Other && x.Waiting < 999 {
			t.Errorf("%d of the others of %s wait", x.Waiting, x.Band)
		}
	}
	if len(all) != mostTenants+2 || n != 2999 {
		t.Errorf("%d tenants, and %d of their requests wait", len(all), n)
	}
}

// BenchmarkTenants is one that leaves, with so many tenants that wait.
func BenchmarkTenants(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := newWorld(Limits{}, 8, 4)
			for i := range 100_000 {
				w.come(&Request{Model: "m", Caller: caller("default", fmt.Sprint(i%n), 1), Cost: 10})
			}
			b.ReportAllocs()
			for b.Loop() {
				r := w.left[0]
				w.left = w.left[1:]
				w.q.Settle(&r.Turn, 11)
				w.end(r)
				b.StopTimer()
				r.Place = 0
				w.come(r)
				b.StartTimer()
			}
		})
	}
}
