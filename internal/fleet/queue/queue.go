// Package queue holds requests until an engine rank has room for them. The rank is chosen
// late, because a request in an engine's own queue can be neither reordered nor moved.
//
// The gateway's own books decide whether a rank has room (cost.Rank.Fits). A rank of unknown
// capacity always has room, and nothing waits for it.
//
// # Order
//
// Requests take turns according to what their tenants have used: bands by their shares, and the
// tenants of a band by theirs, in request-milliseconds (package fair). There is one account of
// turns for each Pool, which is the models whose requests can go to the same ranks. A turn is
// charged by Give and settled by Settle. Among a tenant's own requests the one with the
// earliest deadline is first. One without a deadline, or with a distant one, counts as one that
// is due in 30 s, so that no request is overtaken by those that come 30 s after it, and
// requests without deadlines keep the order of arrival.
//
// A request gets its place in the order when it arrives. It keeps the place while it is
// queued, while it waits for a certain rank, and when it returns after a failed attempt. A
// request that returns has had its turn: it goes before all that have not, by place.
//
// The requests of a flow, which is a model and a class, wait in one line. The one whose turn it
// is decides, by the books at that time. A request decides one of three things:
//
//   - Give: the rank has room, and the request takes it.
//   - Park: the rank is full, but waiting for it costs less than any rank with room, because
//     most of the prompt is cached there. The request lets the requests behind it pass to
//     other ranks. Parked requests take their turns at their rank, and their claims are visible
//     to all others that consider the rank (cost.Rank.Claim).
//   - Wait: no rank has room.
//
// If two requests go to the same rank, the one whose turn is earlier is sent first, unless it
// was undecided when the other one left. Identical requests of a tenant leave exactly in the
// order of their arrival. No request waits behind one from another flow. Within a flow all wait
// for the same ranks, and the one whose turn it is may need more places than are free: the
// others let it have them, or it would never get them.
//
// # Bounds
//
// The number of waiting requests of each model is bounded, and so are the bytes that all of
// them hold. At the bound the largest user gives way, by shares (fair.Usage): either the
// request that arrives is refused, or one of the largest user's is put out (Displaced). A
// request is refused on arrival if it could not leave in time at the rate at which its own
// tenant's requests leave. Expire removes requests whose time runs out while they wait.
//
// # Shell
//
// A Queue is pure: it has no lock, clock or goroutine. Its owner reports each event, from one
// goroutine at a time, and then calls Turn. Room appears when a booking has its first token or
// ends, when an engine joins or recovers, and with time: Due returns the latest time for the
// next Turn. Times are nanoseconds on any one clock.
package queue

import (
	"math"
	"time"

	"weir/internal/fleet/cost"
	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
)

// Limits bound the waiting requests; 0 is no bound.
type Limits struct {
	Requests int   // of one model
	Bytes    int64 // of all
	// Bands are the shares of bands.
	Bands fair.Bands
}

// Ranks states where requests can go. The methods of Queue call its methods.
type Ranks interface {
	// Room reports whether some rank that could be given r has room for it.
	Room(r *Request, now int64) bool
	// Takes reports whether the rank could be given r, if it had room.
	Takes(r *Request, rank *cost.Rank) bool
	// Frees returns the predicted time at which one of the ranks that can take r has room,
	// 0 if there is no prediction.
	Frees(r *Request, now int64) int64
}

