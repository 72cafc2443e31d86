package cost

import (
	"math"
	"slices"
)

// prefilling is the prompts that a rank computes, and how far it is. It is under the lock of the
// books.
type prefilling struct {
	hidden int        // requests in flight whose first token does not show itself
	queue  []*Booking // without their first token, in the order of booking
	sum    Amount     // tokens and pairs left in the queue; they are exact, as multiples of a half
	group  group
	done   Amount // prefilled, of all requests whose group is closed
	last   int64  // when that was
	// lost is what may have been prefilled since then of requests that ended without a
	// first token, in milliseconds.
	lost   float64
	stood  int64 // an interval that began by then is not used to learn the cost of work
	silent int64 // waits of requests handed over by then are not used to learn others' work
}

// group are the first tokens that came together, from one step of the engine, and the
// interval that ended with them.
type group struct {
	members       []*Booking
	from, at      int64
	tokens, pairs float64
	decoders      float64 // beside them
	stamped       bool    // from is the engine's own
	full          bool    // some may have waited for room in the cache
	awaited       bool    // from is when a step began in which the engine only decoded
	before        Amount  // of an interval in doubt, which this one goes on
	unsure        float64 // milliseconds
}

// queued returns the time, in nanoseconds, that the rank takes for the prompts booked by this
// gateway, and for those behind the oldest. late is the unexplained lateness of the oldest
// one's first token, in milliseconds, beyond twice its own prefill. A request that arrives
// now is served after the oldest, and a token that has been late for so long is expected to
// be late for as long again.
func (r *Rank) queued(now int64) (booked, behind int64, late float64) {
	left, behind := r.drained.Load()-now, r.floor.Load()
	if behind < 0 {
		behind = ^behind
	} else if left < behind {
		late = float64(max(behind-left-r.grace.Load(), 0)) / millisecond
	}
	return max(left, behind, 0), behind, late
}

// computes takes a booking out of those whose prompt the rank is to compute. The lock is held.
func (r *Rank) computes(b *Booking) {
	switch b.work.Part {
	case DecodePart:
		return
	case PrefillPart:
		r.unfilled.Add(-1)
	}
	r.pending.Add(-int64(b.work.New))
	if i := slices.Index(r.queue, b); i >= 0 {
		r.drop(i)
	}
}

// pairs is what is left of a request's prompt, in the unit of Amount.
func (b *Booking) pairs() float64 { return b.left * (float64(b.work.Length) - b.left/2) }

// push adds a booking to the queue.
func (p *prefilling) push(b *Booking) {
	p.queue = append(p.queue, b)
	p.sum.Tokens, p.sum.Pairs = p.sum.Tokens+b.left, p.sum.Pairs+b.pairs()
}

// drop takes a booking out of the queue. It is nearly always one of the first.
func (p *prefilling) drop(i int) {
	b := p.queue[i]
	p.sum.Tokens, p.sum.Pairs = p.sum.Tokens-b.left, p.sum.Pairs-b.pairs()
	if i < len(p.queue)/2 {
		copy(p.queue[1:], p.queue[:i])
		p.queue[0] = nil
		p.queue = p.queue[1:]
	} else {
		p.queue = slices.Delete(p.queue, i, i+1)
	}
}

// schedule predicts when the queue is done, at time now.
func (r *Rank) schedule(now int64) {
	l := r.learned.Load()
	k := float64(r.decoders.Load())
	// Only the oldest can have made progress, and no more than all of its own. Those
	// behind it share steps.
	oldest, begun := 0.0, now
	var rest Amount
	if len(r.queue) > 0 {
		b := r.queue[0]
		oldest, begun = r.remaining(b), max(b.at, r.last, r.group.at)
		rest.Tokens, rest.Pairs = r.sum.Tokens-b.left, r.sum.Pairs-b.pairs()
	}
	rest.Steps = math.Ceil(rest.Tokens / l.budget)
	behind := l.Of(rest) + l.mixed(rest, k)
	floor := int64(behind * millisecond)
	if len(r.queue) == 0 || r.queue[0].work.Unseen {
		floor = ^floor
	} else {
		r.grace.Store(int64((oldest + r.queue[0].predicted.Room) * millisecond))
	}
	r.floor.Store(floor)
	r.drained.Store(begun + int64((oldest+behind)*millisecond))
	r.publish()
}

