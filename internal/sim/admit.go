package sim

// A request is admitted when the KV cache has pages for its prompt, for its output and for
// a share of what the running requests may still generate. This is SGLang's rule. At most
// foresight ids are counted for each of them. The share is Conservativeness times a number
// that shrinks from initialShare to leastShare over shareSteps steps and that a retraction
// raises.
const (
	initialShare = 0.7
	leastShare   = 0.098
	shareSteps   = 600
	foresight    = 4096
)

// begin composes the next step and starts it, or leaves the engine idle.
func (c *Core) begin(at int64, out *Step) {
	c.busy = false
	var longest int64
	next := int64(forever) // when the first transfer or wait is over, if nothing else is to do
	for i := range c.ranks {
		k := &c.ranks[i]
		if k.still = c.hindrance.Still>>i&1 != 0; k.still {
			k.batch = Batch{}
			continue
		}
		c.compose(k, at, out)
		next = min(next, c.nextOfLegs(k))
		if k.batch.Prefill > 0 || k.batch.Decode > 0 {
			c.busy = true
			longest = max(longest, int64(c.opts.Cost.StepTime(k.batch)))
		}
	}
	c.storm = 0
	switch {
	case c.busy:
		// Time must pass, or a free cost model would never end.
		if c.hindrance.Drag > 0 {
			longest = int64(float64(longest) * c.hindrance.Drag)
		}
		c.start, c.end = at, at+max(1, longest)
	case next < forever:
		c.wake, c.wakeAt = true, max(next, at+1)
	}
}

// compose makes a rank's batch. Running requests come first: a decode takes one token of
// the budget. Then prompts under way go on in their order, and after them waiting requests
// are admitted. A step before which requests were retracted admits no request, unless the
// batch would be empty.
func (c *Core) compose(k *rank, at int64, out *Step) {
	c.arrive(k, at, out)
	retracted := c.secure(k, out)
	k.batch = Batch{Decode: len(k.decode) - k.stalled, Context: k.context}
	budget := min(c.opts.StepTokens-k.batch.Decode, c.opts.ChunkedPrefill)
	if c.hindrance.NoPrefill {
		budget = 0
	}
	for _, ref := range k.prefill {
		budget -= c.plan(k, ref, budget)
	}
	switch {
	case k.batch.Decode > 0:
		k.share = max(c.share(leastShare), k.share-c.share((initialShare-leastShare)/shareSteps))
	case k.running()+k.waiting.len() == 0:
		k.share = c.share(initialShare)
	}
	if retracted && k.batch.Prefill+k.batch.Decode > 0 {
		return
	}
	k.ahead, k.fresh = 0, 0
	if k.kv != nil && k.waiting.len() > 0 {
		k.ahead = c.ahead(k)
	}
	for budget > 0 && k.waiting.len() > 0 {
		ref := k.waiting.peek()
		r := &c.requests[ref]
		if !c.fits(k, ref) && !c.preempt(k, ref, out) {
			return
		}
		k.waiting.pop()
		k.queued -= int64(r.length())
		k.fresh += foreseen(r)
		if c.admit(k, ref, at, out) {
			budget -= c.plan(k, ref, budget)
		}
	}
}

// share returns a share of what running requests may still generate.
func (c *Core) share(x float64) float64 { return min(1, c.opts.Conservativeness*x) }

// foreseen is the number of ids that count as still to come of a request.
func foreseen(r *request) int { return min(int(r.max-r.generated), foresight) }

// ahead is the number of ids that those that run may still generate.
func (c *Core) ahead(k *rank) int {
	sum := 0
	for _, list := range [...][]Ref{k.decode, k.prefill, k.transfer} {
		for _, ref := range list {
			if r := &c.requests[ref]; !r.held {
				sum += foreseen(r)
			}
		}
	}
	return sum
}

// need is what a request needs to be admitted, compared with what is available.
type need struct {
	found []uint64 // the keys of the pages that it finds
	take  int      // pages to take
	later int      // tokens to be left after that
	free  int      // pages that can be taken, without those that it finds
	alone bool     // nothing else generates, and nothing need be left
}

func (n *need) met(pageSize int) bool {
	want := n.take * pageSize
	if !n.alone {
		want += n.later
	}
	return want <= n.free*pageSize
}

func (c *Core) need(k *rank, ref Ref) need {
	r, d := &c.requests[ref], &c.details[ref]
	tokens := r.length()
	keys := k.kv.admissible(d, tokens)
	found, idle := k.kv.lookup(keys)
	return need{
		found: keys[:found],
		take:  k.kv.pagesFor(tokens+c.draftsOf(d)) - found,
		later: foreseen(r) + k.fresh + int(k.share*float64(k.ahead)),
		free:  k.kv.available() - idle,
		alone: k.running() == k.stalled,
	}
}

// draftsOf returns for how many ids beyond its length a request needs pages when it is
// admitted. A decode leg decodes at once: without room for its drafts it would be retracted
// in its first step.
func (c *Core) draftsOf(d *details) int {
	if d.leg == LegDecode {
		return c.opts.drafts()
	}
	return 0
}

// fits reports whether a waiting request may be admitted. A request that is alone needs
// only its current pages; Prepare has checked that the cache can hold them.
func (c *Core) fits(k *rank, ref Ref) bool {
	if k.running() >= c.opts.MaxRunning {
		return false
	}
	if k.kv == nil {
		return true
	}
	n := c.need(k, ref)
	return n.met(k.kv.pageSize)
}

// admit moves a request from the queue into the batch, or reserves pages for KV that
// another engine computes. It reports whether there is a prompt to compute.
func (c *Core) admit(k *rank, ref Ref, at int64, out *Step) bool {
	r, d := &c.requests[ref], &c.details[ref]
	found := 0
	if k.kv != nil {
		found = k.kv.occupy(r, d, r.length()+c.draftsOf(d))
		c.counts.Cached += uint64(found)
	}
	again := d.admitted
	if !again {
		d.admitted, d.cached, d.stamps.QueueEnd = true, found, at
	}
	r.prefilled = int32(found)
	if d.leg == LegDecode && (!again || c.opts.Retraction != RetractRecompute) {
		c.reserve(k, ref, at, again, out)
		return false
	}
	if !again {
		d.stamps.PrefillStart = at
	}
	r.phase = phasePrefill
	k.prefill = append(k.prefill, ref)
	return true
}

// plan returns a prompt its share of a step.
func (c *Core) plan(k *rank, ref Ref, budget int) int {
	r, d := &c.requests[ref], &c.details[ref]
	d.chunk = min(r.length()-int(r.prefilled), budget)
	if d.chunk > 0 {
		from := int64(r.prefilled)
		to := from + int64(d.chunk)
		k.batch.Prefill += d.chunk
		k.batch.Chunks++
		k.batch.Attended += to*to - from*from
	}
	return d.chunk
}