// Request is a request in the queue. Its exported fields are set before Enter and do not
// change. The other fields belong to the queue.
type Request struct {
	Model string
	// Pool is a name that models share whose requests can go to the same ranks; "" is the
	// model's own name.
	Pool string
	// Caller is whose it is; nil is tenancy.Anyone.
	Caller *tenancy.Caller
	// Class distinguishes requests of a model that cannot go to the same ranks.
	Class uint64
	// Answers is the number of a rank's running requests that it takes (n choices take n).
	Answers int
	// Again is set if the request has had its turn and has failed at its engine.
	Again bool
	// Deadline is the caller's deadline for the request; 0: none.
	Deadline int64
	// Expires is when the request leaves the queue unserved; 0: never.
	Expires int64
	// Bytes is the memory that the request holds while it waits.
	Bytes int64
	// Cost is the predicted cost of its turn, in milliseconds. It may change until Give.
	Cost float64
	// Place is among all that ever came, and Due is by when it is to have its turn among those
	// of its tenant; 0: Enter gives it one.
	Place, Due int64
	// Owner is a value of the request's owner, which the queue does not use.
	Owner any
	// Turn is the turn that it has taken. It is settled when the request has ended.
	Turn fair.Turn

	group   *group // that it waits in; nil: it does not
	account *account
	waits   float64 // the cost that its account has for it while it waits
	at      [orders]int32
	since   int64 // when it began to wait
	decided int64 // when it decided on its rank
	claim   float64
	turn    int64 // the latest in which it was to decide
}

// patience is after how long a request is due that has no deadline.
const patience = int64(30 * time.Second)

// earlier reports whether the request goes before another one of its tenant.
func (r *Request) earlier(o *Request) bool {
	if r.Due != o.Due {
		return r.Due < o.Due
	}
	return r.Place < o.Place
}

// Waits reports whether the request is in the queue.
func (r *Request) Waits() bool { return r.group != nil }

// Rank is the one that the request has decided to wait for, nil if none.
func (r *Request) Rank() *cost.Rank {
	if r.group == nil {
		return nil
	}
	return r.group.line.rank
}

// Queue holds the waiting requests.
type Queue struct {
	limits Limits
	ranks  Ranks

	models map[string]*model
	pools  map[string]*fair.Clock
	users  *fair.Usage          // of the bytes
	flows  map[flow]*line       // of those that have not decided
	lanes  map[*cost.Rank]*line // of those that wait for a rank
	lines  []*line              // all that are not empty
	due    heap                 // of those that expire
	out    []*Request           // were put out, and nobody knows yet
	free   []*group
	book   book
	places int64
	turn   int64
	n      int
	bytes  int64
}

// flow is whose order is kept.
type flow struct {
	model string
	class uint64
}

// model is what is kept of the requests of one model.
type model struct {
	Stats
	clock *fair.Clock
	users *fair.Usage // of the places
	drain rate
}

// Stats are counts of what became of a model's requests.
type Stats struct {
	Waiting int
	Bytes   int64
	// Released counts requests that have left for a rank, also those that did not wait.
	Released int64
	// Held counts requests that have waited.
	Held int64
	// Refused counts requests that were refused or have expired, by reason.
	Refused [numReasons]int64
}

// New returns an empty queue.
func New(l Limits, r Ranks) *Queue {
	return &Queue{
		limits: l, ranks: r, models: map[string]*model{}, pools: map[string]*fair.Clock{}, users: fair.NewUsage(l.Bands),
		flows: map[flow]*line{}, lanes: map[*cost.Rank]*line{}, due: heap{by: byExpiry},
	}
}

// Len returns the number of waiting requests.
func (q *Queue) Len() int { return q.n }

// Bytes returns the memory that the waiting requests hold.
func (q *Queue) Bytes() int64 { return q.bytes }

// Stats returns the counts of all models that had a request, by name.
func (q *Queue) Stats() map[string]Stats {
	all := make(map[string]Stats, len(q.models))
	for name, m := range q.models {
		all[name] = m.Stats
	}
	return all
}

// Oldest is the time since when the longest-waiting request of a model waits; 0 if none waits. It
// looks only at the first request of each tenant in a flow: a later one that has waited longer,
// because others have deadlines, has done so for at most 30 s longer.
func (q *Queue) Oldest(name string) (since int64) {
	for _, l := range q.lines {
		l.each(func(some []*Request) bool {
			if l.rank == nil {
				some = some[:1] // the line's are of one model
			}
			for _, r := range some {
				if r.Model == name && (since == 0 || r.since < since) {
					since = r.since
				}
			}
			return true
		})
	}
	return since
}

