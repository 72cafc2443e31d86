// Package queue holds requests until an engine rank has room for them. The rank is chosen
// late, because a request in an engine's own queue can be neither reordered nor moved.
//
// The gateway's own books decide whether a rank has room (cost.Rank.Fits). A rank of unknown
// capacity always has room, and nothing waits for it.
//
// # Order
//
// A request gets its place in the order when it arrives. It keeps the place while it is
// queued, while it waits for a certain rank, and when it returns after a failed attempt. The
// requests of a flow, which is a model and a class, wait in one line and decide in the order
// of their places, each by the books at that time. A request decides one of three things:
//
//   - Give: the rank has room, and the request takes it.
//   - Park: the rank is full, but waiting for it costs less than any rank with room, because
//     most of the prompt is cached there. The request lets the requests behind it pass to
//     other ranks. Parked requests are the first at their rank, in the order of their places,
//     and their claims are visible to all others that consider the rank (cost.Rank.Claim).
//   - Wait: no rank has room.
//
// If two requests go to the same rank, the earlier one is sent first, unless it was undecided
// when the later one left. Identical requests leave exactly in the order of their arrival. No
// request waits behind one from another flow.
//
// # Bounds
//
// The number of waiting requests of each model is bounded, and so are the bytes that all of
// them hold. A request is refused on arrival if it could not leave in time at the rate at
// which the requests before it leave. Expire removes requests whose time runs out while they
// wait.
//
// # Shell
//
// A Queue is pure: it has no lock, clock or goroutine. Its owner reports each event, from one
// goroutine at a time, and then calls Turn. Room appears when a booking has its first token or
// ends, when an engine joins or recovers, and with time: Due returns the latest time for the
// next Turn. Times are nanoseconds on any one clock.
//
// The function next chooses between flows, by place. It is where bands and tenants would be
// added.
package queue

import (
	"math"
	"time"

	"weir/internal/fleet/cost"
)

// Limits bound what waits; 0 is no bound.
type Limits struct {
	Requests int   // of one model
	Bytes    int64 // of all
}

// Ranks says where requests can go. Its methods are called by those of the Queue.
type Ranks interface {
	// Room says whether some rank that could be given r has room for it.
	Room(r *Request, now int64) bool
	// Takes says whether the rank could be given r, if it had room.
	Takes(r *Request, rank *cost.Rank) bool
	// Frees is when one of the ranks that r could be given to is predicted to have room, 0
	// where that is not predicted.
	Frees(r *Request, now int64) int64
}

// Request is a request in the queue. Its exported fields are set before Enter and do not
// change. The other fields belong to the queue.
type Request struct {
	Model string
	// Class tells requests of a model apart that cannot go to the same ranks.
	Class uint64
	// Answers is the number of a rank's running requests that it takes (n choices take n).
	Answers int
	// Expires is when it leaves undone; 0 is never.
	Expires int64
	// Bytes is what it holds while it waits.
	Bytes int64
	// Place is among all that ever came; 0: Enter gives it one.
	Place int64
	// Owner is whatever its owner needs to find again.
	Owner any

	line    *line // that it waits in; nil: it does not
	at      [orders]int32
	since   int64 // when it began to wait
	decided int64 // when it decided on its rank
	claim   float64
	turn    int64 // the latest in which it was to decide
}

// Waits reports whether the request is in the queue.
func (r *Request) Waits() bool { return r.line != nil }

// Rank is the one that the request has decided to wait for, nil if none.
func (r *Request) Rank() *cost.Rank {
	if r.line == nil {
		return nil
	}
	return r.line.rank
}

// Queue is what waits.
type Queue struct {
	limits Limits
	ranks  Ranks

	models map[string]*model
	flows  map[flow]*line       // of those that have not decided
	lanes  map[*cost.Rank]*line // of those that wait for a rank
	lines  []*line              // all that are not empty
	due    heap                 // of those that expire
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
	undecided int // of those that wait, the ones that wait for any rank
	drain     rate
}

