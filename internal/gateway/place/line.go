package place

import (
	"fmt"
	"sync/atomic"
	"time"

	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/queue"
	"weir/internal/fleet/route"
	"weir/internal/infer"
	"weir/internal/observe/busy"
	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
	"weir/internal/trace"
)

// Queueing configures how requests wait while all engines that they could go to are
// full.
type Queueing struct {
	// Off is set if they do not wait: engines get everything at once. Engines that
	// schedule by priority get everything at once in any case if clients may set
	// priorities.
	Off bool
	// Requests bounds the number of waiting requests of a model; 0 is no bound.
	Requests int
	// Bytes bounds the bytes that all of them hold; 0 means 1 GiB, and a negative value
	// is no bound.
	Bytes int64
	// Timeout bounds the wait of a request; 0 means FirstTimeout.
	Timeout time.Duration
	// Bands are the shares of the bands in which tenants' requests wait.
	Bands fair.Bands
}

// Line is the requests that wait until an engine has room, and how each of them decides. It is pure,
// around package queue: it has no lock, clock or goroutine. Who keeps it calls one method at a time, and
// gives the time. Only the meter, where there is one, has a clock of its own.
type Line struct {
	opts     Queueing
	ordered  bool // clients may send priorities
	snapshot func() *route.Snapshot
	keeper   Keeper
	random   func() uint64
	meter    *busy.Meter  // nil: what is done is not measured
	waiting  atomic.Int64 // requests in the queue, which anyone may read

	queue  *queue.Queue
	fleet  *route.Snapshot // where the queue's requests can go
	looked int64           // when engines' health was looked at last
	armed  int64           // when Turn is called next
}

// Keeper is who keeps a line.
type Keeper interface {
	// Soon has Turn be called soon.
	Soon()
	// Woken is called when a request that waits was given an engine, will get none, or is to look
	// again whether it may wait.
	Woken(t *Ticket)
	// Panicked returns the error that ends the wait of a request, on whose behalf v was raised.
	Panicked(t *Ticket, v any) error
}

// NewLine returns a line in front of the fleet that snapshot returns. Policies use random numbers.
func NewLine(o Queueing, ordered bool, snapshot func() *route.Snapshot, k Keeper, random func() uint64) *Line {
	l := &Line{opts: o, ordered: ordered, snapshot: snapshot, keeper: k, random: random}
	l.queue = queue.New(queue.Limits{Requests: o.Requests, Bytes: max(o.Bytes, 0), Bands: o.Bands}, l)
	return l
}

// pushes reports whether the engines of a model receive every request at once. An engine
// that schedules by priority must have all requests to choose from, also those without a
// priority. Otherwise a request of low priority could take the room for which others wait
// here.
func (l *Line) pushes(m *route.Model) bool {
	return l.opts.Off || l.ordered && (m.ByIDs.Carries|m.Relayed.Carries)&infer.CarriesPriority != 0
}

// Outlook describes the wait of a request.
type Outlook struct {
	// Over is set if the request was given an engine, or may choose one now.
	Over bool
	// If there is no engine: the time until the request looks again, and a channel that
	// reports a change of the fleet.
	Left    time.Duration
	Changed <-chan struct{}
}

// Ask has a request come: it is given an engine, or waits. An error is why it gets none.
func (l *Line) Ask(t *Ticket, n *Need, a Ask, o Owner, now int64) error {
	l.open(t, n, a, o)
	if v, err := l.Look(t, false, now); err != nil || !v.Over {
		return err
	}
	now = o.Routes()
	target, partner, ok := l.pick(t, now)
	l.take(t, target, partner, ok, now)
	return t.err
}

// Leave ends the wait of a request. From then on its owner belongs to its own goroutine
// again.
func (l *Line) Leave(t *Ticket, now int64) {
	if t.Waits() {
		l.queue.Cancel(&t.Request, now)
		l.count()
		l.keeper.Soon() // the next one may have room
	}
}

// Settle replaces what an attempt's turn was charged by what it has cost.
func (l *Line) Settle(turn *fair.Turn, ms float64) { l.queue.Settle(turn, ms) }

// Look says whether a request has to wait, and has it wait from then on. again is set if it has waited.
func (l *Line) Look(t *Ticket, again bool, now int64) (v Outlook, err error) {
	if t.given || t.err != nil {
		return Outlook{Over: true}, t.err
	}
	n := t.need
	// The engines of the request's snapshot may have been replaced meanwhile.
	if again || !n.Model.Has(n.Needs, n.Tried) && n.Fleet != l.snapshot() {
		if err := t.Of.Refresh(); err != nil {
			return v, err
		}
	}
	if !n.Model.Has(n.Needs, n.Tried) {
		if v.Left, err = n.absent(now, t.Patience, t.Waits()); err != nil {
			return v, err
		}
		v.Left, v.Changed = min(v.Left, queueLook), n.Fleet.Changed
		return v, nil
	}
	if t.pushed {
		return Outlook{Over: true}, nil
	}
	if !t.Waits() {
		decides := l.queue.Enter(&t.Request, now)
		if n.Place, n.Due = t.Place, t.Due; decides {
			return Outlook{Over: true}, nil
		}
	}
	if !t.Waits() {
		l.join(t, l.queue.Wait(&t.Request, now), now)
	}
	return v, t.err
}