func (q *Queue) model(name string) *model {
	m := q.models[name]
	if m == nil {
		m = &model{users: fair.NewUsage(q.limits.Bands)}
		q.models[name] = m
	}
	return m
}

// clock is the account of turns that the request's model has with others.
func (q *Queue) clock(m *model, r *Request) *fair.Clock {
	if m.clock != nil {
		return m.clock
	}
	pool := r.Pool
	if pool == "" {
		pool = r.Model
	}
	c := q.pools[pool]
	if c == nil {
		c = fair.NewClock(q.limits.Bands)
		q.pools[pool] = c
	}
	m.clock = c
	return c
}

func (r *Request) caller() *tenancy.Caller {
	if r.Caller == nil {
		return tenancy.Anyone
	}
	return r.Caller
}

// tenant is whose a request is that may not wait.
func (q *Queue) tenant(r *Request) *fair.Tenant {
	if r.account != nil {
		return r.account.tenant
	}
	return q.clock(q.model(r.Model), r).Tenant(r.caller())
}

// before reports whether a goes before b, whose tenant is given. The former waits.
func before(a, b *Request, of *fair.Tenant) bool {
	own := a.account.tenant
	switch {
	case a.Again != b.Again:
		return a.Again
	case a.Again || own.Clock() != of.Clock():
		return a.Place < b.Place
	case own == of:
		return a.earlier(b)
	}
	return own.Clock().Before(own, of)
}

// Enter assigns a place to a request that has just arrived, and reports whether it may decide
// at once, because no undecided request of its flow goes before it. It does not add the request
// to the queue. A request that comes back keeps its place.
func (q *Queue) Enter(r *Request, now int64) bool {
	if r.Place == 0 {
		q.places++
		r.Place, r.Due = q.places, now+patience
		if r.Deadline != 0 {
			r.Due = min(r.Due, r.Deadline)
		}
	}
	l := q.flows[flow{r.Model, r.Class}]
	return l == nil || l.n == 0 || !before(l.first(), r, q.tenant(r))
}

// Give lets a request leave for the rank, which the caller then books. It returns false and
// changes nothing if the rank has no room for it, or if an earlier request is to go there
// first.
func (q *Queue) Give(r *Request, rank *cost.Rank, now int64) bool {
	if !q.Open(r, rank, now) {
		return false
	}
	m := q.model(r.Model)
	m.Released++
	if m.Waiting > 0 {
		m.drain.count(now)
	}
	clock := q.clock(m, r)
	t := clock.Tenant(r.caller())
	if m.Waiting > 0 {
		if a, _ := t.Of.(*account); a != nil && a.waiting > 0 {
			a.drain.count(now)
		}
	}
	r.Turn = clock.Take(t, r.Cost)
	q.remove(r, now)
	return true
}

// Settle replaces the charge of a turn with its actual cost, in milliseconds. Only the first
// call counts.
func (q *Queue) Settle(turn *fair.Turn, ms float64) {
	if t := turn.Tenant(); t != nil {
		q.book.of(t).ServedMS += ms
		t.Clock().Settle(turn, ms)
	}
}

// Open reports whether the rank has room for the request and no earlier request is to go
// there first. A request that takes two ranks leaves when both are open to it.
func (q *Queue) Open(r *Request, rank *cost.Rank, now int64) bool {
	return rank.Fits(now, r.Answers) && (q.n == 0 || !q.behind(r, rank))
}

// behind reports whether somebody is to go to the rank before r does.
func (q *Queue) behind(r *Request, rank *cost.Rank) bool {
	of := q.tenant(r)
	for _, l := range q.lines {
		first := l.first()
		if first == r || !before(first, r, of) {
			continue
		}
		if l.rank == rank || l.rank == nil && q.ranks.Takes(first, rank) {
			return true
		}
	}
	return false
}

// Free reports whether a request that arrives now would get the rank at once: the rank has
// room, and no waiting request is to go there first.
func (q *Queue) Free(r *Request, rank *cost.Rank, now int64) bool {
	last := *r
	last.Place, last.Due = math.MaxInt64, math.MaxInt64
	return q.Open(&last, rank, now)
}

