package queue

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weir/internal/fleet/cost"
	"weir/internal/tenancy"
)

const ms = int64(1e6)

// world is ranks of a model each, that run so many requests at once, and requests that go
// through the queue to them as a gateway has them go.
type world struct {
	q     *Queue
	ranks []*cost.Rank
	up    []bool
	now   int64
	most  int
	takes func(r *Request, rank int) bool
	wants map[*Request]int // the rank that it waits for if it is full; -1: any

	left     []*Request
	at       map[*Request]int // the rank where it went
	bookings map[*Request]*cost.Booking
	refused  map[*Request]Reason
}

func newWorld(l Limits, ranks, most int) *world {
	w := &world{most: most, wants: map[*Request]int{}, at: map[*Request]int{}, bookings: map[*Request]*cost.Booking{}, refused: map[*Request]Reason{}, now: ms}
	w.q = New(l, w)
	model := cost.NewModel(cost.Typical)
	for range ranks {
		r := model.Join(w.now, 0)
		r.SetLimits(cost.Limits{Running: most, Strict: true})
		w.ranks, w.up = append(w.ranks, r), append(w.up, true)
	}
	return w
}

func (w *world) Takes(r *Request, rank *cost.Rank) bool {
	i := slices.Index(w.ranks, rank)
	return w.up[i] && (w.takes == nil || w.takes(r, i))
}

func (w *world) Room(r *Request, now int64) bool {
	return slices.ContainsFunc(w.ranks, func(k *cost.Rank) bool { return w.Takes(r, k) && k.Fits(now, r.Answers) })
}

func (w *world) Frees(r *Request, now int64) int64 { return 0 }

// come has a request come.
func (w *world) come(r *Request) {
	r.Answers = max(r.Answers, 1)
	if _, ok := w.wants[r]; !ok {
		w.wants[r] = -1
	}
	if w.q.Enter(r, w.now) {
		w.decide(r)
	} else if why := w.q.Wait(r, w.now); why != None {
		w.refused[r] = why
	}
	w.turn()
}

// turn calls those who are to decide.
func (w *world) turn() {
	for {
		r := w.q.Expire(w.now)
		if r == nil {
			break
		}
		w.refused[r] = Expired
	}
	w.q.Turn(w.now, w.decide)
}

// decide has a request choose.
func (w *world) decide(r *Request) {
	want := w.wants[r]
	if want >= 0 && !w.Takes(r, w.ranks[want]) {
		want = -1
	}
	for i, k := range w.ranks {
		if (want < 0 || want == i) && w.Takes(r, k) && w.q.Give(r, k, w.now) {
			w.left = append(w.left, r)
			w.at[r], w.bookings[r] = i, k.Book(w.now, cost.Work{Length: 100, New: 100, Output: 10})
			return
		}
	}
	why := None
	if want >= 0 && w.Room(r, w.now) {
		why = w.q.Park(r, w.ranks[want], 10, w.now)
	} else {
		why = w.q.Wait(r, w.now)
	}
	if why != None {
		w.refused[r] = why
	}
}

// end has a request end that has left.
func (w *world) end(r *Request) {
	w.bookings[r].End(w.now, 0)
	delete(w.bookings, r)
	w.turn()
}

func (w *world) cancel(r *Request) {
	w.q.Cancel(r, w.now)
	w.turn()
}

