package cost

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// Limits are what is known of how much a rank takes at once.
type Limits struct {
	// Running is the number of requests that it runs at once. If it is 0 or less, it is
	// unknown and learned from when requests begin to wait.
	Running int
	// Strict limits the rank to Running requests, as set by an operator. An engine that
	// reports its own number gets more, so that they are there when others end: a
	// sixteenth, or as many as end in two steps.
	Strict bool
	// Budget is set if the budget of its steps is its own, so that it cannot compute more
	// prompts at once than the books say.
	Budget bool
	// Ranks are how many steps it computes side by side, by data parallelism; 0 is 1.
	Ranks int
}

// capacity is how much a rank takes, and what of that it has shown.
type capacity struct {
	limits  atomic.Pointer[Limits] // nil: it takes everything
	ran     atomic.Int64           // requests that it ran at once while others waited; 0: none did
	claimed atomic.Uint64          // float64: ms of those that wait for it elsewhere
	lives   atomic.Uint64          // float64: tokens that a request gets, the first among them; 0: none was seen
	lasting atomic.Uint64          // float64: ms from a request's first token to its end

	// Under the rank's lock.
	late   uint8 // of the latest first tokens, those that nobody explains
	lateAt int64 // when the latest of them was
}

// SetLimits says how much the rank takes. A rank that was given none takes everything.
func (r *Rank) SetLimits(l Limits) {
	r.capacity.limits.Store(&l)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.publish()
}

// places is the number of requests that the rank runs at once: the number that it reports, or
// else the number that it ran while others waited. If the size of its cache is unknown, waiting
// requests may wait for room in it, and the next request may need little.
func (r *Rank) places() int64 {
	switch l := r.capacity.limits.Load(); {
	case l == nil:
	case l.Running > 0:
		return int64(l.Running)
	default:
		if n := r.capacity.ran.Load(); n > 0 && r.kv.Load() > 0 {
			return n
		}
	}
	return math.MaxInt32
}

// ahead is the number of steps whose prompts are sent to a rank in advance: the current step
// and the next one. The rank then always has work, whatever the network delay, and all other
// requests can still go elsewhere.
const ahead = 2

// Fits reports whether the rank has room for a request of n generations at time now. A rank
// without requests of this gateway always has room, so that no request waits for ever.
func (r *Rank) Fits(now int64, n int) bool {
	if r.inFlight.Load() == 0 {
		return true
	}
	limits := r.capacity.limits.Load()
	if limits == nil {
		return true
	}
	if most := r.most(limits); most > 0 {
		if limits.Strict && limits.Running > 0 {
			if r.crowds()+r.Prefills()+int64(n) > most {
				return false
			}
		} else if r.crowds() >= most {
			return false
		}
	}
	if r.kv.Load() > 0 && r.left.Load() <= 0 {
		return false
	}
	return !limits.Budget || r.ahead(now) < r.bound(limits)
}

// most is how many requests may be on the rank; 0 where nobody knows.
func (r *Rank) most(l *Limits) int64 {
	switch {
	case l.Running > 0 && l.Strict:
		return int64(l.Running)
	case l.Running > 0:
		return int64(l.Running) + r.spare(int64(l.Running))
	}
	if n := r.capacity.ran.Load(); n > 0 {
		// Enough more to see that it runs more.
		return n + max(n/4, 2)
	}
	return 0
}

// spare returns the number of requests sent to an engine in addition to those that it runs,
// so that they are there when others end. A request that ends in a step is replaced in the
// next but one, when its replacement has arrived. At most all running requests can end.
func (r *Rank) spare(running int64) int64 {
	most := max(running/16, 1)
	if lives := math.Float64frombits(r.capacity.lives.Load()); lives > 0 {
		most = max(most, int64(min(ahead*float64(running)/lives, float64(running))))
	}
	return most
}

// lived notes that a request has ended that got so many tokens. The lock is held.
func (r *Rank) lived(tokens int) {
	n, mean := float64(max(tokens, 1)), math.Float64frombits(r.capacity.lives.Load())
	if mean == 0 {
		mean = n
	}
	r.capacity.lives.Store(math.Float64bits(mean + lastingShare*(n-mean)))
}

// ahead is how long the rank computes what this gateway and its peers have given it, in
// milliseconds.
func (r *Rank) ahead(now int64) float64 {
	ms := r.Booked(now)
	if p := r.peers.Load(); p != nil {
		ms += max(float64(p.Drained-now)/millisecond, 0)
	}
	return ms
}

// bound is what the rank is given ahead, in milliseconds: steps that are full of prompts.
func (r *Rank) bound(limits *Limits) float64 {
	l := r.learned.Load()
	full := Prefill(l.budget, l.budget, l.budget)
	return float64(ahead*max(limits.Ranks, 1)) * (l.Of(full) + l.mixed(full, float64(r.decoders.Load())))
}

