package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/dialect"
	"weir/internal/fleet/balance"
	"weir/internal/fleet/cost"
	"weir/internal/fleet/health"
	"weir/internal/fleet/queue"
	"weir/internal/fleet/route"
	"weir/internal/gateway/place"
	"weir/internal/infer"
	"weir/internal/observe/busy"
	"weir/internal/observe/metrics"
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

// holding holds the requests that wait until an engine has room. It is the shell around
// package queue.
//
// A request for which an engine has room chooses and books it in its own goroutine. For
// requests that wait, the holding's goroutine does both. Room is therefore assigned at once
// and in their order, however long it takes until each request's goroutine runs.
type holding struct {
	opts     Queueing
	ordered  bool // clients may send priorities
	snapshot func() *route.Snapshot
	waiting  atomic.Int64  // requests in the queue
	kicked   chan struct{} // wakes the goroutine; capacity 1
	over     chan struct{} // ends it
	ended    chan struct{}
	tickets  sync.Pool // of *ticket

	mu     sync.Mutex
	queue  *queue.Queue
	fleet  *route.Snapshot // where the queue's requests can go
	looked int64           // when engines' health was looked at last
	armed  int64           // when the goroutine looks next
}

func newHolding(o Queueing, ordered bool, snapshot func() *route.Snapshot) *holding {
	h := &holding{opts: o, ordered: ordered, snapshot: snapshot, kicked: make(chan struct{}, 1), over: make(chan struct{}), ended: make(chan struct{})}
	h.queue = queue.New(queue.Limits{Requests: o.Requests, Bytes: max(o.Bytes, 0), Bands: o.Bands}, h)
	return h
}

// pushes reports whether the engines of a model receive every request at once. An engine
// that schedules by priority must have all requests to choose from, also those without a
// priority. Otherwise a request of low priority could take the room for which others wait
// here.
func (h *holding) pushes(m *route.Model) bool {
	return h.opts.Off || h.ordered && (m.ByIDs.Carries|m.Relayed.Carries)&infer.CarriesPriority != 0
}

// ticket is the state of a request in stages 5 and 6. It belongs to the request's
// goroutine until the request waits. Then it belongs, with the exchange, to the holder of
// the holding's lock.
type ticket struct {
	queue.Request
	x      *exchange
	choice route.Choice
	woken  chan struct{} // capacity 1
	// It is given to an engine at once, and is none of the queue's: because of the engines, or
	// because it asks for no answer of the model and takes none of what others wait for.
	pushed bool
	// The result: the request was given an engine, which is booked, or it will get none.
	given bool
	err   error
	turn  *trace.Turn // what it found when it began to wait; nil: it has not waited
}

// ticket begins a request's way to its next engine.
func (h *holding) ticket(x *exchange) *ticket {
	t, _ := h.tickets.Get().(*ticket)
	if t == nil {
		t = &ticket{woken: make(chan struct{}, 1)}
	}
	t.x, t.given, t.err, t.turn, t.pushed = x, false, nil, nil, h.pushes(x.to.Model) || x.endpoint.Traits().Wants != dialect.Answer
	select {
	case <-t.woken: // of its life before
	default:
	}
	t.Request = queue.Request{
		Place: x.place, Due: x.dueBy, Owner: t, Model: x.to.Model.Name, Pool: x.to.Model.Base, Caller: x.caller, Class: uint64(x.to.Model.Class(x.to.Needs)) << 1,
		Answers: x.prepared.Footprint.Answers(), Bytes: x.prepared.Held(), Deadline: x.to.BeginBy, Expires: x.expiresAt,
	}
	if len(x.tried) > 0 {
		t.Class |= 1 // it cannot go where others can
		t.Again = true
	}
	if !t.pushed && len(x.to.Model.Targets) > 0 {
		t.Cost = x.prepared.Footprint.Charge(x.to.Model.Targets[0].Books.Rank, 0, 0, x.prepared.Footprint.Expected(x.to.Model.Lengths, x.prepared.Sent))
	}
	return t
}

// drop ends a request's way, wherever it is.
func (h *holding) drop(t *ticket) {
	h.leave(t)
	h.put(t)
}