// check fails where the bound does not bind, somebody waits for whom there is room, or the
// books do not add up.
func (w *world) check(t *rapid.T, all []*Request) {
	t.Helper()
	for i, k := range w.ranks {
		if n := k.InFlight(); n > int64(w.most) {
			t.Fatalf("rank %d has %d requests, and runs %d", i, n, w.most)
		}
	}
	waiting, bytes := 0, int64(0)
	for _, r := range all {
		_, left := w.at[r]
		if _, refused := w.refused[r]; r.Waits() == (left || refused) && r.Waits() {
			t.Fatalf("a request waits that has left %t or was refused %t", left, refused)
		}
		if !r.Waits() {
			continue
		}
		waiting++
		bytes += r.Bytes
		if want := w.wants[r]; want < 0 && w.Room(r, w.now) {
			t.Fatalf("a request waits, and a rank has room for it")
		} else if want >= 0 && r.Rank() == w.ranks[want] && w.ranks[want].Fits(w.now, r.Answers) {
			t.Fatalf("a request waits for rank %d, which has room", want)
		}
		if r.Expires > 0 && r.Expires <= w.now {
			t.Fatalf("a request waits beyond its time")
		}
	}
	if waiting != w.q.Len() || bytes != w.q.Bytes() {
		t.Fatalf("%d requests with %d bytes wait, and the queue says %d with %d", waiting, bytes, w.q.Len(), w.q.Bytes())
	}
	if due := w.q.Due(w.now); due != 0 && due <= w.now {
		t.Fatalf("something is due %d ns ago, after a turn", w.now-due)
	}
	claimed := 0.0
	for _, k := range w.ranks {
		claimed += k.Claimed()
	}
	parked := 0
	for _, r := range all {
		if r.Rank() != nil {
			parked++
		}
	}
	if d := claimed - 10*float64(parked); d > 1e-3 || d < -1e-3 {
		t.Fatalf("%d wait for ranks and claim %v ms of them", parked, claimed)
	}
}

// The events that any history may have.

func (w *world) hangUp(r *Request) {
	if r != nil {
		w.cancel(r)
		w.refused[r] = None
	}
}

func (w *world) rank(t *rapid.T) {
	i := rapid.IntRange(0, len(w.ranks)-1).Draw(t, "rank")
	w.up[i] = !w.up[i]
	w.q.Changed(w.now)
	w.turn()
}

func (w *world) time(t *rapid.T) {
	w.now += int64(rapid.IntRange(1, 300).Draw(t, "ms")) * ms
	w.turn()
}

// fail has the engine fail a request, which then has no rank.
func (w *world) fail(r *Request) {
	w.bookings[r].End(w.now, 0)
	delete(w.bookings, r)
	delete(w.at, r)
	i := slices.Index(w.left, r)
	w.left = slices.Delete(w.left, i, i+1)
}

// choosy has a request take only some ranks, and perhaps wait for one of them.
func (w *world) choosy(t *rapid.T, r *Request) {
	r.Class = uint64(rapid.IntRange(0, 1<<len(w.ranks)-2).Draw(t, "class"))
	if rapid.Bool().Draw(t, "wants") {
		w.wants[r] = rapid.IntRange(0, len(w.ranks)-1).Draw(t, "want")
	}
}

// anyOf draws one of the requests for which keep holds, nil if there is none.
func anyOf(t *rapid.T, all []*Request, keep func(*Request) bool) *Request {
	var some []*Request
	for _, r := range all {
		if keep(r) {
			some = append(some, r)
		}
	}
	if len(some) == 0 {
		return nil
	}
	return rapid.SampledFrom(some).Draw(t, "which")
}