// Turn returns the time until one of the rank's requests ends, in milliseconds, when the
// most allowed are running. A waiting request delays the others that wait by that time. It
// is 0 if the number of requests is not the limit that is reached.
func (r *Rank) Turn() float64 {
	limits := r.capacity.limits.Load()
	if limits == nil {
		return 0
	}
	most := r.most(limits)
	if most <= 0 || r.crowds() < most {
		return 0
	}
	run := int64(limits.Running) // the places; the rest waits for them
	if run <= 0 {
		run = r.capacity.ran.Load()
	}
	return math.Float64frombits(r.lasting.Load()) / float64(max(run, 1))
}

// Place returns the time that a request handed over now may wait on the rank until it runs, in
// milliseconds. It is 0 if the request runs at once, or if the number of running requests is
// unknown. Ends occur at random, so the time is one standard deviation above the mean.
func (r *Rank) Place() float64 {
	limits := r.capacity.limits.Load()
	if limits == nil || limits.Running <= 0 {
		return 0
	}
	before := float64(max(r.crowds()+1-int64(limits.Running), 0))
	return (before + math.Sqrt(before)) / float64(limits.Running) * math.Float64frombits(r.lasting.Load())
}

// Frees returns the predicted time at which the rank has computed enough of its prompts to
// have room. It is 0 if that cannot be predicted, or if prompts are not the limit that is
// reached.
func (r *Rank) Frees(now int64) int64 {
	limits := r.capacity.limits.Load()
	if limits == nil || !limits.Budget {
		return 0
	}
	bound := int64(r.bound(limits) * millisecond)
	if floor := r.floor.Load(); max(floor, ^floor) >= bound {
		return 0
	}
	at := r.drained.Load() - bound + 1
	if p := r.peers.Load(); p != nil && p.Drained > now {
		at = max(at+(p.Drained-now), now)
	}
	if at <= now {
		return 0 // that is not what it lacks
	}
	return at
}

// Learned is how many requests the rank was seen to run at once while others waited there; 0
// where that was not seen.
func (r *Rank) Learned() int { return int(r.capacity.ran.Load()) }

// Claim reports that requests that wait elsewhere for the rank will keep it for ms
// milliseconds more, or less. It is called by one goroutine at a time.
func (r *Rank) Claim(ms float64) {
	c := math.Float64frombits(r.capacity.claimed.Load()) + ms
	if c < 1e-6 {
		c = 0 // what rounding leaves
	}
	r.capacity.claimed.Store(math.Float64bits(c))
}

// Claimed returns the time for which requests that wait elsewhere will keep the rank, in
// milliseconds. Estimates do not include it.
func (r *Rank) Claimed() float64 { return math.Float64frombits(r.capacity.claimed.Load()) }

const (
	// lateFew of the latest eight first tokens must be late to say that requests wait at the
	// rank.
	lateFew = 3
	// lateLeast is what a first token must at least be late, in milliseconds.
	lateLeast = 50
	// learnedLasts is how long a limit is believed that nothing confirms, in nanoseconds.
	learnedLasts = 60e9
)

// see learns from a request's first token how many requests the rank runs at once, where it
// does not say. A request waits there when its first token comes later than all that the
// books explain, while others run. The limit is how many were seen to run by then. It rises
// at once when more run, and falls when requests wait while fewer do. The lock is held, and
// the request counts as running.
func (r *Rank) see(b *Booking, now int64) {
	limits := r.capacity.limits.Load()
	if limits == nil || limits.Running > 0 || b.work.Unseen || b.work.Part == PrefillPart {
		return
	}
	m := &r.capacity
	running := r.decoders.Load()
	known := m.ran.Load()
	if known > 0 && now-m.lateAt > learnedLasts {
		known, m.late = 0, 0
	}
	l := r.learned.Load()
	explained := b.predicted.TTFT() - b.predicted.Late
	if b.place > 0 && b.predicted.Room == b.place {
		explained -= b.place // which is what this finds, and has to go on finding
	}
	unsure := max(2*l.Error(Prefill(b.left, float64(b.work.Length), l.budget)), 2*b.predicted.StepTime, explained/2, lateLeast)
	m.late <<= 1
	if running > 1 && !b.predicted.Cold && float64(now-b.at)/millisecond > explained+unsure {
		m.late |= 1
		m.lateAt = now
		switch {
		case known == 0 && bits.OnesCount8(m.late) >= lateFew:
			known = running
		case running < known:
			known -= (known - running + 7) / 8
		}
	}
	if known > 0 {
		known = max(known, running)
	}
	m.ran.Store(known)
}