// leave ends the wait of a request. From then on its exchange belongs to its own goroutine
// again.
func (h *holding) leave(t *ticket) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t.Waits() {
		h.queue.Cancel(&t.Request, trace.Now())
		h.count()
		h.kick() // the next one may have room
	}
}

func (h *holding) put(t *ticket) {
	t.x.place, t.x.dueBy, t.x.ticket = t.Place, t.Due, nil
	t.x, t.Owner = nil, nil
	h.tickets.Put(t)
}

// wait waits until the request was given an engine, or may choose one itself.
func (t *ticket) wait() error {
	h, ctx := t.x.g.held, &t.x.ctx
	var patience *time.Timer
	for again := false; ; again = true {
		v, err := h.look(t, again)
		if err != nil {
			h.leave(t)
			return err
		}
		if v.over {
			return nil
		}
		var passed <-chan time.Time
		if v.left > 0 {
			if patience == nil {
				patience = time.NewTimer(v.left)
				defer patience.Stop()
			} else {
				patience.Reset(v.left)
			}
			passed = patience.C
		}
		select {
		case <-t.woken:
		case <-v.changed:
		case <-passed:
		case <-ctx.Done():
			h.leave(t)
			return gone(ctx)
		}
	}
}

// outlook describes the wait of a request.
type outlook struct {
	over bool // the wait is over
	// If there is no engine: the time until the request looks again, and a channel that
	// reports a change of the fleet.
	left    time.Duration
	changed <-chan struct{}
}

// look returns the state of a request. again is set if the request has waited.
func (h *holding) look(t *ticket, again bool) (v outlook, err error) {
	if !t.pushed {
		h.mu.Lock()
		defer h.mu.Unlock()
	}
	x := t.x
	if t.given || t.err != nil {
		return outlook{over: true}, t.err
	}
	// The engines of the request's snapshot may have been replaced meanwhile.
	if again || !x.to.Model.Has(x.to.Needs, x.tried) && x.to.Fleet != h.snapshot() {
		if err := x.refresh(); err != nil {
			return v, err
		}
	}
	now := trace.Now()
	if !x.to.Model.Has(x.to.Needs, x.tried) {
		if v.left, err = x.absent(now, x.rec.Queued+int64(x.g.opts.Place.EngineTimeout), t.Waits()); err != nil {
			return v, err
		}
		v.left, v.changed = min(v.left, queueLook), x.to.Fleet.Changed
		return v, nil
	}
	if t.pushed || !t.Waits() && h.queue.Enter(&t.Request, now) {
		return outlook{over: true}, nil
	}
	if !t.Waits() {
		h.join(t, h.queue.Wait(&t.Request, now), now)
	}
	return v, t.err
}

// join takes down that a request waits, unless there is a reason against it. The lock is held.
func (h *holding) join(t *ticket, why queue.Reason, now int64) {
	for r := h.queue.Displaced(); r != nil; r = h.queue.Displaced() {
		o := r.Owner.(*ticket)
		o.err = h.refusal(queue.Full, o.Caller, o.Model, now)
		o.wake()
	}
	if why != queue.None {
		t.err = h.refusal(why, t.Caller, t.Model, now)
		return
	}
	if t.turn == nil {
		own, others, tenants := h.queue.Company(&t.Request)
		who := t.x.caller
		t.turn = &trace.Turn{Band: dialect.Clip(who.Band, maxCaller), Tenant: dialect.Clip(who.Tenant, maxCaller), Own: int32(own), Others: int32(others), Tenants: int32(tenants)}
	}
	h.count()
	if h.queue.Len() == 1 {
		h.kick()
	} else if due := h.queue.Due(now); due != 0 && due < h.armed {
		h.kick()
	}
}

func (h *holding) count() { h.waiting.Store(int64(h.queue.Len())) }

// room reports that an engine may have room now. It may be called by anyone.
func (h *holding) room() {
	if h != nil && h.waiting.Load() > 0 {
		h.kick()
	}
}

// closes closes a booking, and returns whose books it was in; nil where it was closed before.
func (h *holding) closes(b *place.Booking, now int64, how health.End, whole bool) *route.Books {
	books := b.Close(now, how)
	if books != nil {
		h.room()
		b.Leave(books, whole)
	}
	return books
}

func (h *holding) kick() {
	select {
	case h.kicked <- struct{}{}:
	default:
	}
}

