package sim

// displace ends the last request of the lowest priority in a full queue for one of a higher
// priority. It reports whether there was such a request.
func (c *Core) displace(k *rank, priority int, now int64) bool {
	last, ok := k.waiting.last(func(ref Ref) bool { return c.requests[ref].ended == notEnded })
	if !c.opts.PriorityScheduling || !ok || last.priority >= priority {
		return false
	}
	k.displaced++
	c.conclude(now, last.ref, endDisplaced)
	return true
}

// preempt sends running requests back to the queue to make room for ref. It takes requests
// whose priority is lower by more than the threshold, as few as suffice, and none if all of
// them would not suffice. It reports whether there is room now.
func (c *Core) preempt(k *rank, ref Ref, out *Step) bool {
	threshold := *c.opts.PreemptionThreshold
	if !c.opts.PriorityScheduling || threshold < 0 {
		return false
	}
	below := c.details[ref].priority - threshold
	var gone []Ref
	enough := false
	for !enough {
		victim, ok := c.victim(k)
		if !ok || c.details[victim].priority >= below {
			break
		}
		gone = append(gone, victim)
		c.requests[victim].phase = phaseWaiting // so that it is not chosen again
		enough = c.roomWithout(k, ref, gone)
	}
	for _, victim := range gone {
		r := &c.requests[victim]
		r.phase = phaseDecode
		if enough {
			k.batch.Decode--
			k.batch.Context -= int64(r.length())
			c.retract(k, victim, out)
		}
	}
	if enough {
		k.decode = c.keep(k.decode, phaseDecode)
	}
	return enough
}

// roomWithout reports whether a waiting request could be admitted if the gone requests did
// not run.
func (c *Core) roomWithout(k *rank, ref Ref, gone []Ref) bool {
	if k.running()-len(gone) >= c.opts.MaxRunning {
		return false
	}
	if k.kv == nil {
		return true
	}
	n := c.need(k, ref)
	n.alone = k.running()-len(gone) == k.stalled
	for _, victim := range gone {
		n.free += k.kv.freed(c.details[victim].table, n.found)
		n.later -= int(k.share * float64(foreseen(&c.requests[victim])))
	}
	return n.met(k.kv.pageSize)
}