// remaining is how long it takes to prefill what is left of a request's prompt.
func (r *Rank) remaining(b *Booking) float64 {
	l := r.learned.Load()
	a := Prefill(b.left, float64(b.work.Length), l.budget)
	return l.Of(a) + l.mixed(a, float64(r.decoders.Load()))
}

// together is how far apart first tokens of one step may come.
const together = millisecond / 2

// together is how far apart first tokens of one step may come. Several gateways see a step at
// different times, but these are closer to each other than to those of the next step, which
// decodes.
func (r *Rank) together() int64 {
	if !r.merged {
		return together
	}
	l := r.learned.Load()
	return max(together, int64(0.5*millisecond*(l.Decode+l.Decoder*float64(r.decoders.Load()))))
}

// join puts a first token into the group of its step. So many requests decode, it among them.
func (p *prefilling) join(b *Booking, now, began, decoders int64) {
	g := &p.group
	from, stamped := b.at, false
	if began > 0 && began <= now {
		from, stamped = began, true
	}
	if len(g.members) == 0 {
		if g.before.Tokens > 0 && from < p.last {
			from = g.from // the interval before goes on
		} else {
			g.before, g.unsure = Amount{}, 0
		}
		beside := decoders
		if b.work.Part != PrefillPart { // it is one of them itself
			beside--
		}
		g.from, g.at, g.decoders, g.tokens, g.pairs, g.full = now, now, float64(beside), 0, 0, false
		g.unsure += p.lost
		p.lost = 0
	}
	if g.before.Tokens == 0 {
		from = max(from, p.last)
	}
	if from < g.from {
		g.from, g.stamped, g.awaited = from, stamped, false
		if !stamped && from > p.last && g.decoders > 0 && b.stepped >= p.last {
			g.from, g.awaited = b.stepped, true
		}
	}
	g.full = g.full || b.predicted.Room > 0
	g.members = append(g.members, b)
	g.tokens += b.left
	g.pairs += b.pairs()
}

// settle closes the group of first tokens when time has gone on, and notes the interval
// that ended with it.
func (r *Rank) settle(now int64) {
	r.presume(now)
	g := &r.group
	if len(g.members) == 0 || now-g.at < r.together() {
		return
	}
	l := r.learned.Load()
	full := r.full(r.left.Load(), r.decoders.Load())
	a, doubtful := r.prefilled(l, full, int(r.places()))
	before := g.before
	added := a.Minus(before)
	added.Decodes, added.Decoded = 0, 0 // which r.done does not count
	r.done, r.last = r.done.Plus(added), g.at
	for i, b := range g.members {
		b.done = r.done
		g.members[i] = nil
	}
	g.members = g.members[:0]
	a.Decodes, a.Decoded = before.Decodes, before.Decoded
	if k := g.decoders; k > 0 {
		a.Decodes, a.Decoded = a.Decodes+added.Steps, a.Decoded+added.Steps*k
		if g.awaited {
			// It came in a step that only decoded, with which the interval begins.
			a.Decodes, a.Decoded = a.Decodes+1, a.Decoded+k
		}
	}
	if before.Tokens > 0 {
		g.unsure += 0.3 * l.Step // as many steps, or one less
	}
	if g.before = (Amount{}); g.from <= r.stood || (full || g.full) && !g.stamped {
		return
	}
	if doubtful {
		g.before = a
		return
	}
	took := float64(g.at-g.from) / millisecond
	r.note(Prefilling, a, took, g.unsure, g.at)
	if !g.stamped && took <= longest && g.from > r.silent {
		r.unexplained(g.at, took-l.drifted(g.at, r.model.median.Load()).Of(a)-2*l.Error(a))
	}
}