// Stats say what became of a model's requests.
type Stats struct {
	Waiting int
	Bytes   int64
	// Released are those that have left for a rank, among them those that did not wait.
	Released int64
	// Held are those that have waited.
	Held int64
	// Refused are those that were refused or have expired, by their reasons.
	Refused [numReasons]int64
}

// New makes an empty queue.
func New(l Limits, r Ranks) *Queue {
	return &Queue{limits: l, ranks: r, models: map[string]*model{}, flows: map[flow]*line{}, lanes: map[*cost.Rank]*line{}, due: heap{by: byExpiry}}
}

// Len is how many requests wait.
func (q *Queue) Len() int { return q.n }

// Bytes is what they hold.
func (q *Queue) Bytes() int64 { return q.bytes }

// Stats returns those of the models of which some request came, by their names.
func (q *Queue) Stats() map[string]Stats {
	all := make(map[string]Stats, len(q.models))
	for name, m := range q.models {
		all[name] = m.Stats
	}
	return all
}

// Oldest is since when the one waits that has waited longest of a model's; 0 where none does.
func (q *Queue) Oldest(name string) (since int64) {
	for _, l := range q.lines {
		some := l.waiting.items
		if l.rank == nil {
			some = some[:1] // the line's are of one model, and the first came first
		}
		for _, r := range some {
			if r.Model == name && (since == 0 || r.since < since) {
				since = r.since
			}
		}
	}
	return since
}

func (q *Queue) model(name string) *model {
	m := q.models[name]
	if m == nil {
		m = new(model)
		q.models[name] = m
	}
	return m
}

// Enter assigns a place to a request that has just arrived, and reports whether it may decide
// at once, because no undecided request of its flow waits. It does not add the request to the
// queue. A request that comes back keeps its place.
func (q *Queue) Enter(r *Request) bool {
	if r.Place == 0 {
		q.places++
		r.Place = q.places
	}
	l := q.flows[flow{r.Model, r.Class}]
	return l == nil || len(l.waiting.items) == 0 || r.Place < l.waiting.items[0].Place
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
	q.remove(r, now)
	return true
}

// Open reports whether the rank has room for the request and no earlier request is to go
// there first. A request that takes two ranks leaves when both are open to it.
func (q *Queue) Open(r *Request, rank *cost.Rank, now int64) bool {
	return rank.Fits(now, r.Answers) && (q.n == 0 || !q.behind(r, rank))
}

