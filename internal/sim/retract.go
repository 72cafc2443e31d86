package sim

import (
	"slices"

	"weir/internal/infer"
)

// Retract sends up to n generating requests of each rank back to the queue before the next
// step, as if their pages were needed. The generated ids stay: they count as prompt when
// the request is admitted again. It does nothing to an idle engine.
func (c *Core) Retract(n int) {
	if c.busy {
		c.storm = max(c.storm, n)
	}
}

// secure takes the pages that the next step needs, by retraction if necessary, and reports
// whether it retracted a request.
func (c *Core) secure(k *rank, out *Step) bool {
	before := len(out.Retracted)
	if c.storm > 0 {
		for _, victim := range c.victims(k, c.storm) {
			c.retract(k, victim, out)
		}
	}
	if len(k.short) > 0 {
		need := 0
		for _, ref := range k.short {
			need += c.missing(k, ref)
		}
		for need > k.kv.available() {
			// Those that need pages generate, so there is one.
			victim, _ := c.victim(k)
			need -= c.missing(k, victim)
			c.retract(k, victim, out)
		}
		for _, ref := range k.short {
			if r, d := &c.requests[ref], &c.details[ref]; r.phase == phaseDecode {
				k.kv.enlarge(r, d, len(d.table)+c.missing(k, ref))
			}
		}
		k.short = k.short[:0]
	}
	if len(out.Retracted) == before {
		return false
	}
	k.decode = c.keep(k.decode, phaseDecode)
	c.reconsider(k)
	return true
}

// keep returns the requests of a list that are in a phase.
func (c *Core) keep(list []Ref, p phase) []Ref {
	kept := list[:0]
	for _, ref := range list {
		if c.requests[ref].phase == p {
			kept = append(kept, ref)
		}
	}
	return kept
}

// missing is the number of pages that a request needs before the next step.
func (c *Core) missing(k *rank, ref Ref) int {
	r := &c.requests[ref]
	if r.phase != phaseDecode || r.held {
		return 0
	}
	return max(0, k.kv.pagesFor(r.length()+c.opts.drafts())-len(c.details[ref].table))
}

// victim returns the request to retract. It prefers the lowest priority, then the fewest
// generated ids (the least work is repeated for the most pages), then the longest prompt,
// then the latest arrival. Stalled requests are not retracted.
func (c *Core) victim(k *rank) (Ref, bool) {
	var best Ref
	found := false
	for _, ref := range k.decode {
		if r := &c.requests[ref]; r.phase == phaseDecode && !r.held && (!found || !c.sooner(best, ref)) {
			best, found = ref, true
		}
	}
	return best, found
}

// victims gives up to n requests to retract, in the order of victim.
func (c *Core) victims(k *rank, n int) []Ref {
	var list []Ref
	for _, ref := range slices.Backward(k.decode) {
		if !c.requests[ref].held {
			list = append(list, ref)
		}
	}
	slices.SortStableFunc(list, func(a, b Ref) int {
		switch {
		case c.sooner(a, b):
			return -1
		case c.sooner(b, a):
			return 1
		}
		return 0
	})
	return list[:min(n, len(list))]
}

// sooner reports whether a must be retracted before b.
func (c *Core) sooner(a, b Ref) bool {
	ra, rb := &c.requests[a], &c.requests[b]
	if pa, pb := c.details[a].priority, c.details[b].priority; pa != pb {
		return pa < pb
	}
	if ra.generated != rb.generated {
		return ra.generated < rb.generated
	}
	return ra.prompt > rb.prompt
}

// retract sends a request to the front of the queue.
func (c *Core) retract(k *rank, ref Ref, out *Step) {
	r, d := &c.requests[ref], &c.details[ref]
	if k.kv != nil {
		k.kv.leave(d)
		r.mark, r.room = never, never
	}
	k.context -= int64(r.length())
	k.ahead -= foreseen(r)
	k.queued += int64(r.length())
	k.waiting.pushFront(ref, d.priority)
	r.phase = phaseWaiting
	d.offered, d.ready = false, forever
	if d.leg == LegDecode && c.opts.Retraction == RetractRefuse && r.ended == notEnded {
		d.failure = infer.Errorf(infer.CodeUnavailable, "the request was sent back for want of KV cache, and its KV is not kept; try again")
		r.ended = endBroken
		c.ended++
	}
	d.retractions++
	c.counts.Retracted++
	out.Retracted = append(out.Retracted, ref)
}

// retractSteps is how many ids each running request should be able to get
// before the next retraction.
const retractSteps = 20

// reconsider raises the share that admission reserves, after a retraction, to
// what lets the requests that go on get some ids each.
func (c *Core) reconsider(k *rank) {
	generated, limit := 0, 0
	for _, ref := range k.decode {
		r := &c.requests[ref]
		generated += int(r.generated) + retractSteps
		limit += min(int(r.max), foresight)
	}
	k.share = min(1, max(k.share, float64(generated)/float64(limit+1)))
}