// For any arrivals, ends, hang-ups and deadlines: the bounds hold, each request leaves once or is
// refused once, none waits while there is room or beyond its time, and among requests for the same
// ranks the first to come is the first to leave.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limits := Limits{Requests: rapid.SampledFrom([]int{0, 0, 3, 10}).Draw(t, "requests"), Bytes: rapid.SampledFrom([]int64{0, 0, 500}).Draw(t, "bytes")}
		w := newWorld(limits, rapid.IntRange(1, 4).Draw(t, "ranks"), rapid.IntRange(1, 5).Draw(t, "most"))
		picky := rapid.Bool().Draw(t, "picky")
		w.takes = func(r *Request, rank int) bool { return r.Class&(1<<rank) == 0 }
		var all []*Request
		one := func(keep func(*Request) bool) *Request { return anyOf(t, all, keep) }
		t.Repeat(map[string]func(*rapid.T){
			"":        func(t *rapid.T) { w.check(t, all) },
			"hang up": func(t *rapid.T) { w.hangUp(one((*Request).Waits)) }, "rank": w.rank, "time": w.time,
			"come": func(t *rapid.T) {
				r := &Request{Model: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "model"), Bytes: int64(rapid.IntRange(0, 300).Draw(t, "bytes"))}
				if rapid.IntRange(0, 3).Draw(t, "expires") == 0 {
					r.Expires = w.now + int64(rapid.IntRange(-10, 500).Draw(t, "in"))*ms
					r.Expires = max(r.Expires, 1)
				}
				if picky {
					w.choosy(t, r)
				}
				all = append(all, r)
				w.come(r)
			},
			"end": func(t *rapid.T) {
				if r := one(func(r *Request) bool { return w.bookings[r] != nil }); r != nil {
					w.end(r)
				}
			},
			"again": func(t *rapid.T) {
				if r := one(func(r *Request) bool { return w.bookings[r] != nil }); r != nil {
					w.fail(r)
					w.come(r)
				}
			},
		})
	})
}

// Requests that differ in nothing leave exactly in the order in which they came, whoever ends
// or hangs up in between.
func TestOrderIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(Limits{}, rapid.IntRange(1, 3).Draw(t, "ranks"), rapid.IntRange(1, 4).Draw(t, "most"))
		var all []*Request
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if !slices.IsSortedFunc(w.left, func(a, b *Request) int { return int(a.Place - b.Place) }) {
					t.Fatal("one overtook another")
				}
			},
			"come": func(t *rapid.T) {
				r := &Request{Model: "m"}
				all = append(all, r)
				w.come(r)
			},
			"end": func(t *rapid.T) {
				for _, r := range w.left {
					if w.bookings[r] != nil && rapid.Bool().Draw(t, "this") {
						w.end(r)
						return
					}
				}
			},
			"hang up": func(t *rapid.T) {
				if len(all) > 0 {
					w.cancel(rapid.SampledFrom(all).Draw(t, "which"))
				}
			},
		})
	})
}

// One that waits for a rank lets others by, and goes there before all that come later. When
// the rank is gone it is the first of those that wait for any.
func TestPark(t *testing.T) {
	w := newWorld(Limits{}, 2, 1)
	first, sticky, later, other := &Request{Model: "m"}, &Request{Model: "m"}, &Request{Model: "m"}, &Request{Model: "m"}
	w.wants[sticky], w.wants[later] = 0, 0
	w.come(first)
	w.come(sticky)
	w.come(later)
	if sticky.Rank() != w.ranks[0] || later.Rank() != w.ranks[0] || w.ranks[0].Claimed() != 20 {
		t.Fatalf("they wait for %v and %v, which is claimed for %v ms", sticky.Rank(), later.Rank(), w.ranks[0].Claimed())
	}
	if sticky.First() != w.ranks[0] || later.First() != nil {
		t.Fatal("the wrong one is first")
	}
	w.come(other)
	if w.at[other] != 1 || !sticky.Waits() {
		t.Fatal("it did not let the other one by")
	}
	w.end(first)
	if w.at[sticky] != 0 || sticky.Waits() || !later.Waits() {
		t.Fatal("it did not go when there was room")
	}
	w.up[0] = false
	w.q.Changed(w.now)
	w.turn()
	if later.Rank() != nil || !later.Waits() || w.ranks[0].Claimed() != 0 {
		t.Fatal("it waits for a rank that is gone")
	}
	last := &Request{Model: "m"}
	w.come(last)
	w.end(other)
	if at, ok := w.at[later]; !ok || at != 1 || !last.Waits() {
		t.Fatal("it has lost its place")
	}
}

