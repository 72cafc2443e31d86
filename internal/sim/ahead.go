package sim

// Resident is how many tokens of a request's prompt the rank's cache has now.
func (c *Core) Resident(rank int, r *Request) int {
	k := &c.ranks[rank]
	if k.kv == nil {
		return 0
	}
	keys := r.keys[:min(len(r.keys), (r.prompt-1)/k.kv.pageSize)]
	found, _ := k.kv.lookup(keys)
	return found * k.kv.pageSize
}

// Left returns how many tokens of a request's prompt remain to be computed after the step
// under way. It returns false while the request waits, because the number of tokens found
// in the cache is not known before admission.
func (c *Core) Left(ref Ref) (tokens int, admitted bool) {
	r, d := &c.requests[ref], &c.details[ref]
	switch r.phase {
	case phasePrefill:
		return r.length() - int(r.prefilled) - d.chunk, true
	case phaseDecode:
		return 0, true
	}
	return 0, false
}

// Evict forgets all prompts that no request holds.
func (c *Core) Evict() {
	for i := range c.ranks {
		if k := c.ranks[i].kv; k != nil {
			k.flush()
		}
	}
}