// join takes down that a request waits, unless there is a reason against it.
func (l *Line) join(t *Ticket, why queue.Reason, now int64) {
	for r := l.queue.Displaced(); r != nil; r = l.queue.Displaced() {
		o := r.Owner.(*Ticket)
		o.err = l.refusal(queue.Full, r.Caller, o.Model, now)
		l.keeper.Woken(o)
	}
	if why != queue.None {
		t.err = l.refusal(why, t.Request.Caller, t.Model, now)
		return
	}
	if t.turn == nil {
		own, others, tenants := l.queue.Company(&t.Request)
		t.turn = &trace.Turn{Band: t.Request.Caller.Band, Tenant: t.Request.Caller.Tenant, Own: int32(own), Others: int32(others), Tenants: int32(tenants)}
	}
	l.count()
	if l.queue.Len() == 1 {
		l.keeper.Soon()
	} else if due := l.queue.Due(now); due != 0 && due < l.armed {
		l.keeper.Soon()
	}
}

func (l *Line) count() { l.waiting.Store(int64(l.queue.Len())) }

// pick chooses an engine with the books as they are now.
func (l *Line) pick(t *Ticket, now int64) (target route.Target, partner *route.Target, ok bool) {
	mark := l.meter.Begin(busy.Pick, t.ID, now)
	defer func() { l.meter.End(mark, l.meter.Now()) }()
	c := &t.choice
	q := &c.Request
	q.Answers, q.Claims, q.First, c.Roomy = 0, false, nil, false
	if !t.pushed {
		q.Answers, q.Claims, q.First = t.Answers, l.waiting.Load() > 0, t.First()
		c.Roomy = !balance.Patient(t.need.Model.Policy)
	}
	return t.need.Pick(&t.Ask, c, now, l.random())
}

// roomy is pick among the engines that have room.
func (l *Line) roomy(t *Ticket, now int64) (target route.Target, partner *route.Target, ok bool) {
	t.choice.Roomy = true
	return t.need.Pick(&t.Ask, &t.choice, now, l.random())
}

// take gives the request the engine that it has chosen, if that has room, and makes it
// wait otherwise.
func (l *Line) take(t *Ticket, target route.Target, partner *route.Target, ok bool, now int64) {
	if t.pushed {
		if !ok {
			t.err = t.need.noEngine(now)
			return
		}
		t.give(target, partner, now)
		return
	}
	why := queue.None
	if ok && t.choice.Decision.Choice().Work.New > t.choice.Request.Length/2 && balance.Patient(t.need.Model.Policy) &&
		!target.Books.Rank.Fits(now, t.Answers) && l.queue.Contended(&t.Request) && l.Room(&t.Request, now) {
		// Beside other tenants it waits for a full engine only if its prompt is there.
		if a, b, other := l.roomy(t, now); other {
			target, partner = a, b
		} else {
			target, partner, ok = l.pick(t, now)
		}
	}
	if ok {
		d := t.choice.Decision.Choice()
		t.Cost = t.Footprint.Charge(target.Books.Rank, Resident(&t.choice), d.Decoders, t.choice.Request.Output/float64(t.Answers))
	}
	full, chosen := &target, &t.choice.Decision
	if partner != nil && !l.queue.Open(&t.Request, partner.Books.Rank, now) {
		full, chosen = partner, &t.choice.Prefill
	}
	switch {
	case !ok:
		why = l.queue.Wait(&t.Request, now)
	case t.late(target, now):
		l.queue.Refuse(t.Model, queue.TooLate)
		t.err = l.refusal(queue.TooLate, t.Request.Caller, t.Model, now)
	case chosen == &t.choice.Decision && l.queue.Give(&t.Request, full.Books.Rank, now):
		t.give(target, partner, now)
	case balance.Patient(t.need.Model.Policy) && l.Room(&t.Request, now):
		why = l.queue.Park(&t.Request, full.Books.Rank, chosen.Choice().Prefill, now)
	default:
		why = l.queue.Wait(&t.Request, now)
	}
	if t.Waits() || why != queue.None {
		l.join(t, why, now)
	}
	l.count()
}

// late reports whether the answer cannot begin by the time that the caller has set. An
// engine that has nothing to do is asked all the same: it would never be known to have
// become faster.
func (t *Ticket) late(target route.Target, now int64) bool {
	if t.need.BeginBy == 0 {
		return false
	}
	chosen, rank := t.choice.Decision.Choice(), target.Books.Rank
	if chosen.Cold || rank.InFlight() == 0 || !rank.Fits(now, t.Answers) {
		return false
	}
	begins := max(chosen.Wait, rank.Place()) + chosen.Prefill
	return now+int64(begins*1e6) > t.need.BeginBy
}