// One that decided on a full rank decides anew, where another one has room, after a while.
func TestDecidesAnew(t *testing.T) {
	w := newWorld(Limits{}, 2, 1)
	first, sticky := &Request{Model: "m"}, &Request{Model: "m"}
	w.wants[sticky] = 0
	w.come(first)
	w.come(sticky)
	w.wants[sticky] = -1
	if w.turn(); !sticky.Waits() {
		t.Fatal("it did not wait")
	}
	if due := w.q.Due(w.now); due != w.now+reconsider {
		t.Fatalf("due in %d ms", (due-w.now)/ms)
	}
	w.now += reconsider
	if w.turn(); w.at[sticky] != 1 {
		t.Fatal("it waits still")
	}
}

// A request that comes back from an engine that failed it is before all that came later.
func TestComesBack(t *testing.T) {
	w := newWorld(Limits{Requests: 1}, 1, 1)
	a, b, c := &Request{Model: "m"}, &Request{Model: "m"}, &Request{Model: "m"}
	w.come(a)
	w.come(b)
	if w.come(c); w.refused[c] != Full {
		t.Fatalf("the second that would wait: %v", w.refused[c])
	}
	w.bookings[a].End(w.now, 0)
	delete(w.bookings, a)
	w.come(a)
	if len(w.left) != 2 || w.left[1] != a || !b.Waits() {
		t.Fatal("it lost its place")
	}
}

// A model does not wait for another one's ranks, and one class not for those of another.
func TestNobodyWaitsForAnothersRanks(t *testing.T) {
	w := newWorld(Limits{}, 2, 1)
	w.takes = func(r *Request, rank int) bool { return r.Class == uint64(rank) }
	one := &Request{Model: "m"}
	w.come(one)
	for range 5 {
		w.come(&Request{Model: "m"})
	}
	other := &Request{Model: "m", Class: 1}
	if w.come(other); w.at[other] != 1 || w.q.Len() != 5 {
		t.Fatalf("%d wait", w.q.Len())
	}
}

// If two flows go to the same rank, neither takes the other's turn, even if one keeps coming.
func TestNoFlowStarves(t *testing.T) {
	w := newWorld(Limits{}, 1, 1)
	rare, now := &Request{Model: "m", Class: 1}, &Request{Model: "m"}
	w.come(now)
	w.come(rare)
	for range 3 {
		next := &Request{Model: "m"}
		w.come(next)
		// There is room, and nobody has decided yet.
		w.bookings[now].End(w.now, 0)
		late := &Request{Model: "m", Class: 2}
		if !w.q.Enter(late, w.now) || w.q.Give(late, w.ranks[0], w.now) {
			t.Fatal("one that came last took the rank")
		}
		w.turn()
		now = w.left[len(w.left)-1]
	}
	if _, left := w.at[rare]; !left {
		t.Fatal("it has not left")
	}
}

// One that might come is told behind whom it would wait, and nothing comes of it.
func TestBefore(t *testing.T) {
	w := newWorld(Limits{}, 2, 1)
	might := &Request{Model: "m", Answers: 1}
	ask := func(free bool, any, first int) {
		t.Helper()
		if got := w.q.Free(might, w.ranks[1], w.now); got != free {
			t.Errorf("it would be given the second rank at once: %t, want %t", got, free)
		}
		if n, m := w.q.Before(might, nil), w.q.Before(might, w.ranks[0]); n != any || m != first {
			t.Errorf("it would wait behind %d, and for the first rank behind %d; want %d and %d", n, m, any, first)
		}
	}
	ask(true, 0, 0)
	running := []*Request{{Model: "m"}, {Model: "m"}}
	for _, r := range running {
		w.come(r)
	}
	ask(false, 0, 0)
	parked, waiting := &Request{Model: "m"}, &Request{Model: "m"}
	for _, r := range []*Request{parked, waiting} {
		r.Answers = 1
		if !w.q.Enter(r, w.now) {
			t.Fatal("somebody waits")
		}
		if r == parked {
			w.q.Park(r, w.ranks[0], 5, w.now)
		} else {
			w.q.Wait(r, w.now)
		}
	}
	ask(false, 1, 1)
	if might.Place != 0 || might.Waits() || w.q.Len() != 2 {
		t.Errorf("it has a place: %+v, and %d wait", might, w.q.Len())
	}
	// The rank that is free then is for the one that waits.
	for _, r := range running {
		w.bookings[r].End(w.now, 0)
	}
	if !w.ranks[1].Fits(w.now, 1) {
		t.Fatal("the rank has no room")
	}
	ask(false, 1, 1)
}