// presume makes requests whose first token is not visible begin to decode at the
// predicted time.
func (r *Rank) presume(now int64) {
	if r.hidden == 0 {
		return
	}
	r.queue = slices.DeleteFunc(r.queue, func(b *Booking) bool {
		due := b.at + int64(b.predicted.TTFT()*millisecond)
		if !b.work.Unseen || now < due {
			return false
		}
		r.sum.Tokens, r.sum.Pairs = r.sum.Tokens-b.left, r.sum.Pairs-b.pairs()
		b.first, b.presumed = max(due, 1), true
		r.decoders.Add(1)
		r.pending.Add(-int64(b.work.New))
		r.done = r.done.Plus(Prefill(b.left, float64(b.work.Length), r.learned.Load().budget))
		return true
	})
}

// full reports whether the rank's cache may lack room for the waiting requests and for
// the output of these and the decoding ones, for which engines reserve room.
func (p *prefilling) full(left, decoders int64) bool {
	if len(p.queue) == 0 {
		return false
	}
	to := (float64(len(p.queue)) + float64(decoders)/2) * p.queue[0].work.Output
	return float64(left) < to
}

// prefilled returns the amount that the engine prefilled since the interval began: for the group,
// and in the same steps for the prompts that follow. It is doubtful if these prompts cannot be
// determined; then the interval continues to the next first token, which determines them. The
// prompts of both groups may have shared a step, so steps are counted for all of them together. If
// the cache is full, the requests behind wait for room in it and not for steps.
func (p *prefilling) prefilled(l *learned, full bool, places int) (a Amount, doubtful bool) {
	g := &p.group
	room := max(l.budget-g.decoders, 1)
	a = Amount{Tokens: g.before.Tokens + g.tokens, Pairs: g.before.Pairs + g.pairs}
	a.Steps = max(math.Ceil(a.Tokens/room), g.before.Steps+1)
	if full {
		return a, false
	}
	if free := a.Steps*room - a.Tokens; free > 0 {
		since := a.Minus(g.before)
		final, unsure := float64(g.at-max(g.from, p.last)), slight
		if since.Steps > 1 || !g.stamped && g.from > p.last {
			final, unsure = final*l.share(since, room, g.decoders), doubt
		}
		var more Amount
		more, doubtful = p.fill(free, places, g.at-int64(final), int64(unsure*final))
		a = a.Plus(more)
	}
	return a, doubtful
}

// share is how much of the time of an amount its last step takes.
func (c *Coefficients) share(a Amount, room, k float64) float64 {
	if a.Steps <= 1 {
		return 1
	}
	last := a.Tokens - (a.Steps-1)*room
	final := Amount{Steps: 1, Tokens: last, Pairs: a.Pairs / a.Tokens * last}
	return (c.Of(final) + c.mixed(final, k)) / (c.Of(a) + c.mixed(a, k))
}

// doubt is the uncertainty of the last step's beginning, as a share of its length, and slight that
// of a step that began with the interval, where only the way to the engine is uncertain.
const doubt, slight = 0.3, 0.15

// fill uses the rest of the last step's budget for the prompts that waited when it
// began, and returns that amount. It is doubtful if it is uncertain whether a prompt
// waited.
func (p *prefilling) fill(room float64, places int, began, doubt int64) (a Amount, doubtful bool) {
	// Those that have no place were not in it.
	places -= int(p.group.decoders) + len(p.group.members)
	for i, b := range p.queue {
		if room <= 0 || i >= places || b.at >= began+doubt || b.at >= p.group.at {
			break
		}
		if b.at > began-doubt {
			return a, true
		}
		n := min(room, b.left-1)
		end := float64(b.work.Length) - b.left + n
		a.Tokens += n
		a.Pairs += n * (end - n/2)
		p.sum.Tokens, p.sum.Pairs = p.sum.Tokens-b.left, p.sum.Pairs-b.pairs()
		b.left -= n
		p.sum.Tokens, p.sum.Pairs = p.sum.Tokens+b.left, p.sum.Pairs+b.pairs()
		room -= n
	}
	return a, false
}
