package fair

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/tenancy"
)

// crew is tenants that wait for turns at one resource.
type crew struct {
	clock *Clock
	line  Line
	who   []*tenancy.Caller
	group []*Group // nil: nothing waits
	n     []int
}

func newCrew(bands Bands, who ...*tenancy.Caller) *crew {
	return &crew{clock: NewClock(bands), who: who, group: make([]*Group, len(who)), n: make([]int, len(who))}
}

func (c *crew) tenant(i int) *Tenant { return c.clock.Tenant(c.who[i]) }

func (c *crew) come(i int) {
	t := c.tenant(i)
	c.clock.Enter(t)
	if c.n[i]++; c.n[i] == 1 {
		c.group[i] = &Group{Of: i}
		c.line.Add(c.group[i], t)
	}
}

func (c *crew) leave(i int) {
	c.clock.Leave(c.group[i].Tenant())
	if c.n[i]--; c.n[i] == 0 {
		c.line.Remove(c.group[i])
		c.group[i] = nil
	}
}

// turn has the next one take a turn.
func (c *crew) turn(ms float64) (i int, turn Turn) {
	i = c.line.First().Of.(int)
	turn = c.clock.Take(c.group[i].Tenant(), ms)
	c.leave(i)
	return i, turn
}

func caller(band, tenant string, share float64) *tenancy.Caller {
	return &tenancy.Caller{Band: band, Tenant: tenant, Share: share}
}

// callers are some tenants of some bands.
func callers(t *rapid.T) (Bands, []*tenancy.Caller) {
	bands := Bands{}
	var who []*tenancy.Caller
	for b := range rapid.IntRange(1, 3).Draw(t, "bands") {
		name := fmt.Sprint("band", b)
		bands[name] = float64(rapid.IntRange(1, 10).Draw(t, "band's share"))
		for i := range rapid.IntRange(1, 6).Draw(t, "tenants") {
			who = append(who, caller(name, fmt.Sprint("t", i), float64(rapid.IntRange(1, 10).Draw(t, "share"))))
		}
	}
	return bands, who
}

// Where something of all waits at all times, what they have had comes to their shares,
// whatever turns cost and were predicted to cost.
func TestSharesConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bands, who := callers(t)
		c := newCrew(bands, who...)
		largest := 20.0
		wrong := rapid.Float64Range(0.1, 10).Draw(t, "predictions are off by")
		had := make([]float64, len(who))
		total := 0.0
		type open struct {
			turn Turn
			ms   float64
		}
		var opened []open
		at := rapid.IntRange(1, 8).Draw(t, "under way")
		random := rapid.SliceOfN(rapid.Float64Range(1, largest), 64, 64).Draw(t, "costs")
		for i := range who {
			c.come(i)
			c.come(i)
		}
		for n := range 20000 {
			ms := random[n*7%len(random)]
			i, turn := c.turn(ms * wrong)
			c.come(i)
			had[i] += ms
			total += ms
			if opened = append(opened, open{turn, ms}); len(opened) > at {
				c.clock.Settle(&opened[0].turn, opened[0].ms)
				opened = opened[1:]
			}
		}
		// Turns that are under way were charged what was predicted.
		slack := float64(at+2) * largest * max(wrong, 1)
		var all float64
		of := map[string]float64{}
		for _, w := range who {
			of[w.Band] += w.Share
		}
		for b := range of {
			all += bands[b]
		}
		for i, w := range who {
			fair := total * bands[w.Band] / all * w.Share / of[w.Band]
			// A tenant is off by a turn of its own, and as its band is by one of that.
			if off := math.Abs(had[i] - fair); off > slack*(1+float64(len(who))) {
				t.Fatalf("tenant %s of %s has had %.0f ms, and its share is %.0f", w.Tenant, w.Band, had[i], fair)
			}
		}
	})
}

