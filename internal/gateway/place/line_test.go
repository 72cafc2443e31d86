package place_test

import (
	"testing"
	"time"

	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/queue"
	"weir/internal/fleet/route"
	"weir/internal/gateway/place"
	"weir/internal/gateway/stream"
	"weir/internal/infer"
	"weir/internal/tenancy"
)

// keeper keeps a line on virtual time.
type keeper struct {
	now   int64
	fleet *route.Snapshot
	line  *place.Line
	woken []*asker
}

func (k *keeper) Soon()                                 {}
func (k *keeper) Woken(t *place.Ticket)                 { k.woken = append(k.woken, t.Of.(*asker)) }
func (k *keeper) Panicked(_ *place.Ticket, v any) error { panic(v) }

// asker is a request.
type asker struct {
	keeper  *keeper
	ticket  place.Ticket
	need    place.Need
	ask     place.Ask
	booking place.Booking
	given   int // how often it was given an engine
	waited  bool
}

func (a *asker) Routes() int64           { return a.keeper.now }
func (a *asker) Decides() (int64, error) { return a.keeper.now, a.Refresh() }
func (a *asker) Waits(bool)              {}
func (a *asker) Refresh() error {
	a.need.Fleet, a.need.Model = a.keeper.fleet, a.keeper.fleet.Models["m"]
	return nil
}

func (a *asker) Given(p place.Placement) {
	a.given++
	a.waited = p.Waited != nil
	p.Book(&a.booking, &a.need, &a.ask)
}

// look returns the error of a request's wait, if that is over, and its outlook.
func (a *asker) look() (place.Outlook, error) {
	return a.keeper.line.Look(&a.ticket, true, a.keeper.now)
}

// newLine is a line in front of one engine that runs so many requests at once.
func newLine(running int) *keeper {
	m, x := fleet()
	m.Settled = true
	m.Targets[0].Books.Rank.SetLimits(cost.Limits{Running: running, Strict: true})
	k := &keeper{now: 1000 * ms, fleet: &route.Snapshot{Index: x, Models: map[string]*route.Model{"m": m}}}
	k.line = place.NewLine(place.Queueing{}, false, func() *route.Snapshot { return k.fleet }, k, func() uint64 { return 1 })
	return k
}

// asks has a request come that waits for at most a second, or for its answer to begin by then.
func (k *keeper) asks(beginBy int64) (*asker, error) {
	a := &asker{keeper: k, ask: place.Ask{Caller: tenancy.Anyone, Footprint: request(64, 1), Patience: k.now + 5000*ms}}
	a.need.BeginBy, a.need.Expires = beginBy, k.now+1000*ms
	_ = a.Refresh()
	return a, k.line.Ask(&a.ticket, &a.need, a.ask, a, k.now)
}

// ends has a request end that was given an engine.
func (a *asker) ends() {
	a.booking.Took([]stream.Cell{{IDs: []uint32{1}, Received: a.keeper.now}}, new(place.Tally))
	a.booking.Leave(a.booking.Close(a.keeper.now, health.Done), true)
	a.keeper.line.Turn(a.keeper.now)
}

// Requests are given room in the order in which they came, and each once.
func TestLineGivesInOrder(t *testing.T) {
	k := newLine(1)
	var all []*asker
	for range 3 {
		a, err := k.asks(0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	for i, a := range all {
		k.now += 100 * ms
		for j, other := range all {
			if want := min(max(i-j+1, 0), 1); other.given != want {
				t.Fatalf("request %d was given an engine %d times when %d had ended, want %d", j, other.given, i, want)
			}
		}
		if a.waited != (i > 0) {
			t.Errorf("request %d has waited: %v", i, a.waited)
		}
		a.ends()
	}
}

// A wait ends at its time, and not before. The turn says when it is to be looked at again.
func TestLineRunsOut(t *testing.T) {
	k := newLine(1)
	first, _ := k.asks(0)
	second, err := k.asks(0)
	if err != nil || first.given != 1 || second.given != 0 {
		t.Fatal(err, first.given, second.given)
	}
	for range 20 {
		next, waits := k.line.Turn(k.now)
		if !waits {
			break
		}
		if next <= k.now || next > k.now+100*ms {
			t.Fatalf("the next turn is in %v", time.Duration(next-k.now))
		}
		k.now = next
	}
	_, err = second.look()
	if e := infer.AsError(err); k.now != second.need.Expires || e == nil || e.Code != infer.CodeOverloaded || e.Reason != queue.Expired.String() {
		t.Errorf("%v after %v", err, time.Duration(k.now-1000*ms))
	}
	if first.ends(); second.given != 0 {
		t.Error("a request whose wait was over was given an engine")
	}
}

// A request whose answer would begin too late is refused, unless the engine has nothing to do.
func TestLineIsLate(t *testing.T) {
	k := newLine(2)
	for range 20 { // until it is known what it takes
		a, _ := k.asks(0)
		k.now += 50 * ms
		a.ends()
	}
	for i := range 2 {
		a, err := k.asks(k.now + 1)
		if late := infer.AsError(err); (late != nil && late.Reason == queue.TooLate.String()) != (i > 0) {
			t.Errorf("request %d: %v", i, err)
		} else if i == 0 && a.given != 1 {
			t.Error("the first one was given no engine")
		}
	}
}

// An engine that has just left is waited for, and one that has been away for long is not. A request
// that has failed elsewhere waits for none.
func TestLineWithoutEngine(t *testing.T) {
	k := newLine(1)
	gone := &route.Model{Name: "m", Policy: k.fleet.Models["m"].Policy, Lengths: new(cost.Lengths), Settled: true, Left: k.now - 400*ms}
	here := k.fleet
	k.fleet = &route.Snapshot{Index: here.Index, Models: map[string]*route.Model{"m": gone}}
	a, err := k.asks(0)
	if v, _ := a.look(); err != nil || v.Over || v.Left != 100*time.Millisecond {
		t.Fatalf("%v, %+v", err, v)
	}
	k.now += 550 * ms
	if v, err := a.look(); err != nil || v.Left != 50*time.Millisecond {
		t.Errorf("%v, %+v", err, v)
	}
	k.fleet = here
	if v, err := a.look(); err != nil || !v.Over {
		t.Errorf("the engine is back: %v, %+v", err, v)
	}
	k.fleet = &route.Snapshot{Index: here.Index, Models: map[string]*route.Model{"m": gone}}
	k.now += 51 * ms
	_, err = a.look()
	if e := infer.AsError(err); e == nil || e.Code != infer.CodeUnavailable || e.Message != `no engine for model "m" is ready` || e.RetryAfter != time.Second {
		t.Errorf("%+v", e)
	}
	a.need.Tried, k.fleet = here.Models["m"].Targets, here
	_, err = a.look()
	if e := infer.AsError(err); e == nil || e.Engine != "a" || e.Message != `no other engine for model "m" is ready` {
		t.Errorf("%+v", e)
	}
}
