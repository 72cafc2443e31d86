package pool

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
)

func someone(name string, share float64) *tenancy.Caller {
	return &tenancy.Caller{Tenant: name, Share: share}
}

// A tenant's job does not wait behind hundreds of another one's.
func TestTenantsTakeTurns(t *testing.T) {
	for _, apart := range []bool{true, false} {
		l := newLine(nil, classOf(DefaultSmall))
		greedy, other := someone("greedy", 1), someone("other", 1)
		if !apart {
			other = greedy
		}
		for i := range 500 {
			l.push(&job{who: greedy, cost: 1000, times: Times{Queued: int64(i + 1)}})
		}
		for range 10 {
			l.settle(l.pop(classes-1, 50), 50_000)
		}
		late := &job{who: other, cost: 1000, times: Times{Queued: 1e9}}
		l.push(late)
		n := 0
		for j := l.pop(classes-1, 50); j != late; j = l.pop(classes-1, 50) {
			n++
		}
		if apart && n > 1 || !apart && n < 400 {
			t.Errorf("%d jobs went before it; tenants apart: %t", n, apart)
		}
	}
}

// Where jobs of all wait, tenants have the work of their shares. Whatever comes, goes and is
// withdrawn, a job leaves once, one up to the class asked for, and sums add up.
func TestAnyTenantsInLine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLine(fair.Bands{"a": 3}, classOf(DefaultSmall))
		var who []*tenancy.Caller
		for i := range 5 {
			who = append(who, &tenancy.Caller{Band: []string{"a", "b"}[i%2], Tenant: fmt.Sprint(i), Share: float64(1 + i)})
		}
		var in []*job
		now := int64(0)
		out := func(t *rapid.T, j *job) {
			i := slices.Index(in, j)
			if i < 0 {
				t.Fatal("a job left twice")
			}
			in = slices.Delete(in, i, i+1)
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				sum, small := int64(0), 0
				for _, j := range in {
					sum += int64(j.cost)
					if j.class <= l.small {
						small++
					}
				}
				if l.len() != len(in) || l.cost(classes-1) != sum || (l.peek(classes-1) != nil) != (len(in) > 0) || (l.peek(l.small) != nil) != (small > 0) {
					t.Fatalf("%d jobs of %d, cost %d of %d, small: %v of %d", l.len(), len(in), l.cost(classes-1), sum, l.peek(l.small), small)
				}
			},
			"come": func(t *rapid.T) {
				now += int64(rapid.IntRange(1, 1e6).Draw(t, "later"))
				j := &job{who: rapid.SampledFrom(who).Draw(t, "who"), cost: 1 << rapid.IntRange(0, 22).Draw(t, "cost"), times: Times{Queued: now}}
				l.push(j)
				in = append(in, j)
			},
			"pop": func(t *rapid.T) {
				upTo := rapid.SampledFrom([]int{l.small, classes - 1, 18, 3}).Draw(t, "up to")
				j := l.pop(upTo, 50)
				if j == nil {
					if upTo >= l.small && upTo != classes-1 && upTo != 18 && slices.ContainsFunc(in, func(j *job) bool { return j.class <= upTo }) {
						t.Fatal("there is one")
					}
					return
				}
				if j.class > upTo {
					t.Fatalf("class %d, asked for up to %d", j.class, upTo)
				}
				out(t, j)
				l.settle(j, int64(rapid.IntRange(0, 1e9).Draw(t, "took")))
			},
			"withdraw": func(t *rapid.T) {
				if len(in) > 0 {
					j := rapid.SampledFrom(in).Draw(t, "which")
					if !l.remove(j) || l.remove(j) {
						t.Fatal("it was not waiting, or is still")
					}
					out(t, j)
				}
			},
		})
	})
}

// TestWorkByShares: of the time of the pool tenants have their shares, however long their jobs.
func TestWorkByShares(t *testing.T) {
	l := newLine(nil, classOf(DefaultSmall))
	who := []*tenancy.Caller{someone("long", 1), someone("short", 1), someone("more", 2)}
	costs := []int{500_000, 2_000, 20_000}
	had := [3]float64{}
	push := func(i int) { l.push(&job{who: who[i], cost: costs[i], times: Times{Queued: 1}}) }
	for i := range who {
		push(i)
		push(i)
	}
	total := 0.0
	for total < 1e8 {
		j := l.pop(classes-1, 50)
		i := slices.Index(who, j.who)
		took := int64(j.cost) * 60
		l.settle(j, took)
		had[i] += float64(j.cost)
		total += float64(j.cost)
		push(i)
	}
	for i, want := range []float64{0.25, 0.25, 0.5} {
		if got := had[i] / total; math.Abs(got-want) > 0.02 {
			t.Errorf("%s has had %.3f of the work, want %.2f", who[i].Tenant, got, want)
		}
	}
}

// When as many jobs wait as may, one of the tenant is put out that has most of them.
func TestPutOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{Workers: 1, QueueLimit: 10, Lane: -1})
		defer p.Close()
		release := make(chan struct{})
		go p.Run(t.Context(), 1, func() { <-release })
		synctest.Wait()
		results := map[string]chan error{"greedy": make(chan error, 100), "other": make(chan error, 100)}
		for n := range 30 {
			name := "greedy"
			if n >= 25 {
				name = "other"
			}
			go func() {
				_, err := p.RunFor(t.Context(), someone(name, 1), 1000, func(func()) {})
				results[name] <- err
			}()
			synctest.Wait()
		}
		close(release)
		time.Sleep(time.Second)
		synctest.Wait()
		for name, want := range map[string][2]int{"greedy": {5, 20}, "other": {5, 0}} {
			ran, refused := 0, 0
			for range len(results[name]) {
				if err := <-results[name]; err == nil {
					ran++
				} else if infer.AsError(err).Code == infer.CodeOverloaded {
					refused++
				}
			}
			if ran != want[0] || refused != want[1] {
				t.Errorf("%s: %d ran, %d were refused; want %v", name, ran, refused, want)
			}
		}
	})
}
