package place

import (
	"weir/internal/fleet/queue"
	"weir/internal/fleet/route"
	"weir/internal/tenancy/fair"
	"weir/internal/trace"
)

// Owner is whose request waits. Until the request waits, its methods are called in its own goroutine, and
// from then on by who keeps the line.
type Owner interface {
	// Routes notes that the request chooses an engine, and returns the time.
	Routes() (now int64)
	// Decides is Routes for a request that has waited. The fleet is taken as it is now, as by Refresh.
	Decides() (now int64, err error)
	// Waits notes that the request waits from now on, or again.
	Waits(again bool)
	// Refresh takes the fleet as it is now. An error is why the request waits no longer.
	Refresh() error
	// Given is called once a request was given an engine. It must be booked there when Given returns.
	Given(p Placement)
}

// Placement is where a request goes.
type Placement struct {
	Target  route.Target
	Partner *route.Target // the other half; nil: the target has the request whole
	Choice  *route.Choice // how they were chosen, until Given returns
	Turn    fair.Turn     // that it has taken
	Waited  *trace.Turn   // what it found when it began to wait; nil: it has not waited
	At      int64
}

// Book opens the booking of a request at its target.
func (p *Placement) Book(b *Booking, n *Need, a *Ask) {
	b.Enter(p.Target.Books, p.Choice.Decision.Choice(), p.Choice, p.At, a.Footprint.At(p.Target.Engine), a.expected(n.Model))
}

// Ticket is a request's way to its next engine. It belongs to the request's goroutine until the request
// waits. Then it belongs, with its need and its owner, to who keeps the line.
type Ticket struct {
	queue.Request
	Ask
	Of     Owner
	need   *Need
	choice route.Choice
	woken  chan struct{} // capacity 1
	// It is given to an engine at once, and is none of the queue's: because of the engines, or
	// because it takes none of what others wait for.
	pushed bool
	// The result: the request was given an engine, which is booked, or it will get none.
	given bool
	err   error
	turn  *trace.Turn // what it found when it began to wait; nil: it has not waited
}

// open begins a request's way to its next engine.
func (l *Line) open(t *Ticket, n *Need, a Ask, o Owner) {
	t.need, t.Ask, t.Of, t.given, t.err, t.turn = n, a, o, false, nil, nil
	m := n.Model
	t.pushed = a.AtOnce || l.pushes(m)
	t.Request = queue.Request{
		Place: n.Place, Due: n.Due, Owner: t, Model: m.Name, Pool: m.Base, Caller: a.Caller, Class: uint64(m.Class(n.Needs)) << 1,
		Answers: a.Footprint.Answers(), Bytes: a.Bytes, Deadline: n.BeginBy, Expires: n.Expires,
	}
	if len(n.Tried) > 0 {
		t.Class |= 1 // it cannot go where others can
		t.Again = true
	}
	if !t.pushed && len(m.Targets) > 0 {
		t.Cost = a.Footprint.Charge(m.Targets[0].Books.Rank, 0, 0, a.expected(m))
	}
}
