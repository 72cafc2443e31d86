package cost

import "math"

// Booking is a request that was handed to a rank. First is called once, and End once
// and last; both take the rank's lock briefly. Then they learn from the intervals that
// have ended, during which only others that learn about the rank wait.
type Booking struct {
	rank      *Rank
	work      Work
	at        int64
	stepped   int64   // when the step began that the engine was in by then
	left      float64 // of the prompt, to prefill
	predicted Estimate
	place     float64 // of the wait that was predicted, that for a place

	first int64
	done  Amount // on the rank by then
	all   int64  // generated on the rank by then
	ended bool
	// presumed is set if first is when it was predicted to be.
	presumed bool
	number   uint64 // for other gateways
}

// Book gives the work to the rank at time now.
func (r *Rank) Book(now int64, w Work) *Booking {
	w.Unseen = w.Unseen && w.Part != PrefillPart // whose end is that its prompt is computed
	b := &Booking{rank: r, work: w, at: now, stepped: r.stepped.Load(), left: float64(max(w.New, 1)), predicted: r.Estimate(now, w), place: r.place()}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settle(now)
	if w.Part != DecodePart {
		r.push(b)
		r.pending.Add(int64(w.New))
	}
	if w.Unseen {
		r.hidden++
	}
	r.model.came(now)
	r.counts(b, 1)
	if w.Part == PrefillPart {
		r.unfilled.Add(1)
	}
	r.prompts.Add(int64(w.Length))
	r.computed.Add(int64(w.New))
	if r.common != nil {
		b.number = requests.Add(1)
		r.enter(Entry{Kind: Booked, Request: b.number, At: now, Work: w})
	}
	r.schedule(now)
	return b
}

// counts adds n to the requests on the rank, of the booking's sort.
func (r *Rank) counts(b *Booking, n int32) {
	r.inFlight.Add(int64(n))
	if b.work.Part == PrefillPart {
		r.prefills.Add(n)
	} else {
		r.model.own.Add(int64(n))
	}
}

// Rank is the rank that the work was given to.
func (b *Booking) Rank() *Rank { return b.rank }

// Predicted is what the work was estimated to cost when it was booked.
func (b *Booking) Predicted() Estimate { return b.predicted }

// First reports that the request's first token arrived at time now. cached is the
// number of cached prompt tokens that the engine reported, or -1. began is the time at
// which the engine reported that prefill began, or 0.
func (b *Booking) First(now int64, cached int, began int64) {
	b.begins(now, cached, began)
	b.rank.learn(now)
}

func (b *Booking) begins(now int64, cached int, began int64) {
	r := b.rank
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.first != 0 || b.ended {
		return
	}
	b.first = max(now, 1)
	r.enter(Entry{Kind: Began, Request: b.number, At: now, Cached: cached, Start: began})
	if b.sane(now) {
		r.settle(now)
	}
	r.computes(b)
	if b.work.Part != PrefillPart {
		r.decoders.Add(1)
	}
	if !b.sane(now) {
		return
	}
	b.all = r.tokens.Load()
	if b.work.Part == DecodePart {
		b.done = r.done // its prompt was no work of the rank's
		r.schedule(now)
		return
	}
	r.see(b, now)
	if cached >= 0 {
		b.left = max(b.left+float64(b.work.Length-b.work.New-cached), 1)
	}
	if began > 0 && began <= now {
		r.waited(now, b, began)
	}
	r.join(b, now, began, r.decoders.Load())
	r.schedule(now)
}

// End reports that the request ended at time now, for whatever reason. tokens is the
// number of its tokens that were reported to the rank, from the first token on.
func (b *Booking) End(now int64, tokens int) {
	b.ends(now, tokens)
	b.rank.learn(now)
}

func (b *Booking) ends(now int64, tokens int) {
	r := b.rank
	r.mu.Lock()
	defer r.mu.Unlock()
	if b.ended {
		return
	}
	b.ended = true
	r.enter(Entry{Kind: Ended, Request: b.number, At: now, Tokens: tokens})
	r.counts(b, -1)
	r.prompts.Add(-int64(b.work.Length))
	r.ended.Add(int64(tokens))
	if b.sane(now) && b.sane(b.first) {
		r.settle(now) // by which it may turn out to have begun to decode
	}
	if b.work.Unseen {
		r.hidden--
	}
	switch {
	case b.first == 0:
		if b.work.Part != DecodePart {
			r.lost += r.learned.Load().Of(Prefill(b.left, float64(b.work.Length), DefaultBudget))
		}
		r.computes(b)
	case b.work.Part == PrefillPart: // it has decoded nothing
	default:
		tells := b.sane(now) && b.sane(b.first) && b.first > r.stood
		if tells && !b.presumed {
			r.decoded(b, now, tokens-1)
			r.lived(tokens)
		}
		r.decoders.Add(-1)
		if tells {
			ms, mean := float64(now-b.first)/millisecond, math.Float64frombits(r.lasting.Load())
			if mean == 0 {
				mean = ms
			}
			r.lasting.Store(math.Float64bits(mean + lastingShare*(ms-mean)))
		}
	}
	r.schedule(now)
}

// sane reports whether a time is plausible for the request, or the clock has jumped; 0
// is an event that has not happened.
func (b *Booking) sane(t int64) bool {
	return t == 0 || t >= b.at && t-b.at < longest*millisecond
}

// lastingShare is how much the latest request counts for how long one lasts.
const lastingShare = 0.1
