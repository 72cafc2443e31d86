package cost

import (
	"sync"
	"sync/atomic"
)

// learning is the fit to a rank's intervals.
type learning struct {
	// fitting is held during a fit, which takes a hundred times as long as a change of
	// the books.
	fitting sync.Mutex
	fit     *Fit
	taken   []interval // those that are being learned from
	filled  int64      // prefills among those that the fit has and learned has not
	brisk   brisk
	noted   []interval // that nothing was learned from yet, under the books' lock
	learned atomic.Pointer[learned]
}

// interval is an observation for the fit.
type interval struct {
	sort         Sort
	amount       Amount
	took, unsure float64
	ours         float64 // the share of the rank's requests that were this gateway's
	at           int64
}

// learned is what an estimate needs of the fit, in its first cache line.
type learned struct {
	Coefficients
	budget float64
	until  int64 // that it was measured counts as fresh; 0: too little was
	filled int64 // of what was seen, prefills
	at     int64 // when it was measured
	seen   int
	sureness
}

// lasts says until when it counts.
func (l learned) lasts() *learned {
	if l.until = 0; l.seen >= trusted {
		l.until = l.at + fresh
	}
	return &l
}

// Coefficients are what has been learned, and from how many observations.
func (r *Rank) Coefficients() (c Coefficients, seen int) {
	l := r.learned.Load()
	return l.Coefficients, l.seen
}

// Errors are the standard errors of the coefficients.
func (r *Rank) Errors() Coefficients {
	l := r.learned.Load()
	return Coefficients{
		Step: l.Error(Amount{Steps: 1}), Token: l.Error(Amount{Tokens: 1}), Pair: l.Error(Amount{Pairs: 1}),
		Decode: l.Error(Amount{Decodes: 1}), Decoder: l.Error(Amount{Decoded: 1}),
	}
}

// Error returns the standard error of the prefill in Estimate for the work, in
// milliseconds, as far as the fit knows it.
func (r *Rank) Error(w Work) float64 {
	if w.Part == DecodePart {
		return 0
	}
	l := r.learned.Load()
	return l.Error(Prefill(float64(w.New), float64(w.Length), l.budget))
}

// Cold reports whether too little was measured to rely on what is predicted of it.
func (r *Rank) Cold() bool { return r.learned.Load().seen < trusted }

// decoded notes the time between a request's first token and its end, in which n more
// came.
func (r *Rank) decoded(b *Booking, now int64, n int) {
	if n < fewest {
		return
	}
	a := r.done.Minus(b.done)
	// All that was generated since its first token came, which is counted after that.
	a.Decodes, a.Decoded = float64(n), float64(r.tokens.Load()-b.all-1)
	// Prompts that are prefilled at either end are in no count.
	l := r.learned.Load()
	under := 0.0
	if len(r.queue) > 0 {
		under = min(float64(now-max(r.queue[0].at, r.last))/millisecond, r.remaining(r.queue[0]))
	}
	r.note(Decoding, a, float64(now-b.first)/millisecond, under+0.5*(l.Decode+l.Decoder*float64(r.decoders.Load())), now)
}

// fewest is how many tokens make an interval of decoding.
const fewest = 4

// note keeps an interval for learn. More than the fit remembers cannot have come while
// one was fitted, but where nobody was let run.
func (r *Rank) note(sort Sort, a Amount, took, unsure float64, at int64) {
	if r.common == nil && len(r.noted) < kept {
		own := float64(max(r.inFlight.Load(), 1))
		r.noted = append(r.noted, interval{sort, a, took, unsure, own / max(float64(r.crowds()), own), at})
	}
}

// learn learns from the recorded intervals. It does not hold the lock of the books, for
// which a booking would wait. Intervals recorded while another goroutine learns are
// left for the next event.
func (r *Rank) learn(now int64) {
	if !r.fitting.TryLock() {
		return
	}
	defer r.fitting.Unlock()
	r.mu.Lock()
	r.taken, r.noted = r.noted, r.taken[:0]
	r.mu.Unlock()
	r.observe(now)
}

// pace is for how long coefficients last of a rank whose intervals are brisk, in nanoseconds.
const pace = 5e6

// brisk tells that as many intervals as the fit keeps came at more than one a millisecond. Each
// then changes the coefficients for less than the time of a request to another engine.
type brisk struct {
	now   bool
	since int64 // when the latest of them were counted
	n     int   // since then
}

// came counts intervals, the latest of which ended at a time.
func (b *brisk) came(n int, at int64) {
	if b.n += n; b.n >= kept {
		b.now = at-b.since < int64(b.n)*millisecond
		b.since, b.n = at, 0
	}
}

// observe learns from the intervals that were taken. No lock but that of the fit is held.
func (r *Rank) observe(now int64) {
	if len(r.taken) == 0 {
		return
	}
	latest := int64(0)
	for i := range r.taken {
		o := &r.taken[i]
		r.freshen(o.at)
		if r.fit.add(o.sort, o.amount, o.took, o.unsure, o.ours); !r.brisk.now {
			r.fit.update()
		}
		if o.sort == Prefilling {
			r.filled++
		}
		latest = o.at
	}
	old := r.learned.Load()
	r.brisk.came(len(r.taken), latest)
	if age := latest - old.at; r.brisk.now && age >= 0 && age < pace {
		return
	}
	r.fit.update()
	l := learned{Coefficients: r.fit.Coefficients(), sureness: r.fit.sureness, seen: r.fit.seen, filled: old.filled + r.filled, budget: old.budget, at: latest}
	r.filled = 0
	r.model.fill(&l)
	r.learned.Store(l.lasts())
	r.model.measured(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.schedule(now)
}

// freshen makes the fit forget observations from before a long time without any.
// Otherwise the one request that a rank gets when its estimate has drifted back to the
// median would count little against the old slow ones, and the rank would get no
// further requests.
func (r *Rank) freshen(now int64) {
	if l := r.learned.Load(); now-l.at > fresh {
		r.fit.restart(l.drifted(now, r.model.median.Load()))
	}
}