// For any arrivals, ends and hang-ups: turns go by what all have had, in the same order as a search
// through all of them would find; nobody waits for more than the others' shares; charges and
// settlements add up.
func TestAnyTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bands, who := callers(t)
		c := newCrew(bands, who...)
		var opened []Turn
		var waited = make([]float64, len(who)) // what others had while the tenant waited
		first := func() int {
			best := -1
			for i := range who {
				if c.n[i] > 0 && (best < 0 || c.clock.Before(c.group[i].Tenant(), c.group[best].Tenant())) {
					best = i
				}
			}
			return best
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				f := c.line.First()
				if best := first(); f == nil != (best < 0) || f != nil && f.Of.(int) != best {
					t.Fatalf("the first is %v, and %d by all", f, best)
				}
				for _, b := range c.line.bands {
					for i, g := range b.groups {
						if g.at != i || i > 0 && g.tenant.before(b.groups[(i-1)/2].tenant) {
							t.Fatal("the heap is none")
						}
					}
				}
			},
			"come": func(t *rapid.T) { c.come(rapid.IntRange(0, len(who)-1).Draw(t, "who")) },
			"hang up": func(t *rapid.T) {
				if i := rapid.IntRange(0, len(who)-1).Draw(t, "who"); c.n[i] > 0 {
					c.leave(i)
				}
			},
			"turn": func(t *rapid.T) {
				if c.line.First() == nil {
					return
				}
				ms := rapid.Float64Range(1, 100).Draw(t, "ms")
				i, turn := c.turn(ms)
				opened = append(opened, turn)
				for o := range who {
					if o == i || c.n[o] == 0 {
						waited[o] = 0
					} else if waited[o] += ms; waited[o] > 100*1000*float64(len(who)) {
						t.Fatalf("tenant %d waits while others have %.0f ms", o, waited[o])
					}
				}
			},
			"end": func(t *rapid.T) {
				if len(opened) == 0 {
					return
				}
				i := rapid.IntRange(0, len(opened)-1).Draw(t, "which")
				turn := opened[i]
				opened = slices.Delete(opened, i, i+1)
				x := turn.Tenant()
				before := x.done
				ms := rapid.Float64Range(0, 200).Draw(t, "ms")
				c.clock.Settle(&turn, ms)
				if want := before + ms*x.per; math.Abs(x.done-want) > 1e-6 {
					t.Fatalf("it is at %v after the settlement, want %v", x.done, want)
				}
				due := 0.0
				for _, o := range opened {
					if o.tenant == x {
						due += o.ms * x.per
					}
				}
				if math.Abs(x.due-due) > 1e-6 || math.Abs(x.v-x.done-x.due) > 1e-9 {
					t.Fatalf("it is charged %v for what is under way, want %v", x.due, due)
				}
				after := x.v
				if c.clock.Settle(&turn, 1e6); x.v != after {
					t.Fatal("it was settled twice")
				}
			},
		})
	})
}

// One for which nothing has waited does not make up for that, whatever it gets back of turns
// of before.
func TestIdleCollectsNothing(t *testing.T) {
	c := newCrew(nil, caller("b", "busy", 1), caller("b", "idle", 1))
	c.come(1)
	_, old := c.turn(1000)
	for range 2 {
		c.come(0)
	}
	for range 1000 {
		_, turn := c.turn(10)
		c.clock.Settle(&turn, 10)
		c.come(0)
	}
	c.come(1)
	c.clock.Settle(&old, 0)
	for range 10 {
		c.come(1)
	}
	had := [2]float64{}
	for range 10 {
		i, _ := c.turn(10)
		had[i] += 10
		c.come(i)
	}
	if math.Abs(had[0]-had[1]) > 20 {
		t.Errorf("since both wait, they have had %v", had)
	}
}

