package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"weir/internal/infer"
)

// Leg is a request's part if prefill and decode run on two engines.
//
// The core knows nothing about the other engine. The code that joins two legs (a wire, or
// an offline driver by means of a Rendezvous) reads Step.Reserved and Step.Kept, and calls
// Meet, Offer, Release and Break.
type Leg uint8

// The legs.
const (
	Whole      Leg = iota // the request is served here alone
	LegPrefill            // its KV is kept when it has its ids, until it was fetched
	LegDecode             // the KV of its prompt comes from a prefill leg
)

// Stage is where a pair came to nothing.
type Stage uint8

// The stages.
const (
	StageNone      Stage = iota
	StageBootstrap       // before the leg was queued, or admitted
	StageTransfer        // while its prompt was computed, or its KV awaited, under way, or kept
)

func stageOf(p phase) Stage {
	switch p {
	case phaseAwait, phaseWaiting:
		return StageBootstrap
	}
	return StageTransfer
}

// Retraction selects how a decode leg continues that was sent back to the queue and is
// admitted again.
type Retraction uint8

// The retractions.
const (
	RetractRecompute   Retraction = iota // the part of the prompt that is not in its cache is computed here, as in vLLM
	RetractRestore                       // its KV was copied to host memory and is there again, SGLang's cpu_tensor
	RetractRebootstrap                   // a prefill engine computes it again, and it is transferred again
	RetractRefuse                        // a retraction ends it, SGLang's none
)

var retractionNames = [...]string{"recompute", "restore", "rebootstrap", "refuse"}

// String returns the retraction's word.
func (r Retraction) String() string { return retractionNames[r] }

// ParseRetraction is the inverse of String.
func ParseRetraction(word string) (Retraction, error) {
	for r, name := range retractionNames {
		if name == word {
			return Retraction(r), nil
		}
	}
	return 0, fmt.Errorf("no retraction %q; they are recompute, restore, rebootstrap and refuse", word)
}

// Transfer is the link over which the KV of a prompt reaches a decode engine.
// Its zero value takes no time.
type Transfer struct {
	// BytesPerToken is the size of a token's KV, over all layers.
	BytesPerToken int
	// Bandwidth is in bytes per second; 0 is no bound. The transfers of a rank
	// share it one after another.
	Bandwidth float64
	// Latency is added to each transfer.
	Latency time.Duration
}

// Pages is what becomes of a decode leg's pages if it is aborted before it has its KV.
type Pages uint8

// The rules.
const (
	PagesFreed       Pages = iota // the engine reads the KV itself, and stops
	PagesOverwritten              // the prefill engine may write into them, and others have them at once
	PagesHeld                     // they are kept until what is on its way has come
	PagesOwed                     // they are kept until Written, without a bound
)

// forever is a time that never comes.
const forever = math.MaxInt64

// await keeps a leg out of the queue.
func (c *Core) await(k *rank, ref Ref, now int64) {
	r, d := &c.requests[ref], &c.details[ref]
	r.phase = phaseAwait
	d.stamps.BootstrapStart = now
	k.await = append(k.await, ref)
	c.bound(k, d, now, d.patience)
}

// Meet queues a leg that awaited its partner. For others it does nothing.
func (c *Core) Meet(now int64, ref Ref) {
	r, d := &c.requests[ref], &c.details[ref]
	if r.phase != phaseAwait || r.ended != notEnded {
		return
	}
	k := &c.ranks[r.rank]
	k.await = without(k.await, ref)
	r.phase = phaseWaiting
	d.until = forever
	d.stamps.BootstrapEnd, d.stamps.QueueStart = now, now
	k.waiting.push(ref, d.priority)
	k.queued += int64(r.length())
	c.rouse(now)
}