// pick chooses an engine with the books as they are now.
func (t *ticket) pick(now int64) (target route.Target, partner *route.Target, ok bool) {
	x, c := t.x, &t.choice
	mark := x.g.meter.Begin(busy.Pick, &x.rec.RequestID, now)
	defer func() { x.g.meter.End(mark, x.g.meter.Now()) }()
	q := &c.Request
	q.Answers, q.Claims, q.First, c.Roomy = 0, false, nil, false
	if !t.pushed {
		q.Answers, q.Claims, q.First = t.Answers, x.g.held.waiting.Load() > 0, t.First()
		c.Roomy = !balance.Patient(x.to.Model.Policy)
	}
	return t.among(now)
}

// roomy is pick among the engines that have room.
func (t *ticket) roomy(now int64) (target route.Target, partner *route.Target, ok bool) {
	t.choice.Roomy = true
	return t.among(now)
}

func (t *ticket) among(now int64) (target route.Target, partner *route.Target, ok bool) {
	x, c := t.x, &t.choice
	need := x.need(&x.prepared)
	return need.Pick(c, now, rand.Uint64())
}

// take gives the request the engine that it has chosen, if that has room, and makes it
// wait otherwise. The lock is held.
func (h *holding) take(t *ticket, target route.Target, partner *route.Target, ok bool, now int64) {
	if t.pushed {
		if !ok {
			t.err = t.x.noEngine(now)
			return
		}
		t.give(target, partner, now)
		return
	}
	why := queue.None
	if ok && t.choice.Decision.Choice().Work.New > t.choice.Request.Length/2 && balance.Patient(t.x.to.Model.Policy) &&
		!target.Books.Rank.Fits(now, t.Answers) && h.queue.Contended(&t.Request) && h.Room(&t.Request, now) {
		// Beside other tenants it waits for a full engine only if its prompt is there.
		if a, b, other := t.roomy(now); other {
			target, partner = a, b
		} else {
			target, partner, ok = t.pick(now)
		}
	}
	if ok {
		d := t.choice.Decision.Choice()
		t.Cost = t.x.prepared.Footprint.Charge(target.Books.Rank, place.Resident(&t.choice), d.Decoders, t.choice.Request.Output/float64(t.Answers))
	}
	full, chosen := &target, &t.choice.Decision
	if partner != nil && !h.queue.Open(&t.Request, partner.Books.Rank, now) {
		full, chosen = partner, &t.choice.Prefill
	}
	switch {
	case !ok:
		why = h.queue.Wait(&t.Request, now)
	case t.late(target, now):
		h.queue.Refuse(t.Model, queue.TooLate)
		t.err = h.refusal(queue.TooLate, t.Caller, t.Model, now)
	case chosen == &t.choice.Decision && h.queue.Give(&t.Request, full.Books.Rank, now):
		t.give(target, partner, now)
	case balance.Patient(t.x.to.Model.Policy) && h.Room(&t.Request, now):
		why = h.queue.Park(&t.Request, full.Books.Rank, chosen.Choice().Prefill, now)
	default:
		why = h.queue.Wait(&t.Request, now)
	}
	if t.Waits() || why != queue.None {
		h.join(t, why, now)
	}
	h.count()
}

// late reports whether the answer cannot begin by the time that the caller has set. An
// engine that has nothing to do is asked all the same: it would never be known to have
// become faster.
func (t *ticket) late(target route.Target, now int64) bool {
	if t.x.to.BeginBy == 0 {
		return false
	}
	chosen, rank := t.choice.Decision.Choice(), target.Books.Rank
	if chosen.Cold || rank.InFlight() == 0 || !rank.Fits(now, t.Answers) {
		return false
	}
	begins := max(chosen.Wait, rank.Place()) + chosen.Prefill
	return now+int64(begins*1e6) > t.x.to.BeginBy
}