// Predictions that are too high do not put those that come anew behind one that has much under
// way, whatever becomes of that.
func TestTooHighPredictions(t *testing.T) {
	c := newCrew(nil, caller("b", "greedy", 1), caller("b", "small", 1))
	var opened []Turn
	for range 1000 {
		c.come(0)
	}
	for range 100 {
		_, turn := c.turn(1000)
		opened = append(opened, turn)
	}
	for n := range 200 {
		c.come(1)
		i, small := c.turn(1000)
		if i != 1 {
			t.Fatalf("the greedy one was before the %d-th of the small one", n)
		}
		c.clock.Settle(&small, 10)
		c.clock.Settle(&opened[0], 10)
		_, turn := c.turn(1000)
		opened = append(opened[1:], turn)
	}
}

// One that owes does so after it was idle, too.
func TestDebtsStay(t *testing.T) {
	c := newCrew(nil, caller("b", "busy", 1), caller("b", "debtor", 1))
	c.come(1)
	_, turn := c.turn(1)
	c.clock.Settle(&turn, 1000)
	c.come(0)
	c.come(0)
	c.come(1)
	for range 90 {
		if i, _ := c.turn(10); i == 1 {
			t.Fatal("it owes 1,000 ms, and had its turn after less")
		}
		c.come(0)
	}
}

// One that comes anew is before all that have had more, however many wait.
func TestNewcomer(t *testing.T) {
	var who []*tenancy.Caller
	for i := range 100 {
		who = append(who, caller("b", fmt.Sprint(i), 1))
	}
	c := newCrew(nil, who...)
	for range 1000 {
		c.come(0)
	}
	for i := range 98 {
		c.come(1 + i)
	}
	for range 98 + 500 {
		c.turn(10)
	}
	c.come(99)
	if i, _ := c.turn(10); i != 99 {
		t.Errorf("tenant %d was before it", i)
	}
}

// Tenants without bookings or debts are forgotten, and others are not.
func TestForgets(t *testing.T) {
	c := newCrew(nil, caller("b", "waits", 1), caller("b", "owes", 1), caller("b", "runs", 1))
	c.come(0)
	owed := c.clock.Take(c.tenant(1), 1)
	c.clock.Settle(&owed, 1e9)
	runs := c.clock.Take(c.tenant(2), 1)
	for i := range 100_000 {
		turn := c.clock.Take(c.clock.Tenant(caller("b", fmt.Sprint(i), 1)), 1)
		c.clock.Settle(&turn, 1)
	}
	if n := len(c.clock.tenants); n > 4*firstForget {
		t.Errorf("%d tenants are kept", n)
	}
	for i := range 3 {
		if c.clock.tenants[keyOf(c.who[i])] == nil {
			t.Errorf("%s is forgotten", c.who[i].Tenant)
		}
	}
	c.clock.Settle(&runs, 5)
}

// The largest user is found as by looking at all, gives way only to one that then holds no
// more, and what is held adds up.
func TestUsage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bands, who := callers(t)
		u := NewUsage(bands)
		held := make([]int64, len(who))
		band := func(i int) (sum float64) {
			for j, w := range who {
				if w.Band == who[i].Band {
					sum += float64(held[j])
				}
			}
			return sum / bands[who[i].Band]
		}
		t.Repeat(map[string]func(*rapid.T){
			"hold": func(t *rapid.T) {
				i := rapid.IntRange(0, len(who)-1).Draw(t, "who")
				n := int64(rapid.IntRange(1, 10).Draw(t, "n"))
				u.Hold(u.User(who[i]), n)
				held[i] += n
			},
			"let go": func(t *rapid.T) {
				i := rapid.IntRange(0, len(who)-1).Draw(t, "who")
				n := int64(rapid.IntRange(0, int(held[i])).Draw(t, "n"))
				u.Hold(u.User(who[i]), -n)
				held[i] -= n
			},
			"": func(t *rapid.T) {
				i := rapid.IntRange(0, len(who)-1).Draw(t, "who")
				n, need := int64(rapid.IntRange(1, 5).Draw(t, "n")), int64(rapid.IntRange(1, 5).Draw(t, "need"))
				x := u.User(who[i])
				if x.Held() != held[i] {
					t.Fatalf("%d holds %d, want %d", i, x.Held(), held[i])
				}
				y := u.Yields(x, n, need)
				if y == nil {
					return
				}
				j := slices.IndexFunc(who, func(w *tenancy.Caller) bool { return w.Band == y.Band && w.Tenant == y.Tenant })
				if i == j || held[j] < need {
					t.Fatalf("%d gives up %d of %d for %d", j, need, held[j], i)
				}
				for k := range who {
					if b := band(k); b > band(j) || who[k].Band == who[j].Band && float64(held[k])/who[k].Share > float64(held[j])/who[j].Share {
						t.Fatalf("%d gives way, and %d holds more of its share", j, k)
					}
				}
				held[i], held[j] = held[i]+n, held[j]-need
				switch {
				case who[i].Band == who[j].Band && float64(held[i])/who[i].Share > float64(held[j])/who[j].Share,
					who[i].Band != who[j].Band && band(i) > band(j):
					t.Fatalf("%d gave way to %d, which holds more then", j, i)
				}
				held[i], held[j] = held[i]-n, held[j]+need
			},
		})
	})
}