// without returns a list without one of its refs.
func without(list []Ref, ref Ref) []Ref {
	if i := slices.Index(list, ref); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// reserve notes that a decode leg has its pages.
func (c *Core) reserve(k *rank, ref Ref, at int64, again bool, out *Step) {
	r, d := &c.requests[ref], &c.details[ref]
	r.phase = phaseTransfer
	k.transfer = append(k.transfer, ref)
	if again && c.opts.Retraction == RetractRestore {
		r.prefilled, d.ready = int32(r.length()), at
		return
	}
	out.Reserved = append(out.Reserved, Reserved{Ref: ref, Tokens: r.length() - int(r.prefilled), Again: again, DPRank: int(r.rank)})
	c.bound(k, d, at, d.patience)
	if d.offered {
		c.transfer(k, r, d, at)
	}
}

// Offer describes KV that is ready to be fetched.
type Offer struct {
	Cached  int  // prompt tokens that the prefill engine found in its cache
	Spoiled bool // it is not of the leg's prompt any more, which nobody noticed
}

// Offer reports that the KV of a decode leg's prompt is ready. It is transferred when the
// leg has its pages.
func (c *Core) Offer(now int64, ref Ref, o Offer) {
	r, d := &c.requests[ref], &c.details[ref]
	if r.phase == phaseFree || d.leg != LegDecode || d.offered || r.ended != notEnded {
		return
	}
	d.offered = true
	if o.Spoiled {
		d.spoiled, r.special = true, true
	}
	d.cached = max(d.cached, o.Cached)
	if r.phase == phaseTransfer && d.ready == forever {
		c.transfer(&c.ranks[r.rank], r, d, now)
		c.rouse(now)
	}
}

// transfer puts a leg's KV on the link, where it follows those before it.
func (c *Core) transfer(k *rank, r *request, d *details, at int64) {
	t, tokens := &c.opts.Transfer, r.length()-int(r.prefilled)
	begin := max(at, k.link)
	k.link = begin
	if t.Bandwidth > 0 {
		k.link += int64(float64(tokens) * float64(t.BytesPerToken) / t.Bandwidth * 1e9)
	}
	d.ready = k.link + int64(t.Latency)
	if d.stamps.TransferStart == 0 {
		d.stamps.TransferStart, d.stamps.TransferEnd = begin, d.ready
	}
	c.counts.Transferred += uint64(tokens)
}

// arrive lets legs decode when their KV has arrived.
func (c *Core) arrive(k *rank, at int64, out *Step) {
	kept := k.transfer[:0]
	for _, ref := range k.transfer {
		r, d := &c.requests[ref], &c.details[ref]
		if d.ready > at {
			kept = append(kept, ref)
			continue
		}
		if k.kv != nil {
			k.kv.enter(d, r.length())
		}
		if d.offered {
			out.Fetched = append(out.Fetched, ref)
		}
		d.until = forever
		if d.stamps.WaitingToRunning == 0 {
			d.stamps.WaitingToRunning = at
		}
		c.join(k, ref)
	}
	k.transfer = kept
}

// keepKV keeps the KV of a prefill leg that has its ids.
func (c *Core) keepKV(k *rank, ref Ref, reason infer.Reason, out *Step) {
	r, d := &c.requests[ref], &c.details[ref]
	if r.phase == phaseDecode {
		k.context -= int64(r.length())
	}
	r.phase, d.reason = phaseKept, reason
	k.kept = append(k.kept, ref)
	c.bound(k, d, out.End, d.lease)
	one := Kept{Ref: ref, Reason: reason, Tokens: r.length() - 1, Cached: d.cached, DPRank: int(r.rank)}
	if k.kv != nil {
		one.Pages = make([]int32, len(d.table))
		for i, p := range d.table {
			one.Pages[i] = int32(p)
		}
	}
	out.Kept = append(out.Kept, one)
}

// Release frees the KV that was kept for a prefill leg, which ends the leg. It returns
// false, and does nothing, if no KV is kept.
func (c *Core) Release(now int64, ref Ref) bool { return c.letGo(now, ref, endFetched) }

// Expire ends the lease of the KV that is kept of a prefill leg; likewise.
func (c *Core) Expire(now int64, ref Ref) bool { return c.letGo(now, ref, endExpired) }

// letGo ends a prefill leg whose KV is kept. It returns false if none is kept.
func (c *Core) letGo(now int64, ref Ref, how ending) bool {
	if r := &c.requests[ref]; r.phase != phaseKept || r.ended != notEnded {
		return false
	}
	c.conclude(now, ref, how)
	return true
}

// Renew makes the lease of a prefill leg last for at least that long from now on.
func (c *Core) Renew(now int64, ref Ref, lease time.Duration) {
	if r, d := &c.requests[ref], &c.details[ref]; r.phase == phaseKept && d.until < forever {
		d.until = max(d.until, now+int64(lease))
	}
}

// Break ends a leg because its pair came to nothing.
func (c *Core) Break(now int64, ref Ref, why *infer.Error) {
	if r := &c.requests[ref]; r.phase != phaseFree && r.ended == notEnded {
		c.details[ref].failure = why
		c.conclude(now, ref, endBroken)
	}
}

// Compute has the prompt of a decode leg computed here, as its KV does not come.
func (c *Core) Compute(now int64, ref Ref) {
	r, d := &c.requests[ref], &c.details[ref]
	if r.phase == phaseFree || d.leg != LegDecode || d.offered || r.ended != notEnded {
		return
	}
	c.Meet(now, ref)
	d.leg, d.until = Whole, forever
	if r.phase == phaseTransfer && d.ready == forever {
		k := &c.ranks[r.rank]
		k.transfer = without(k.transfer, ref)
		r.phase, d.chunk = phasePrefill, 0
		k.prefill = append(k.prefill, ref)
		d.stamps.PrefillStart = now
		c.rouse(now)
	}
}

// bound sets the end of a wait, or of a lease.
func (c *Core) bound(k *rank, d *details, now int64, long time.Duration) {
	d.until = forever
	if long > 0 {
		d.until = now + int64(long)
		k.soon = min(k.soon, d.until)
	}
}

// expire ends waits and leases that have timed out.
func (c *Core) expire(k *rank, at int64) {
	if at < k.soon {
		return
	}
	soon := int64(forever)
	for _, list := range [...][]Ref{k.await, k.transfer, k.kept} {
		for _, ref := range list {
			r, d := &c.requests[ref], &c.details[ref]
			switch {
			case r.ended != notEnded:
			case d.until > at:
				soon = min(soon, d.until)
			case r.phase == phaseKept:
				r.ended = endExpired
				c.ended++
			default:
				state := "WaitingForInput"
				if r.phase == phaseAwait {
					state = "Bootstrapping"
				}
				d.failure = infer.Errorf(infer.CodeEngine, "timed out after %.1fs in KVPoll.%s", d.patience.Seconds(), state)
				r.ended = endBroken
				c.ended++
			}
		}
	}
	for i := range k.owed {
		soon = min(soon, k.owed[i].until)
	}
	k.soon = soon
}

// nextOfLegs returns the next time at which a leg of the rank needs attention if no other
// event comes first.
func (c *Core) nextOfLegs(k *rank) int64 {
	next := k.soon
	for _, ref := range k.transfer {
		next = min(next, c.details[ref].ready)
	}
	return next
}

// owed are the pages of a decode leg that was aborted before its KV came: whoever writes into
// them may do so yet, so that nobody else may have them.
type owed struct {
	name  int
	table []pageID
	until int64 // when its KV has come; forever: when it is Written
}

// leavePages decides about the pages of a decode leg that was aborted before it had its KV.
func (c *Core) leavePages(k *rank, r *request, d *details, out *Step) {
	coming := d.offered && d.ready > out.End
	switch {
	case d.pages == PagesOverwritten && coming:
		c.counts.Overwritten++
	case d.pages == PagesHeld && coming:
		c.owe(k, d, d.ready)
		k.soon = min(k.soon, d.ready)
	case d.pages == PagesOwed && !d.offered:
		out.Done[len(out.Done)-1].Owed = c.owe(k, d, forever)
	}
}

// owe keeps the pages of a leg that ends, and returns the name by which Written frees them.
func (c *Core) owe(k *rank, d *details, until int64) int {
	c.lastOwed++
	k.owed = append(k.owed, owed{c.lastOwed, slices.Clone(d.table), until})
	d.table, d.keyed = d.table[:0], 0
	return c.lastOwed
}

// settle frees the pages whose KV has come, and reports whether there were any.
func (c *Core) settle(k *rank, at int64) bool {
	n := len(k.owed)
	k.owed = slices.DeleteFunc(k.owed, func(o owed) bool {
		if o.until > at {
			return false
		}
		if k.kv != nil {
			k.kv.release(o.table)
		}
		return true
	})
	return len(k.owed) < n
}

// Overwrite reports that KV was written into pages of a decode leg that had ended and did not
// keep them.
func (c *Core) Overwrite() { c.counts.Overwritten++ }

// Written reports that the KV has been written for which a leg's pages were kept beyond its
// end (Done.Owed). The pages become free.
func (c *Core) Written(now int64, name int) {
	for i := range c.ranks {
		k := &c.ranks[i]
		if at := slices.IndexFunc(k.owed, func(o owed) bool { return o.name == name }); at >= 0 {
			if k.kv != nil {
				k.kv.release(k.owed[at].table)
			}
			k.owed = slices.Delete(k.owed, at, at+1)
			c.rouse(now)
		}
	}
}

// garbage returns an id that does not follow from the ids before it: the output of a model
// that reads the KV of another text.
func (c *Core) garbage(r *request) uint32 {
	other := r.stream
	c.opts.Words.Push(&other, c.opts.Words.Next(&other))
	return c.opts.Words.Next(&other)
}
