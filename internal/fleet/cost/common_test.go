package cost_test

import (
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"weir/internal/fleet/cost"
	"weir/internal/sim"
)

// every is the time from one exchange of gateways to the next.
const every = 10e6

// beside are gateways beside the one of a run. All exchange their entries.
type beside struct {
	gateways int
	// heard reports whether a gateway hears what another one tells at a time; nil: always. Those
	// of a run are 0, 1 and so on.
	heard func(from, to int, at int64) bool
	// mute gateways tell how many requests they have, and no entries.
	mute bool
	// advice is what the gateway of a run hears of another one's coefficients; nil: nothing.
	advice *cost.Coefficients

	ranks []*cost.Rank // the first one is the run's
	next  int64
	last  map[[2]int]int64 // when a gateway has heard of another one
}

func (b *beside) start(rank *cost.Rank) {
	if b == nil {
		return
	}
	b.ranks, b.next, b.last = []*cost.Rank{rank}, 0, map[[2]int]int64{}
	for range b.gateways {
		c, _ := rank.Coefficients()
		other := cost.NewModel(c).Join(0, rank.Budget())
		b.ranks = append(b.ranks, other)
	}
	for _, r := range b.ranks {
		r.Share()
	}
	if b.advice != nil {
		rank.Advise(0, *b.advice)
	}
}

// pick is the rank as the gateway knows it to which a request comes.
func (b *beside) pick(rank *cost.Rank, r *rand.Rand) *cost.Rank {
	if b == nil {
		return rank
	}
	return b.ranks[r.IntN(len(b.ranks))]
}

// exchange has all gateways know of each other what they have entered until shortly before a time.
func (b *beside) exchange(until int64) {
	if b == nil {
		return
	}
	if until == math.MaxInt64 {
		until = b.next
	}
	for ; b.next <= until; b.next += every {
		told := make([]cost.Peers, len(b.ranks))
		for i, from := range b.ranks {
			var entries []cost.Entry
			told[i], entries = from.Tell(b.next)
			for j, to := range b.ranks {
				if i == j || b.mute || b.heard != nil && !b.heard(i, j, b.next) {
					continue
				}
				if last := b.last[[2]int{i, j}]; last != 0 && last != b.next-every {
					to.Doubt(last, b.next)
				}
				b.last[[2]int{i, j}] = b.next
				to.Hear(strconv.Itoa(i), entries)
			}
		}
		for i, r := range b.ranks {
			var others cost.Peers
			until := b.next
			for j := range told {
				if i == j {
					continue
				}
				others.InFlight += told[j].InFlight
				if last := b.last[[2]int{j, i}]; last != 0 {
					until = min(until, last)
				}
			}
			r.SetPeers(others)
			if b.mute && others.InFlight > 0 {
				r.Doubt(b.next, b.next)
			}
			r.Settle(until, b.next)
		}
	}
}

// off is by how much what a gateway predicts of prompts of some lengths, and of decoding, differs
// at most from the truth.
func off(c, truth cost.Coefficients) (worst float64) {
	for _, n := range []float64{300, 1000, 5000} {
		a := cost.Prefill(n, n, 8192)
		worst = max(worst, math.Abs(c.Of(a)/truth.Of(a)-1))
	}
	a := cost.Amount{Decodes: 10, Decoded: 30}
	return max(worst, math.Abs(c.Of(a)/truth.Of(a)-1))
}