// One that is alone has all. Beside others it leaves an eighth to those with less than their
// share, and has all again when they have been gone for a minute.
func TestRoom(t *testing.T) {
	const second = int64(1e9)
	r := NewRoom(nil)
	greedy, small := caller("b", "greedy", 1), caller("b", "small", 1)
	now := second
	fill := func(who *tenancy.Caller) (n int64) {
		for h := r.Holder(who, now); r.Admits(h, 1, 80); n++ {
			r.Hold(h, 1)
		}
		return n
	}
	if n := fill(greedy); n != 80 {
		t.Fatalf("alone it has %d of 80", n)
	}
	if n := fill(small); n != 0 {
		t.Fatalf("%d of nothing", n)
	}
	r.Hold(r.Holder(greedy, now), -20)
	if n := fill(greedy); n != 10 {
		t.Errorf("with another it has %d again of 20", n)
	}
	if n := fill(small); n != 10 {
		t.Errorf("the small one has %d of what was left", n)
	}
	r.Hold(r.Holder(greedy, now), -30)
	if n := fill(small) + 10; n != 40 {
		t.Errorf("the small one has %d of 80", n)
	}
	r.Hold(r.Holder(small, now), -40)
	r.Hold(r.Holder(greedy, now), -40)
	for range 10 {
		now += 59 * second
		r.Holder(small, now)
	}
	if n := fill(greedy); n != 70 {
		t.Errorf("with another that comes now and then it has %d of 80", n)
	}
	now += 62 * second
	if n := fill(greedy) + 70; n != 80 || r.Held() != 80 {
		t.Errorf("alone again it has %d of 80, and %d are held", n, r.Held())
	}
	// A single unit goes to the first one that comes.
	r = NewRoom(nil)
	r.Holder(small, now)
	if h := r.Holder(greedy, now); !r.Admits(h, 1, 1) {
		t.Error("nobody gets the only one")
	}
}

