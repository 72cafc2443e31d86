package cost

import (
	"math"
	"sync/atomic"
)

// quote is what a decision reads of a rank that has a place, was measured, and is not late. It
// is two cache lines, which lie one behind the other where a thousand ranks are asked one after
// another (TestTwoLines). Each is a word by itself: who reads while they change may have some of
// before and some of after. They change under mu.
type quote struct {
	bid
	// floor is what of drained cannot have been done yet, in ns: those behind the oldest. It is
	// a complement where no first token is awaited, or the oldest does not show its own.
	floor   atomic.Int64
	foreign atomic.Int64  // until when Unseen is something
	space   atomic.Uint64 // float32: Room.Reuse; and uint32: tokens that nobody uses or has left
	reach   word          // tokens of a prompt that fit in one step, and in the cache's room
	budget  word          // the former alone
	step    word          // of Coefficients
	mixing  word          // what decoding adds to a step that prefills, in ms
	// With Rank.books they are 128 bytes.
}

// bid is the line of a quote that a bound of Total needs (Plain), which is all that a decision
// reads of most ranks.
type bid struct {
	// plain is until when the short way is right: nothing but what is in the quote is needed. Its
	// last bits are crowds (crowdBits).
	plain   atomic.Int64
	drained atomic.Int64 // when the booked prefills are predicted to be done
	// start is no more than what a step costs beside its tokens, for each that waits for it: the
	// coefficient, less what prompts that share the step pay of it. It is negative where the
	// bound is the cost (Told).
	start          word
	token, pair    word // Coefficients
	mixed          word // no more than mixing's share of the work
	stepTime, drag word // how long a step takes with one more, and by how much that one delays the others in it
}

// crowdBits are the last bits of plain, which are too few for a time to be told by.
const crowdBits = 1<<16 - 1

// word is a float64 that is read and written whole.
type word struct{ bits atomic.Uint64 }

func (w *word) load() float64 { return math.Float64frombits(w.bits.Load()) }

func (w *word) store(x float64) { w.bits.Store(math.Float64bits(x)) }

// Plain reports whether at time now the sum Busy + Fill (crowd + 1 + Later) + Mixed + outputs
// (Steps) is a lower bound of Total: the rank's booked work, the prefill for all that wait for it,
// and the steps of the outputs. crowd is the number of requests that decode there when all bookings
// are prefilled. If ok is false, only Total is valid. The terms are separate functions so that they
// are inlined in a loop over a thousand ranks.
func (r *Rank) Plain(now int64) (crowd float64, ok bool) {
	until := r.plain.Load()
	return float64(until & crowdBits), now <= until
}

// Told reports whether the bound equals Total for so many fresh tokens.
func (r *Rank) Told(fresh float64) bool {
	return math.Signbit(r.start.load()) && fresh <= r.reach.load()
}

// Busy is how long what is booked takes at least, in milliseconds.
func (r *Rank) Busy(now int64) float64 {
	return float64(max(r.drained.Load()-now, 0)) * (1.0 / millisecond)
}

// Fill is how long a prefill of fresh tokens takes at least that makes so many pairs.
func (r *Rank) Fill(fresh, pairs float64) float64 {
	return math.Abs(r.start.load()) + (fresh*r.token.load() + pairs*r.pair.load())
}

// Mixed is what decoding adds to the prefill's steps at least.
func (r *Rank) Mixed() float64 { return r.mixed.load() }

// Steps are how long a step of decoding takes with one more, and by how much that one delays
// the others in it.
func (r *Rank) Steps() (own, others float64) { return r.stepTime.load(), r.drag.load() }

// publish writes the quote. The lock is held.
func (r *Rank) publish() {
	l, n := r.learned.Load(), r.crowds()
	plain, foreign, mixing := l.until, int64(math.MinInt64), 0.0
	if floor := r.floor.Load(); floor >= 0 {
		plain = min(plain, r.drained.Load()-floor+r.grace.Load())
	}
	if n >= r.places() {
		plain = math.MinInt64
	}
	if p := r.peers.Load(); p != nil {
		foreign = p.Drained
	}
	if r.unseen.Load() != 0 {
		foreign = math.MaxInt64
	}
	k := float64(n)
	if k > 0 {
		mixing = l.Decode + l.Decoder*k
	}
	stepTime, drag := l.decoding(k)
	start, mixed := l.Step, mixing
	switch floor := r.floor.Load(); {
	case floor > 0 || ^floor > 0: // those share steps
		start, mixed = start*k/(k+1), 0
	case foreign == math.MinInt64 && r.space.Load()>>32 == 0:
		start = -start
	}
	if n > crowdBits {
		plain = math.MinInt64
	}
	r.start.store(start)
	r.mixed.store(mixed)
	r.mixing.store(mixing)
	r.step.store(l.Step)
	r.token.store(l.Token)
	r.pair.store(l.Pair)
	r.stepTime.store(stepTime)
	r.drag.store(drag)
	r.budget.store(l.budget)
	r.reach.store(min(l.budget, float64(r.left.Load())))
	r.foreign.Store(foreign)
	r.plain.Store(max(plain, math.MinInt64+2*crowdBits)&^crowdBits - (crowdBits + 1) | n&crowdBits) // earlier rather than later
}