// give books the request at its engine, or with a partner at both.
func (t *ticket) give(target route.Target, partner *route.Target, now int64) {
	x := t.x
	x.target, x.partner = target, nil
	attempt := place.Chosen(&t.choice, x.to.Model)
	attempt.Legs = legs(&x.rec, &target, partner)
	x.g.recorder.Callers(&x.rec, attempt.Legs)
	if attempt.Turn = t.turn; t.turn != nil {
		t.turn.Charged = float32(t.Cost)
	}
	x.rec.Attempts = append(x.rec.Attempts, attempt)
	if len(x.rec.Attempts) == 1 {
		x.to.Model.Retries.Requested(now)
	}
	chosen, f := t.choice.Decision.Choice(), x.prepared.Footprint.At(target.Engine)
	x.work, x.charged = f.WorkOf(chosen), t.Turn
	x.booking.Enter(target.Books, chosen, &t.choice, now, f, x.prepared.Footprint.Expected(x.to.Model.Lengths, x.prepared.Sent))
	x.slot.goes(target.Books.Rank)
	if partner != nil {
		x.partner = newPartner(x.g, partner, &t.choice, now, &x.prepared, x.to.Model)
	}
	t.given = true
	x.rec.Known()
	second := uint64(0)
	if partner != nil {
		second = relayedBy(partner)
	}
	x.rec.Relayed(relayedBy(&target), second)
	if !x.response.Begun {
		x.rec.Routed = trace.Now()
	}
}

// run gives engines to those that wait, until the holding is closed.
func (h *holding) run() {
	defer close(h.ended)
	timer := time.NewTimer(queueLook)
	defer timer.Stop()
	for {
		next, changed := h.turn()
		timer.Stop()
		var passed <-chan time.Time
		if next > 0 {
			timer.Reset(next)
			passed = timer.C
		}
		select {
		case <-h.kicked:
		case <-changed:
		case <-passed:
		case <-h.over:
			return
		}
	}
}

func (h *holding) close() {
	close(h.over)
	<-h.ended
}

// turn lets the requests decide for which there is room, and ends the wait of those whose
// time is over. It returns the latest time to look again and a channel that reports a change
// of the fleet. It returns neither if no request waits.
func (h *holding) turn() (next time.Duration, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queue.Len() == 0 {
		return 0, nil
	}
	now := trace.Now()
	if fleet := h.snapshot(); fleet != h.fleet || now-h.looked >= int64(queueLook) {
		h.fleet, h.looked = fleet, now
		h.queue.Changed(now)
		h.queue.Heads(h.lookFor)
	}
	for r := h.queue.Expire(now); r != nil; r = h.queue.Expire(now) {
		t := r.Owner.(*ticket)
		t.err = h.refusal(queue.Expired, t.Caller, t.Model, now)
		t.wake()
	}
	h.queue.Turn(now, h.decide)
	h.count()
	if h.queue.Len() == 0 {
		return 0, nil
	}
	now = trace.Now()
	h.armed = now + int64(queueLook)
	if due := h.queue.Due(now); due != 0 {
		h.armed = min(h.armed, max(due, now+1))
	}
	return time.Duration(h.armed - now), h.fleet.Changed
}

// lookFor wakes a request that no engine accepts any more, so that it decides how long to
// wait for one.
func (h *holding) lookFor(r *queue.Request) (all bool) {
	t := r.Owner.(*ticket)
	m := h.fleet.Models[r.Model]
	if m != nil && m.Has(t.x.to.Needs, t.x.tried) {
		return false
	}
	t.wake()
	return true
}

func (t *ticket) wake() {
	select {
	case t.woken <- struct{}{}:
	default:
	}
}

// decide has a request decide that waits.
func (h *holding) decide(r *queue.Request) {
	t := r.Owner.(*ticket)
	x := t.x
	defer func() {
		if p := recover(); p != nil {
			t.err = x.g.recorder.Panic(x.rec.RequestID, p)
		}
		if t.err != nil {
			h.queue.Cancel(r, trace.Now())
		}
		if t.err != nil || t.given {
			t.wake()
		}
	}()
	// The gateway's shutdown cuts requests off one by one. The room that the first ones
	// free must not go to one that ends next.
	for _, ctx := range [...]context.Context{x.g.base, &x.ctx} {
		if ctx.Err() != nil {
			t.err = gone(ctx)
			return
		}
	}
	if t.err = x.refresh(); t.err != nil {
		return
	}
	now := trace.Now()
	x.rec.Ledger.Enter(trace.Route, now)
	target, partner, ok := t.pick(now)
	h.take(t, target, partner, ok, now)
	x.rec.Ledger.Enter(trace.Queue, trace.Now())
}