// give has the request's owner book it at its engine, or with a partner at both.
func (t *Ticket) give(target route.Target, partner *route.Target, now int64) {
	if t.turn != nil {
		t.turn.Charged = float32(t.Cost)
	}
	t.Of.Given(Placement{Target: target, Partner: partner, Choice: &t.choice, Turn: t.Turn, Waited: t.turn, At: now})
	t.given = true
}

// Turn lets the requests decide for which there is room, and ends the wait of those whose
// time is over. waits is set if requests are left that wait, and next is when it is to be called again
// then at the latest, unless the fleet changes.
func (l *Line) Turn(now int64) (next int64, waits bool) {
	if l.queue.Len() == 0 {
		return 0, false
	}
	if fleet := l.snapshot(); fleet != l.fleet || now-l.looked >= int64(queueLook) {
		l.fleet, l.looked = fleet, now
		l.queue.Changed(now)
		l.queue.Heads(l.lookFor)
	}
	for r := l.queue.Expire(now); r != nil; r = l.queue.Expire(now) {
		t := r.Owner.(*Ticket)
		t.err = l.refusal(queue.Expired, t.Request.Caller, t.Model, now)
		l.keeper.Woken(t)
	}
	l.queue.Turn(now, func(r *queue.Request) { l.decide(r, now) })
	l.count()
	if l.queue.Len() == 0 {
		return 0, false
	}
	l.armed = now + int64(queueLook)
	if due := l.queue.Due(now); due != 0 {
		l.armed = min(l.armed, max(due, now+1))
	}
	return l.armed, true
}

// lookFor wakes a request that no engine accepts any more, so that it decides how long to
// wait for one.
func (l *Line) lookFor(r *queue.Request) (all bool) {
	t := r.Owner.(*Ticket)
	m := l.fleet.Models[r.Model]
	if m != nil && m.Has(t.need.Needs, t.need.Tried) {
		return false
	}
	l.keeper.Woken(t)
	return true
}

// decide has a request decide that waits.
func (l *Line) decide(r *queue.Request, now int64) {
	t := r.Owner.(*Ticket)
	defer func() {
		if p := recover(); p != nil {
			t.err = l.keeper.Panicked(t, p)
		}
		if t.err != nil {
			l.queue.Cancel(r, now)
		}
		if t.err != nil || t.given {
			l.keeper.Woken(t)
		}
	}()
	if now, t.err = t.Of.Decides(); t.err != nil {
		return
	}
	target, partner, ok := l.pick(t, now)
	l.take(t, target, partner, ok, now)
	t.Of.Waits(true)
}

// Room implements queue.Ranks.
func (l *Line) Room(r *queue.Request, now int64) bool {
	t := r.Owner.(*Ticket)
	m := l.model(t)
	return m != nil && m.Room(t.need.Needs, t.need.Tried, r.Answers, now)
}

// Takes implements queue.Ranks.
func (l *Line) Takes(r *queue.Request, rank *cost.Rank) bool {
	t := r.Owner.(*Ticket)
	m := l.model(t)
	return m != nil && m.Takes(t.need.Needs, t.need.Tried, rank)
}

// Frees implements queue.Ranks.
func (l *Line) Frees(r *queue.Request, now int64) int64 {
	t := r.Owner.(*Ticket)
	m := l.model(t)
	if m == nil {
		return 0
	}
	return m.Frees(t.need.Needs, t.need.Tried, now)
}

func (l *Line) model(t *Ticket) *route.Model {
	if l.fleet == nil {
		l.fleet = l.snapshot()
	}
	return l.fleet.Models[t.Model]
}

// expires is until when a request waits that begins to wait now and whose answer must begin
// by due, if that is not 0.
func (l *Line) expires(now, due int64) int64 {
	at := now + int64(l.opts.Timeout)
	if due != 0 {
		at = min(at, due)
	}
	return at
}

// maxRetryAfter bounds the wait that is suggested.
const maxRetryAfter = 30 * time.Second

// refusal is the error of a caller's request that is refused.
func (l *Line) refusal(why queue.Reason, who *tenancy.Caller, name string, now int64) *infer.Error {
	e := &infer.Error{Code: infer.CodeOverloaded, Reason: why.String()}
	drained := l.queue.DrainedFor(who, name, now)
	e.RetryAfter = min(drained, maxRetryAfter)
	after := ""
	if drained > 0 {
		after = fmt.Sprintf("; what waits now has left in about %v", drained.Round(100*time.Millisecond))
	}
	waiting := l.queue.Stats()[name].Waiting
	switch why {
	case queue.Full:
		e.Message = fmt.Sprintf("%d requests for model %q wait for its engines, which is the limit (--max-queue)%s", waiting, name, after)
	case queue.Bytes:
		e.Message = fmt.Sprintf("what waits for engines holds %d bytes, and no more may (--max-queue-bytes)%s", l.queue.Bytes(), after)
	case queue.TooLate:
		e.Message = fmt.Sprintf("the engines of model %q are busy, and the answer would begin too late%s", name, after)
	default:
		e.Message = fmt.Sprintf("no engine of model %q had room for the request in time%s", name, after)
	}
	return e
}
