package place

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"weir/internal/fleet/health"
	"weir/internal/fleet/queue"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/observe/busy"
	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
	"weir/internal/trace"
)

// Room is where requests wait until an engine has room. It is the shell around a Line.
//
// A request for which an engine has room chooses and books it in its own goroutine. For
// requests that wait, the room's goroutine does both. Engines are therefore assigned at once
// and in the requests' order, however long it takes until each request's goroutine runs.
type Room struct {
	panicked func(id string, v any) *infer.Error
	kicked   chan struct{} // wakes the goroutine; capacity 1
	over     chan struct{} // ends it
	ended    chan struct{}
	tickets  sync.Pool // of *Ticket

	mu   sync.Mutex
	line *Line
}

// NewRoom makes a waiting room in front of the fleet that snapshot returns. ordered is set if clients may
// send priorities. panicked returns the error of a request on whose behalf v was raised.
func NewRoom(o Queueing, ordered bool, snapshot func() *route.Snapshot, meter *busy.Meter, panicked func(id string, v any) *infer.Error) *Room {
	r := &Room{panicked: panicked, kicked: make(chan struct{}, 1), over: make(chan struct{}), ended: make(chan struct{})}
	r.line = NewLine(o, ordered, snapshot, r, rand.Uint64)
	r.line.meter = meter
	return r
}

// Place gives a request an engine, and returns once its owner was given the placement. It waits until an
// engine can take the request. One must be ready, or be worth waiting for: it starts, or has left only a
// moment ago. And one must have room; those that came before are given theirs first.
//
// While it waits, the need and the owner must not be accessed.
func (r *Room) Place(ctx context.Context, n *Need, a Ask, o Owner) error {
	t := r.ticket(n, a, o)
	placed := false
	defer func() {
		if !placed {
			r.leave(t)
		}
		t.need, t.Of, t.Owner, t.Ask = nil, nil, nil, Ask{}
		r.tickets.Put(t)
	}()
	for {
		if err := r.wait(ctx, t); err != nil {
			return err
		}
		now := o.Routes()
		given, err := t.given, error(nil)
		if !given {
			target, partner, ok := r.line.pick(t, now)
			given, err = r.take(t, target, partner, ok, now)
		}
		if placed = given; given || err != nil {
			return err
		}
	}
}

// pauseLook is how often a request that pauses looks whether there is still an engine to go to.
const pauseLook = 250 * time.Millisecond

// Pause waits before another attempt of a request, for as long as there is an engine that it has not tried.
func (r *Room) Pause(ctx context.Context, n *Need, o Owner, wait time.Duration) error {
	for wait > 0 && n.Model.Has(n.Needs, n.Tried) {
		step := min(wait, pauseLook)
		select {
		case <-time.After(step):
			wait -= step
		case <-ctx.Done():
			return infer.AsError(context.Cause(ctx))
		}
		if err := o.Refresh(); err != nil {
			return err
		}
	}
	return nil
}

func (r *Room) ticket(n *Need, a Ask, o Owner) *Ticket {
	t, _ := r.tickets.Get().(*Ticket)
	if t == nil {
		t = &Ticket{woken: make(chan struct{}, 1)}
	}
	select {
	case <-t.woken: // of its life before
	default:
	}
	r.line.open(t, n, a, o)
	return t
}

// leave ends the wait of a request.
func (r *Room) leave(t *Ticket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line.Leave(t, trace.Now())
}

// take lets a request take the engine that it has chosen. If the request waits from now on,
// it and its owner belong to the room and must not be accessed without the lock.
func (r *Room) take(t *Ticket, target route.Target, partner *route.Target, ok bool, now int64) (given bool, err error) {
	if !t.pushed { // otherwise nobody else has a part in it
		r.mu.Lock()
		defer r.mu.Unlock() // whatever panics
	}
	r.line.take(t, target, partner, ok, now)
	if t.Waits() {
		t.Of.Waits(false)
	}
	return t.given, t.err
}

