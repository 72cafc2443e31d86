package place_test

import (
	"testing"

	"weir/internal/engine"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/kvindex"
	"weir/internal/fleet/route"
	"weir/internal/gateway/footprint"
	"weir/internal/gateway/place"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
)

const ms = int64(1e6)

// fleet is a model with one engine, and what its caches hold.
func fleet() (*route.Model, *kvindex.Index) {
	x := kvindex.New(1 << 20)
	m := &route.Model{Name: "m", Policy: new(balance.Cost), Lengths: new(cost.Lengths)}
	m.Add(route.Target{
		Engine: &route.Engine{Name: "a", Ready: true},
		Rank:   &route.Rank{Number: -1, Label: "a", There: true, Books: route.NewBooks(cost.NewModel(cost.Typical), x, new(route.Shares), &engine.Facts{}, 0)},
	})
	return m, x
}

// request is a request with a prompt of n ids, and so many answers.
func request(n, answers int) *footprint.Footprint {
	f := &footprint.Footprint{BlockTokens: route.BlockTokens, Width: answers, Root: 1, ByIDs: true}
	ids := make([]uint32, n)
	for i := range ids {
		ids[i] = uint32(i)
	}
	f.Add(footprint.ExtentOf(f.Root, ids))
	return f
}

// book chooses an engine for a request and books it there.
func book(t *testing.T, m *route.Model, x *kvindex.Index, f *footprint.Footprint, now int64) (b *place.Booking, books *route.Books, resident int) {
	t.Helper()
	c, need := new(route.Choice), place.Need{Model: m, Fleet: &route.Snapshot{Index: x}}
	target, _, ok := need.Pick(&place.Ask{Footprint: f}, c, now, 1)
	if !ok {
		t.Fatal("no engine")
	}
	b = new(place.Booking)
	b.Enter(target.Books, c.Decision.Choice(), c, now, f, 10)
	return b, target.Books, place.Resident(c)
}

// A booking counts from its pick to its close, whatever comes between, and only once.
func TestBookingEnds(t *testing.T) {
	m, x := fleet()
	b, books, _ := book(t, m, x, request(64, 2), ms)
	if n := books.Rank.InFlight(); n != 2 {
		t.Errorf("%d answers are booked", n)
	}
	var tally place.Tally
	b.Took([]stream.Cell{{Choice: 1, IDs: []uint32{7, 8, 9}, Received: 30 * ms}}, &tally)
	if !b.Tell(&tally) || b.Tell(&tally) {
		t.Error("a first token makes room once")
	}
	b.Took([]stream.Cell{{Choice: 1, IDs: []uint32{10}, Received: 40 * ms, Finish: &infer.Finish{CachedTokens: -1}}}, &tally)
	b.Tell(&tally)
	if n := books.Rank.InFlight(); n != 1 || b.Tokens() != 4 {
		t.Errorf("%d answers are booked, and %d tokens came", n, b.Tokens())
	}
	b.Stopped(0, 50*ms)
	if b.Close(60*ms, health.Done) != books || b.Close(61*ms, health.Done) != nil {
		t.Error("a booking closes once")
	}
	if n := books.Rank.InFlight(); n != 0 || books.Cache.InUse() != 0 {
		t.Errorf("%d answers are left, and %d blocks are in use", n, books.Cache.InUse())
	}
}

// The cache has of a request what it has computed: the prompt from its pick on, with its answer once
// that is whole, and nothing where the engine has not begun.
func TestBookingLeaves(t *testing.T) {
	whole := make([]uint32, 128) // the prompt's ids go on in the answer's
	for i := range whole {
		whole[i] = uint32(i)
	}
	for _, test := range []struct {
		name     string
		answer   int
		resident int // of a request for all that was there
	}{{"not begun", 0, 0}, {"begun", 1, 64}, {"whole", 64, 112}} {
		m, x := fleet()
		b, _, _ := book(t, m, x, request(64, 1), ms)
		if test.answer > 0 {
			b.Took([]stream.Cell{{IDs: whole[64 : 64+test.answer], Received: 10 * ms}}, new(place.Tally))
		}
		b.Leave(b.Close(20*ms, health.Done), true)
		if _, _, got := book(t, m, x, request(128, 1), 30*ms); got != test.resident {
			t.Errorf("%s: %d tokens are resident, want %d", test.name, got, test.resident)
		}
	}
}

// A tenant pays for a prompt that was computed, by the engine's word if it has told how much of it was
// cached, and for nothing where the engine failed before.
func TestBookingCharges(t *testing.T) {
	charge := func(how health.End, cells ...stream.Cell) float64 {
		m, x := fleet()
		b, books, _ := book(t, m, x, request(4096, 1), ms)
		b.Took(cells, new(place.Tally))
		b.Close(20*ms, how)
		return b.Charge(books.Rank, how, infer.Usage{}, false)
	}
	first := stream.Cell{IDs: []uint32{1}, Received: 10 * ms}
	cached := first
	cached.CachedKnown, cached.CachedTokens = true, 4000
	if ms := charge(health.Cut); ms != 0 {
		t.Errorf("%.2f ms for a request that was cut off before it began", ms)
	}
	if left, begun := charge(health.GaveUp), charge(health.Cut, first); left <= 0 || begun <= left {
		t.Errorf("%.2f ms for a prompt, and %.2f with a token", left, begun)
	}
	if all, some := charge(health.Done, first), charge(health.Done, cached); some >= all/2 {
		t.Errorf("%.2f ms for a prompt, and %.2f where it was cached", all, some)
	}
}

// An engine that computes prompts for another one, and says when it began with them, is not taken for
// one that computes slowly because they waited there.
func TestBookingOfAHalf(t *testing.T) {
	predicted := func(stamped bool) float64 {
		m, x := fleet()
		now := ms
		for i := range 64 {
			f := &footprint.Footprint{BlockTokens: route.BlockTokens, Width: 1, Root: 1, ByIDs: true}
			ids := make([]uint32, 256+16*(i%32))
			for k := range ids {
				ids[k] = uint32(i<<16 + k)
			}
			f.Add(footprint.ExtentOf(f.Root, ids))
			b, _, _ := book(t, m, x, f, now)
			began := int64(0)
			if now += 1000 * ms; stamped {
				began = now
			}
			now += 20*ms + int64(len(ids))*ms/10
			b.Computed(now, 0, began)
			b.Tell(new(place.Tally))
			b.Close(now, health.Done)
			now += 1000 * ms
		}
		c, need := new(route.Choice), place.Need{Model: m, Fleet: &route.Snapshot{Index: x}}
		if _, _, ok := need.Pick(&place.Ask{Footprint: request(512, 1)}, c, now, 1); !ok {
			t.Fatal("no engine")
		}
		return c.Decision.Choice().Prefill
	}
	if with, without := predicted(true), predicted(false); with > 150 || without < 2*with {
		t.Errorf("512 tokens that take 71 ms are predicted to take %.0f ms, and %.0f where the engine does not say when it began", with, without)
	}
}