// TestSeveralGateways has one, two and four gateways give an engine the same requests. Each of
// several learns as much of it as one that has given it all. The same holds when they miss some of
// what the others tell, and for one that hears nothing for the first half.
func TestSeveralGateways(t *testing.T) {
	chance := rand.New(rand.NewPCG(3, 5))
	for _, test := range []struct {
		name  string
		heard func(from, to int, at int64) bool
		least float64 // what may be off, whatever one gateway is off by
	}{
		{"all is heard", nil, 0.1},
		{"some is missed", func(int, int, int64) bool { return chance.Float64() > 0.003 }, 0.15},
		{"one joins", func(_, to int, at int64) bool { return to != 0 || at > 25e9 }, 0.15},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, stamps := range []bool{true, false} {
				for seed := range uint64(2) {
					l := load{requests: 300, rate: 6, length: mixedLengths, output: uniform(20, 120), stamps: stamps, seed: seed}
					w := truth(published)
					c, _ := run(t, &engine{published}, sim.Options{}, l, prior).Coefficients()
					single := off(c, w)
					for _, gateways := range []int{2, 4} {
						l.beside = &beside{gateways: gateways - 1, heard: test.heard}
						run(t, &engine{published}, sim.Options{}, l, prior)
						for i, r := range l.beside.ranks {
							c, seen := r.Coefficients()
							if is := off(c, w); is > max(2*single, test.least) || seen < 20 {
								t.Errorf("stamps %v, seed %d, gateway %d of %d: off by %.3f after %d intervals, a single one by %.3f: %+v", stamps, seed, i, gateways, is, seen, single, c)
							}
						}
					}
				}
			}
		})
	}
}

// TestMuteGateways has gateways tell no entries, like those of an earlier version. What a gateway
// has learned stays as it is while they have requests there, and what another one has learned
// counts where it has not learned enough.
func TestMuteGateways(t *testing.T) {
	w := truth(published)
	for seed := range uint64(3) {
		l := load{requests: 300, rate: 6, length: mixedLengths, output: uniform(20, 120), stamps: true, seed: seed, beside: &beside{gateways: 3, mute: true, advice: &w}}
		rank := run(t, &engine{published}, sim.Options{}, l, prior)
		c, _ := rank.Coefficients()
		if is := off(c, w); is > 0.1 || rank.Cold() {
			t.Errorf("seed %d: off by %.3f: %+v, cold %v", seed, is, c, rank.Cold())
		}
		rank.Advise(l.beside.next, prior)
		if now, _ := rank.Coefficients(); now != c {
			t.Errorf("seed %d: %+v is replaced by another gateway's %+v", seed, c, now)
		}
	}
}

// TestMissedEntries has a gateway miss a request of another one, and then the end of one. Nothing
// is learned from intervals in which the requests that are known are not all, and from the next one
// something is.
func TestMissedEntries(t *testing.T) {
	rank := cost.NewModel(cost.Typical).Join(1, 0)
	rank.Share()
	now := int64(1)
	tell := func(open int, entries ...cost.Entry) {
		rank.Hear("another", append(entries, cost.Entry{Kind: cost.Told, At: now, Open: open}))
	}
	// serve serves a request. The other gateway tells how many it has all the time.
	serve := func(open int) (seen int) {
		b := rank.Book(now, cost.Work{Length: 500, New: 500, Output: 1})
		for range 3 {
			now += every
			tell(open)
		}
		b.First(now, 0, 0)
		now += every
		b.End(now, 1)
		return settled(rank, now)
	}
	booked := func(request uint64) cost.Entry {
		return cost.Entry{Kind: cost.Booked, Request: request, At: now, Work: cost.Work{Length: 9, New: 9}}
	}
	for _, step := range []struct {
		name   string
		open   int
		before func()
		learns bool
	}{
		{"there is nothing", 0, func() {}, true},
		{"the beginning of a request was missed", 1, func() {}, false},
		{"it has ended", 0, func() { tell(0) }, true},
		{"a request is known", 1, func() { tell(1, booked(1)) }, true},
		{"its end was missed", 0, func() { tell(0) }, true},
		{"another one is known", 1, func() { tell(1, booked(2)) }, true},
		{"the gateway has left", 0, func() { rank.Hear("another", []cost.Entry{{Kind: cost.Left, At: now}}) }, true},
	} {
		step.before()
		before := settled(rank, now)
		now += every
		if seen := serve(step.open); seen > before != step.learns {
			t.Errorf("%s: %d intervals were learned from, and then %d", step.name, before, seen)
		}
	}
}

// settled is how many intervals a rank has learned from when all is known until a time.
func settled(r *cost.Rank, now int64) int {
	r.Tell(now)
	r.Settle(now, now)
	_, seen := r.Coefficients()
	return seen
}