// For any tenants: the amounts held never exceed the limit, and sums of shares are those of the
// tenants that are present.
func TestRoomAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bands, who := callers(t)
		r := NewRoom(bands)
		held := make([]int64, len(who))
		limit := int64(rapid.IntRange(1, 40).Draw(t, "limit"))
		now := int64(1)
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				var all, sum float64
				for _, b := range r.list {
					sum = 0
					for _, h := range r.users {
						if h.band == b {
							sum += h.share
						}
					}
					if math.Abs(sum-b.shares) > 1e-6 {
						t.Fatalf("the shares of %s are %v, want %v", string(b.named), b.shares, sum)
					}
					if b.there > 0 {
						all += b.share
					}
				}
				if math.Abs(all-r.shares) > 1e-6 || r.there != len(r.users) || r.Held() > limit {
					t.Fatalf("%v of %v, %d of %d, %d of %d", r.shares, all, r.there, len(r.users), r.Held(), limit)
				}
			},
			"take": func(t *rapid.T) {
				i := rapid.IntRange(0, len(who)-1).Draw(t, "who")
				n := int64(rapid.IntRange(1, 5).Draw(t, "n"))
				if h := r.Holder(who[i], now); r.Admits(h, n, limit) {
					r.Hold(h, n)
					held[i] += n
				} else if h.held == 0 && r.Held()+n <= limit {
					t.Fatal("one that has nothing gets nothing of what is left")
				}
			},
			"give": func(t *rapid.T) {
				i := rapid.IntRange(0, len(who)-1).Draw(t, "who")
				if held[i] > 0 {
					n := int64(rapid.IntRange(1, int(held[i])).Draw(t, "n"))
					r.Hold(r.Holder(who[i], now), -n)
					held[i] -= n
				}
			},
			"time": func(t *rapid.T) { now += int64(rapid.IntRange(1, 100).Draw(t, "s")) * 1e9 },
		})
	})
}

func TestParseBands(t *testing.T) {
	for _, test := range []struct {
		words []string
		want  string
	}{
		{nil, ""},
		{[]string{"interactive=3", "batch=0.5"}, "batch=0.5;interactive=3"},
		{[]string{"a b=1"}, "a b=1"}, // as a keys file may name one
		{[]string{"x"}, `"x" is no band`},
		{[]string{"=1"}, "the name is empty"},
		{[]string{"a\x00=1"}, "cannot be printed"},
		{[]string{"a\u2028=1"}, "cannot be printed"},
		{[]string{"\xff=1"}, "cannot be printed"},
		{[]string{"a=0"}, `the share of band a is "0"`},
		{[]string{"a=NaN"}, `the share of band a is "NaN"`},
		{[]string{"a=Inf"}, `the share of band a is "Inf"`},
		{[]string{"a=-1"}, `the share of band a is "-1"`},
		{[]string{"a=1=2"}, `the share of band a is "1=2"`},
		{[]string{"a=1", "a=2"}, "band a is given twice"},
		{[]string{strings.Repeat("a", 65) + "=1"}, "longer than 64 bytes"},
		{make([]string, 101), "101 bands"},
	} {
		bands, err := ParseBands(test.words)
		got := strings.Join(bands.words(), ";")
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, test.want) {
			t.Errorf("%q: %q, want %q", test.words, got, test.want)
		}
	}
}

func FuzzParseBands(f *testing.F) {
	f.Add("interactive=3;batch=0.5")
	f.Add("a==1;=2;\xff=1")
	f.Fuzz(func(t *testing.T, text string) {
		bands, err := ParseBands(strings.Split(text, ";"))
		if err != nil {
			return
		}
		again, err := ParseBands(bands.words())
		if err != nil || !maps.Equal(again, bands) {
			t.Fatalf("%q is written as %v, and read as %v: %v", text, bands, again, err)
		}
		for name := range bands {
			if s := bands.Share(name); !(s > 0) || math.IsInf(s, 0) {
				t.Fatalf("the share of %q is %v", name, s)
			}
		}
	})
}

// BenchmarkTurn measures a request that comes and takes its turn, beside this many waiting tenants.
func BenchmarkTurn(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var who []*tenancy.Caller
			for i := range n {
				who = append(who, caller("b", fmt.Sprint(i), 1))
			}
			c := newCrew(nil, who...)
			for i := range n {
				c.come(i)
				c.come(i)
			}
			b.ReportAllocs()
			for b.Loop() {
				g := c.line.First()
				turn := c.clock.Take(g.Tenant(), 10)
				c.clock.Settle(&turn, 11)
			}
		})
	}
}

// words returns the bands as they are given.
func (b Bands) words() (words []string) {
	for _, name := range slices.Sorted(maps.Keys(b)) {
		words = append(words, name+"="+strconv.FormatFloat(b[name], 'g', -1, 64))
	}
	return words
}