// behind reports whether somebody is to go to the rank before r does.
func (q *Queue) behind(r *Request, rank *cost.Rank) bool {
	for _, l := range q.lines {
		first := l.waiting.items[0]
		if first == r || first.Place > r.Place {
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
	last.Place = math.MaxInt64
	return q.Open(&last, rank, now)
}

// Before is how many wait whose turn comes before that of a request that comes now: for the
// rank, or of its flow where that is nil.
func (q *Queue) Before(r *Request, rank *cost.Rank) int {
	l := q.flows[flow{r.Model, r.Class}]
	if rank != nil {
		l = q.lanes[rank]
	}
	if l == nil {
		return 0
	}
	return len(l.waiting.items)
}

// Wait has a request wait until some rank has room. One that does not wait yet may be refused.
func (q *Queue) Wait(r *Request, now int64) Reason {
	if why := q.admit(r, now); why != None {
		return why
	}
	key := flow{r.Model, r.Class}
	l := q.flows[key]
	if l == nil {
		l = &line{flow: key, waiting: heap{by: byPlace}}
		q.flows[key] = l
	}
	q.move(r, l, now)
	return None
}

// Park has a request wait for a rank that has no room now, and which it will keep for ms
// milliseconds, or until a place there is free after its own. One that does not wait yet may
// be refused.
func (q *Queue) Park(r *Request, rank *cost.Rank, ms float64, now int64) Reason {
	if why := q.admit(r, now); why != None {
		return why
	}
	l := q.lanes[rank]
	if l == nil {
		l = &line{rank: rank, waiting: heap{by: byPlace}}
		q.lanes[rank] = l
	}
	q.move(r, l, now)
	r.decided, r.claim = now, max(ms, rank.Turn())
	rank.Claim(r.claim)
	return None
}

// admit reports whether a request may wait.
func (q *Queue) admit(r *Request, now int64) Reason {
	if r.line != nil {
		return None
	}
	why, _ := q.Refuses(r.Model, r.Expires, r.Bytes, now)
	if why != None {
		q.model(r.Model).Refused[why]++
	}
	return why
}

// move puts a request into a line.
func (q *Queue) move(r *Request, to *line, now int64) {
	if r.line != nil {
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
	}
	if len(to.waiting.items) == 0 {
		to.index = len(q.lines)
		q.lines = append(q.lines, to)
	}
	to.waiting.push(r)
	r.line = to
	if to.rank == nil {
		q.model(r.Model).undecided++
	}
}

// unlink takes a request out of its line.
func (q *Queue) unlink(r *Request) {
	l := r.line
	r.line = nil
	if l.rank != nil {
		l.rank.Claim(-r.claim)
		r.claim = 0
	} else {
		q.model(r.Model).undecided--
	}
	l.waiting.remove(r)
	if len(l.waiting.items) > 0 {
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
	if r.line == nil {
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
}

// Heads calls do with the first of each line, and with all that wait in the line where do
// asks for the rest of it.
func (q *Queue) Heads(do func(r *Request) (rest bool)) {
	for _, l := range q.lines {
		if do(l.waiting.items[0]) {
			for _, r := range l.waiting.items[1:] {
				do(r)
			}
		}
	}
}

// Cancel has a request leave whose caller is gone. One that does not wait is none of the
// queue's.
func (q *Queue) Cancel(r *Request, now int64) { q.remove(r, now) }

// reconsider is how long a request waits for a rank, while another one has room, before it
// decides anew.
const reconsider = int64(50 * time.Millisecond)

// Turn lets all requests decide that can, each once: it calls decide with the oldest request
// for which a rank has room, until none is left. decide calls Give, Park, Wait or Cancel, or
// none of them if it cannot decide.
func (q *Queue) Turn(now int64, decide func(r *Request)) {
	q.turn++
	for r := q.next(now); r != nil; r = q.next(now) {
		r.turn = q.turn
		decide(r)
	}
}

func (q *Queue) next(now int64) (next *Request) {
	for _, l := range q.lines {
		r := l.waiting.items[0]
		if r.turn == q.turn || next != nil && next.Place < r.Place {
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
	if l := r.line; l != nil && l.waiting.items[0] == r {
		return l.rank
	}
	return nil
}

// Changed reports that other ranks are there, or take other requests. Those that wait
// for a rank that cannot be given to them wait for any.
func (q *Queue) Changed(now int64) {
	var back []*Request
	for _, l := range q.lanes {
		for _, r := range l.waiting.items {
			if !q.ranks.Takes(r, l.rank) {
				back = append(back, r)
			}
		}
	}
	for _, r := range back {
		q.Wait(r, now)
	}
}

// Expire takes out a request whose time is over, nil if there is none.
func (q *Queue) Expire(now int64) *Request {
	if len(q.due.items) == 0 || q.due.items[0].Expires > now {
		return nil
	}
	r := q.due.items[0]
	q.model(r.Model).Refused[Expired]++
	q.remove(r, now)
	return r
}

// Due returns when Turn or Expire may have something to say without an event: when ranks
// are predicted to have room, at the latest. It is 0 where only an event can change
// anything.
func (q *Queue) Due(now int64) int64 {
	due := int64(math.MaxInt64)
	if len(q.due.items) > 0 {
		due = q.due.items[0].Expires
	}
	for _, l := range q.lines {
		r := l.waiting.items[0]
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