// Contended reports whether requests of other tenants wait for the ranks of the request's pool.
// A request that then lets its turn pass, to wait for a full rank, must gain something certain:
// a prompt that is cached there, and not a shorter queue, which is a prediction.
func (q *Queue) Contended(r *Request) bool {
	if q.n == 0 {
		return false
	}
	t := q.tenant(r)
	n := t.Clock().Waiting()
	if t.Waiting() > 0 {
		n--
	}
	return n > 0
}

// Company returns how many other requests wait for the ranks of a waiting request's pool: of
// its own tenant, of others, and how many tenants those are.
func (q *Queue) Company(r *Request) (own, others, tenants int) {
	t := r.account.tenant
	return t.Waiting() - 1, t.Clock().Requests() - t.Waiting(), t.Clock().Waiting() - 1
}

// Before returns how many waiting requests have their turn before a request that arrives
// now: those for the rank, or, if it is nil, those of the request's flow. These are the
// requests of its tenant, and one of each other tenant that has used less.
func (q *Queue) Before(r *Request, rank *cost.Rank) (n int) {
	l := q.flows[flow{r.Model, r.Class}]
	if rank != nil {
		l = q.lanes[rank]
	}
	if l == nil {
		return 0
	}
	of := q.tenant(r)
	n = len(l.again.waiting.items)
	l.turns.Each(func(g *fair.Group) bool {
		if t := g.Tenant(); t == of {
			n += len(g.Of.(*group).waiting.items)
		} else if t.Clock() != of.Clock() || t.Clock().Before(t, of) {
			n++
		}
		return true
	})
	return n
}

// Wait makes a request wait until some rank has room. A request that does not wait yet may be
// refused.
func (q *Queue) Wait(r *Request, now int64) Reason {
	if why := q.admit(r, now); why != None {
		return why
	}
	key := flow{r.Model, r.Class}
	l := q.flows[key]
	if l == nil {
		l = newLine()
		l.flow = key
		q.flows[key] = l
	}
	q.move(r, l, now)
	return None
}

func newLine() *line {
	l := new(line)
	l.again.line = l
	return l
}

// Park makes a request wait for a full rank. It gives the wait up after ms milliseconds, or
// when a place there is free after its own. A request that does not wait yet may be refused.
func (q *Queue) Park(r *Request, rank *cost.Rank, ms float64, now int64) Reason {
	if why := q.admit(r, now); why != None {
		return why
	}
	l := q.lanes[rank]
	if l == nil {
		l = newLine()
		l.rank = rank
		q.lanes[rank] = l
	}
	q.move(r, l, now)
	r.decided, r.claim = now, max(ms, rank.Turn())
	rank.Claim(r.claim)
	return None
}

// admit reports whether a request may wait. It puts out others for it.
func (q *Queue) admit(r *Request, now int64) Reason {
	if r.group != nil {
		return None
	}
	m := q.model(r.Model)
	clock, who := q.clock(m, r), r.caller()
	why, _ := q.Refuses(who, r.Model, r.Expires, r.Bytes, now)
	if why != None {
		m.Refused[why]++
		q.book.of(clock.Tenant(who)).Refused++
		return why
	}
	if most := q.limits.Requests; most > 0 && m.Waiting >= most {
		why = q.makeRoom(m.users.Yields(m.users.User(who), 1, 1), r.Model, Full, now, func() bool { return m.Waiting < most })
	}
	if most := q.limits.Bytes; why == None && most > 0 && q.n > 0 && q.bytes+r.Bytes > most {
		u := q.users.Yields(q.users.User(who), r.Bytes, q.bytes+r.Bytes-most)
		why = q.makeRoom(u, "", Bytes, now, func() bool { return q.n == 0 || q.bytes+r.Bytes <= most })
	}
	if why != None {
		m.Refused[why]++
		q.book.of(clock.Tenant(who)).Refused++
	}
	return why
}

// makeRoom puts out requests of a user until there is room.
func (q *Queue) makeRoom(u *fair.User, name string, why Reason, now int64, enough func() bool) Reason {
	for !enough() {
		if u == nil || !q.putOut(u, name, why, now) {
			return why
		}
	}
	return None
}