// wait waits until the request was given an engine, or may choose one itself.
func (r *Room) wait(ctx context.Context, t *Ticket) error {
	var patience *time.Timer
	for again := false; ; again = true {
		v, err := r.look(t, again)
		if err != nil || v.Over {
			return err
		}
		var passed <-chan time.Time
		if v.Left > 0 {
			if patience == nil {
				patience = time.NewTimer(v.Left)
				defer patience.Stop()
			} else {
				patience.Reset(v.Left)
			}
			passed = patience.C
		}
		select {
		case <-t.woken:
		case <-v.Changed:
		case <-passed:
		case <-ctx.Done():
			return infer.AsError(context.Cause(ctx))
		}
	}
}

// look returns the state of a request. again is set if the request has waited.
func (r *Room) look(t *Ticket, again bool) (Outlook, error) {
	if !t.pushed {
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	return r.line.Look(t, again, trace.Now())
}

// Soon implements Keeper.
func (r *Room) Soon() {
	select {
	case r.kicked <- struct{}{}:
	default:
	}
}

// Woken implements Keeper.
func (r *Room) Woken(t *Ticket) {
	select {
	case t.woken <- struct{}{}:
	default:
	}
}

// Panicked implements Keeper.
func (r *Room) Panicked(t *Ticket, v any) error { return r.panicked(*t.ID, v) }

// Free reports that an engine may have room now. It may be called by anyone.
func (r *Room) Free() {
	if r != nil && r.line.waiting.Load() > 0 {
		r.Soon()
	}
}

// Tell passes a booking's notes on to the books, as Booking.Tell does.
func (r *Room) Tell(b *Booking, t *Tally) {
	if b.Tell(t) {
		r.Free()
	}
}

// Close closes a booking, and returns whose books it was in; nil where it was closed before.
func (r *Room) Close(b *Booking, now int64, how health.End, whole bool) *route.Books {
	books := b.Close(now, how)
	if books != nil {
		r.Free()
		b.Leave(books, whole)
	}
	return books
}

// Settle replaces what an attempt's turn was charged by what it has cost.
func (r *Room) Settle(turn *fair.Turn, ms float64) {
	if r == nil || turn.Tenant() == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line.Settle(turn, ms)
}

// Run gives engines to those that wait, until End.
func (r *Room) Run() {
	defer close(r.ended)
	timer := time.NewTimer(queueLook)
	defer timer.Stop()
	for {
		next, changed := r.turn()
		timer.Stop()
		var passed <-chan time.Time
		if next > 0 {
			timer.Reset(next)
			passed = timer.C
		}
		select {
		case <-r.kicked:
		case <-changed:
		case <-passed:
		case <-r.over:
			return
		}
	}
}

// turn returns the latest time to look again and a channel that reports a change of the fleet. It
// returns neither if no request waits.
func (r *Room) turn() (next time.Duration, changed <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, waits := r.line.Turn(trace.Now())
	if !waits {
		return 0, nil
	}
	return time.Duration(max(at-trace.Now(), 1)), r.line.fleet.Changed
}

// End ends Run.
func (r *Room) End() {
	close(r.over)
	<-r.ended
}

// Look calls with with the queue, for what metrics show of it.
func (r *Room) Look(with func(q *queue.Queue, now int64)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	with(r.line.queue, trace.Now())
}

// Expires is until when a request waits that begins to wait now and whose answer must begin
// by due, if that is not 0.
func (r *Room) Expires(now, due int64) int64 { return r.line.expires(now, due) }

// Early implements prepare.WaitingRoom.
func (r *Room) Early(who *tenancy.Caller, m *route.Model, due, bytes int64, counts bool) error {
	if r.line.pushes(m) {
		return nil
	}
	name := m.Name
	now := trace.Now()
	if due != 0 && due <= now {
		if counts {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.line.queue.Refuse(name, queue.Expired)
		}
		return infer.AsError(&infer.Error{Code: infer.CodeOverloaded, Reason: queue.Expired.String(), Message: "the time by which the answer was to begin is over"})
	}
	if r.line.waiting.Load() == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	why, _ := r.line.queue.Early(who, name, r.line.expires(now, due), bytes, now)
	if why == queue.None {
		return nil
	}
	if counts {
		r.line.queue.Refuse(name, why)
	}
	return r.line.refusal(why, who, name, now)
}