// Room implements queue.Ranks.
func (h *holding) Room(r *queue.Request, now int64) bool {
	t := r.Owner.(*ticket)
	m := h.model(t)
	return m != nil && m.Room(t.x.to.Needs, t.x.tried, r.Answers, now)
}

// Takes implements queue.Ranks.
func (h *holding) Takes(r *queue.Request, rank *cost.Rank) bool {
	t := r.Owner.(*ticket)
	m := h.model(t)
	return m != nil && m.Takes(t.x.to.Needs, t.x.tried, rank)
}

// Frees implements queue.Ranks.
func (h *holding) Frees(r *queue.Request, now int64) int64 {
	t := r.Owner.(*ticket)
	m := h.model(t)
	if m == nil {
		return 0
	}
	return m.Frees(t.x.to.Needs, t.x.tried, now)
}

func (h *holding) model(t *ticket) *route.Model {
	if h.fleet == nil {
		h.fleet = h.snapshot()
	}
	return h.fleet.Models[t.Model]
}

// stats are what metrics show.
func (h *holding) stats() map[string]metrics.QueueStats {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, all := trace.Now(), map[string]metrics.QueueStats{}
	for name, s := range h.queue.Stats() {
		v := metrics.QueueStats{Stats: s, DrainSeconds: h.queue.Drained(name, now).Seconds()}
		if since := h.queue.Oldest(name); since != 0 {
			v.OldestSeconds = time.Duration(now - since).Seconds()
		}
		all[name] = v
	}
	return all
}

// tenants are what metrics show of tenants.
func (h *holding) tenants() []queue.Tenant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queue.Tenants()
}

// Early implements prepare.WaitingRoom.
func (h *holding) Early(who *tenancy.Caller, m *route.Model, due, bytes int64, counts bool) error {
	if h.pushes(m) {
		return nil
	}
	name := m.Name
	now := trace.Now()
	if due != 0 && due <= now {
		if counts {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.queue.Refuse(name, queue.Expired)
		}
		return infer.AsError(&infer.Error{Code: infer.CodeOverloaded, Reason: queue.Expired.String(), Message: "the time by which the answer was to begin is over"})
	}
	if h.waiting.Load() == 0 {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	why, _ := h.queue.Early(who, name, h.expires(now, due), bytes, now)
	if why == queue.None {
		return nil
	}
	if counts {
		h.queue.Refuse(name, why)
	}
	return h.refusal(why, who, name, now)
}

// settle replaces what an attempt's turn was charged by what it has cost.
func (h *holding) settle(turn *fair.Turn, ms float64) {
	if h == nil || turn.Tenant() == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queue.Settle(turn, ms)
}

// expires is until when a request waits that begins to wait now and whose answer must begin
// by due, if that is not 0.
func (h *holding) expires(now, due int64) int64 {
	at := now + int64(h.opts.Timeout)
	if due != 0 {
		at = min(at, due)
	}
	return at
}

// maxRetryAfter bounds the wait that is suggested.
const maxRetryAfter = 30 * time.Second

// refusal is the error of a caller's request that is refused. The lock is held.
func (h *holding) refusal(why queue.Reason, who *tenancy.Caller, name string, now int64) *infer.Error {
	e := &infer.Error{Code: infer.CodeOverloaded, Reason: why.String()}
	drained := h.queue.DrainedFor(who, name, now)
	e.RetryAfter = min(drained, maxRetryAfter)
	after := ""
	if drained > 0 {
		after = fmt.Sprintf("; what waits now has left in about %v", drained.Round(100*time.Millisecond))
	}
	waiting := h.queue.Stats()[name].Waiting
	switch why {
	case queue.Full:
		e.Message = fmt.Sprintf("%d requests for model %q wait for its engines, which is the limit (--max-queue)%s", waiting, name, after)
	case queue.Bytes:
		e.Message = fmt.Sprintf("what waits for engines holds %d bytes, and no more may (--max-queue-bytes)%s", h.queue.Bytes(), after)
	case queue.TooLate:
		e.Message = fmt.Sprintf("the engines of model %q are busy, and the answer would begin too late%s", name, after)
	default:
		e.Message = fmt.Sprintf("no engine of model %q had room for the request in time%s", name, after)
	}
	return e
}