// putOut takes out one of the user's that wait, of a model or of any.
func (q *Queue) putOut(u *fair.User, name string, why Reason, now int64) bool {
	who := tenancy.Caller{Band: u.Band, Tenant: u.Tenant, Share: 1}
	for _, clock := range q.pools {
		t := clock.Find(&who)
		if t == nil {
			continue
		}
		a, _ := t.Of.(*account)
		if a == nil {
			continue
		}
		for _, g := range a.groups {
			// A leaf of the heap, which is one of those that have come late.
			for i := len(g.waiting.items) - 1; i >= 0; i-- {
				r := g.waiting.items[i]
				if name != "" && r.Model != name {
					if g.line.rank == nil {
						break
					}
					continue
				}
				q.model(r.Model).Refused[why]++
				q.book.of(t).Refused++
				q.remove(r, now)
				q.out = append(q.out, r)
				return true
			}
		}
	}
	return false
}

// Displaced returns a request that was removed in favor of another one, nil if there
// is none.
func (q *Queue) Displaced() *Request {
	if len(q.out) == 0 {
		return nil
	}
	r := q.out[0]
	q.out[0] = nil
	q.out = q.out[1:]
	return r
}

// move puts a request into a line.
func (q *Queue) move(r *Request, to *line, now int64) {
	if r.group != nil {
		q.unlink(r)
	} else {
		m := q.model(r.Model)
		if m.Waiting == 0 {
			m.drain.begin(now)
		}
		m.Waiting++
		m.Held++
		m.Bytes += r.Bytes
		q.n++
		q.bytes += r.Bytes
		r.since = now
		if r.Expires != 0 {
			q.due.push(r)
		}
		who, clock := r.caller(), q.clock(m, r)
		t := clock.Tenant(who)
		clock.Enter(t)
		r.account = q.account(t)
		r.account.enter(r, now)
		if q.limits.Requests > 0 {
			m.users.Hold(m.users.User(who), 1)
		}
		if q.limits.Bytes > 0 {
			q.users.Hold(q.users.User(who), r.Bytes)
		}
	}
	if to.n == 0 {
		to.index = len(q.lines)
		q.lines = append(q.lines, to)
	}
	to.n++
	r.group = q.group(r, to)
	r.group.waiting.push(r)
	if to.rank == nil {
		r.account.undecided++
	}
}

// group is where the request waits in a line.
func (q *Queue) group(r *Request, in *line) (g *group) {
	if r.Again {
		return &in.again
	}
	a := r.account
	for _, g := range a.groups {
		if g.line == in {
			return g
		}
	}
	if n := len(q.free); n > 0 {
		g, q.free = q.free[n-1], q.free[:n-1]
	} else {
		g = new(group)
		g.Of = g
	}
	g.line = in
	a.groups = append(a.groups, g)
	in.turns.Add(&g.Group, a.tenant)
	return g
}

// unlink takes a request out of its line.
func (q *Queue) unlink(r *Request) {
	g := r.group
	l := g.line
	r.group = nil
	if l.rank != nil {
		l.rank.Claim(-r.claim)
		r.claim = 0
	} else {
		r.account.undecided--
	}
	g.waiting.remove(r)
	if len(g.waiting.items) == 0 && g != &l.again {
		l.turns.Remove(&g.Group)
		r.account.leave(g)
		g.line = nil
		q.free = append(q.free, g)
	}
	if l.n--; l.n > 0 {
		return
	}
	last := q.lines[len(q.lines)-1]
	q.lines[l.index], last.index = last, l.index
	q.lines[len(q.lines)-1] = nil
	q.lines = q.lines[:len(q.lines)-1]
	if l.rank != nil {
		delete(q.lanes, l.rank)
	} else {
		delete(q.flows, l.flow)
	}
}