// A request that could not leave within its time is refused when it comes, once the rate is known.
// A request that waits gets the length of the wait.
func TestTooLate(t *testing.T) {
	w := newWorld(Limits{}, 1, 1)
	var running []*Request
	for range 20 {
		r := &Request{Model: "m"}
		running = append(running, r)
		w.come(r)
	}
	if why, after := w.q.Refuses(tenancy.Anyone, "m", w.now+ms, 0, w.now); why != None || after != 0 {
		t.Fatalf("refused for %v after %v, when nothing has left", why, after)
	}
	for i := range 10 {
		w.now += 100 * ms
		w.end(running[i])
	}
	// Nine wait, and one leaves in 100 ms.
	if why, after := w.q.Refuses(tenancy.Anyone, "m", w.now+500*ms, 0, w.now); why != TooLate || after.Milliseconds() < 890 || after.Milliseconds() > 910 {
		t.Errorf("refused for %v after %v", why, after)
	}
	if why, _ := w.q.Refuses(tenancy.Anyone, "m", w.now+920*ms, 0, w.now); why != None {
		t.Errorf("one that has the time is refused for %v", why)
	}
	if why, _ := w.q.Refuses(tenancy.Anyone, "other", w.now+ms, 0, w.now); why != None {
		t.Errorf("another model's is refused for %v", why)
	}
	if why, _ := w.q.Refuses(tenancy.Anyone, "m", w.now-ms, 0, w.now); why != Expired {
		t.Errorf("one of the past is refused for %v", why)
	}
	// Nothing leaves any more: what was measured becomes less true.
	w.now += 1000 * ms
	if _, after := w.q.Refuses(tenancy.Anyone, "m", 0, 0, w.now); after.Milliseconds() < 1750 || after.Milliseconds() > 1850 {
		t.Errorf("it drains in %v", after)
	}
	for _, r := range running[10:] {
		if r.Waits() {
			w.cancel(r)
		}
	}
	if why, _ := w.q.Refuses(tenancy.Anyone, "m", w.now+ms, 0, w.now); why != None {
		t.Errorf("with nobody waiting it is refused for %v", why)
	}
}

// The rate is that at which requests leave while others wait, whatever lies between.
func TestRate(t *testing.T) {
	var r rate
	now := int64(1)
	for range 5 {
		r.begin(now)
		for range 100 {
			now += 20 * ms
			r.count(now)
		}
		r.end(now)
		now += 3600e9
	}
	if got := r.perSecond(now); got < 49 || got > 51 {
		t.Errorf("%v a second, want 50", got)
	}
	r.begin(now)
	for range 8 {
		now += 30_000 * ms
		r.count(now)
	}
	if got := r.perSecond(now); got < 0.02 || got > 0.07 {
		t.Errorf("%v a second when they leave every 30 s", got)
	}
	if got := (&rate{}).perSecond(now); got != 0 {
		t.Errorf("%v of nothing", got)
	}
}

// A heap gives the least first, whatever is taken out of it.
func TestHeap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := heap{by: byExpiry}
		var in []*Request
		for i := range rapid.IntRange(1, 200).Draw(t, "events") {
			if len(in) == 0 || rapid.IntRange(0, 2).Draw(t, "push") > 0 {
				r := &Request{Place: int64(i + 1), Expires: int64(rapid.IntRange(0, 50).Draw(t, "expires"))}
				in = append(in, r)
				h.push(r)
			} else {
				k := rapid.IntRange(0, len(in)-1).Draw(t, "which")
				h.remove(in[k])
				in = slices.Delete(in, k, k+1)
			}
			for _, r := range in {
				if h.less(r, h.items[0]) {
					t.Fatal("the first is not the least")
				}
			}
		}
	})
}
