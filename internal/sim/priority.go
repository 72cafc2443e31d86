package sim

// displace ends the last request of the lowest priority in a full queue for one
// of a higher priority, and says whether there was one to end.
func (c *Core) displace(k *rank, priority int, now int64) bool {
	last, ok := k.waiting.last(func(ref Ref) bool { return c.requests[ref].ended == notEnded })
	if !c.opts.PriorityScheduling || !ok || last.priority >= priority {
		return false
	}
	k.displaced++
	c.conclude(now, last.ref, endDisplaced)
	return true
}

// preempt sends requests back to the queue for ref, which waits: those whose
// priority is lower by more than the threshold, as few as make room for it, and
// none if all of them do not. It says whether there is room now.
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

// roomWithout says whether a waiting request could be admitted if some of the
// generating ones were gone.
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