// remove takes a request out of the queue, if it is there.
func (q *Queue) remove(r *Request, now int64) {
	if r.group == nil {
		return
	}
	q.unlink(r)
	m := q.model(r.Model)
	m.Waiting--
	m.Bytes -= r.Bytes
	if m.Waiting == 0 {
		m.drain.end(now)
	}
	q.n--
	q.bytes -= r.Bytes
	if r.Expires != 0 {
		q.due.remove(r)
	}
	who := r.caller()
	if q.limits.Requests > 0 {
		m.users.Hold(m.users.User(who), -1)
	}
	if q.limits.Bytes > 0 {
		q.users.Hold(q.users.User(who), -r.Bytes)
	}
	r.account.exit(r, now)
	m.clock.Leave(r.account.tenant)
	r.account = nil
}

// Heads calls do with the first request of each line, and with all others of the line if
// do asks for them.
func (q *Queue) Heads(do func(r *Request) (rest bool)) {
	for _, l := range q.lines {
		first := l.first()
		if !do(first) {
			continue
		}
		l.each(func(some []*Request) bool {
			for _, r := range some {
				if r != first {
					do(r)
				}
			}
			return true
		})
	}
}

// Cancel removes a request whose caller is gone. It has no effect on a request that does
// not wait.
func (q *Queue) Cancel(r *Request, now int64) { q.remove(r, now) }

// reconsider is how long a request waits for a rank, while another one has room, before it
// decides anew.
const reconsider = int64(50 * time.Millisecond)

// Turn lets all requests that can go decide, each once: it calls decide with the request whose turn it is
// among those for which a rank has room, until none is left. decide calls Give, Park, Wait or Cancel, or none
// of them if it cannot decide.
func (q *Queue) Turn(now int64, decide func(r *Request)) {
	q.turn++
	for r := q.next(now); r != nil; r = q.next(now) {
		r.turn = q.turn
		decide(r)
	}
}

func (q *Queue) next(now int64) (next *Request) {
	for _, l := range q.lines {
		r := l.first()
		if r.turn == q.turn || next != nil && before(next, r, r.account.tenant) {
			continue
		}
		if l.rank != nil && l.rank.Fits(now, r.Answers) || (l.rank == nil || now-r.decided >= reconsider) && q.ranks.Room(r, now) {
			next = r
		}
	}
	return next
}

// First returns the rank where the request goes before all that wait for it, or nil if
// there is none: their claims do not delay the request.
func (r *Request) First() *cost.Rank {
	if r.group != nil && r.group.line.rank != nil && r.group.line.first() == r {
		return r.group.line.rank
	}
	return nil
}

// Changed reports that ranks were added or removed, or take other requests. A request
// that waits for a rank that it can no longer be given waits for any rank.
func (q *Queue) Changed(now int64) {
	var back []*Request
	for _, l := range q.lanes {
		l.each(func(some []*Request) bool {
			for _, r := range some {
				if !q.ranks.Takes(r, l.rank) {
					back = append(back, r)
				}
			}
			return true
		})
	}
	for _, r := range back {
		q.Wait(r, now)
	}
}

// Expire removes and returns a request whose time is over, nil if there is none.
func (q *Queue) Expire(now int64) *Request {
	if len(q.due.items) == 0 || q.due.items[0].Expires > now {
		return nil
	}
	r := q.due.items[0]
	q.model(r.Model).Refused[Expired]++
	q.book.of(r.account.tenant).Refused++
	q.remove(r, now)
	return r
}

// Due returns the time at which Turn or Expire may have an effect without an event, for
// example because a rank is predicted to have room. It is 0 if only an event can change
// anything.
func (q *Queue) Due(now int64) int64 {
	due := int64(math.MaxInt64)
	if len(q.due.items) > 0 {
		due = q.due.items[0].Expires
	}
	for _, l := range q.lines {
		r := l.first()
		if at := q.ranks.Frees(r, now); at != 0 {
			due = min(due, at)
		}
		if l.rank != nil && q.ranks.Room(r, now) {
			due = min(due, max(r.decided+reconsider, now+int64(time.Millisecond)))
		}
	}
	if due == math.MaxInt64 {
		return 0
	}
	return due
}
