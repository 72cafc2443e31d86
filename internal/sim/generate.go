package sim

import (
	"slices"

	"weir/internal/infer"
)

// finishDecode gives each generating request its next id or ids. It is the only loop that
// runs for every token.
func (c *Core) finishDecode(k *rank, out *Step) {
	before := c.counts.Generated
	kept := k.decode[:0]
	ahead, speculates := int32(c.opts.drafts()), c.accept != nil
	for _, ref := range k.decode {
		r := &c.requests[ref]
		var reason infer.Reason
		switch {
		case r.ended != notEnded:
			reason = r.ended.reason()
		case r.held:
		case speculates:
			reason = c.generateSome(k, ref, r, out)
		default:
			reason = c.generate(k, ref, r, out)
		}
		if reason != "" {
			c.finish(k, ref, reason, out)
			continue
		}
		if r.prompt+r.generated+ahead > r.room && !r.held {
			k.short = append(k.short, ref)
		}
		kept = append(kept, ref)
	}
	k.decode = kept
	k.context += int64(c.counts.Generated - before)
}

// finishPrefill books the chunks of the step; a completed prompt gets its
// first id with it.
func (c *Core) finishPrefill(k *rank, out *Step) {
	kept := k.prefill[:0]
	for _, ref := range k.prefill {
		r, d := &c.requests[ref], &c.details[ref]
		if r.ended != notEnded {
			c.finish(k, ref, r.ended.reason(), out)
			continue
		}
		r.prefilled += int32(d.chunk)
		c.counts.Prefilled += uint64(d.chunk)
		if k.kv != nil {
			k.kv.enter(d, int(r.prefilled))
		}
		if int(r.prefilled) < r.length() {
			kept = append(kept, ref)
			continue
		}
		if r.generated == 0 && d.leg != LegDecode {
			d.stamps.PrefillEnd = out.End
		}
		if reason := c.generate(k, ref, r, out); reason != "" {
			c.finish(k, ref, reason, out)
			continue
		}
		c.join(k, ref)
	}
	k.prefill = kept
}

// join adds a request to the decoding ones.
func (c *Core) join(k *rank, ref Ref) {
	r := &c.requests[ref]
	r.phase = phaseDecode
	k.decode = append(k.decode, ref)
	if r.held {
		return
	}
	k.context += int64(r.length())
	if r.length()+c.opts.drafts() > int(r.room) {
		k.short = append(k.short, ref)
	}
}

// generateSome returns a request the ids that were accepted of its drafts.
func (c *Core) generateSome(k *rank, ref Ref, r *request, out *Step) infer.Reason {
	for range c.accept.draw(r.stream.Hash()) {
		if reason := c.generate(k, ref, r, out); reason != "" || r.held {
			return reason
		}
	}
	return ""
}

// generate appends the request's next id to the step and reports whether it was the last.
func (c *Core) generate(k *rank, ref Ref, r *request, out *Step) infer.Reason {
	if r.special {
		return c.generateSpecial(k, ref, r, out)
	}
	var reason infer.Reason
	var id uint32
	if !r.endless && r.stream.Ends(c.hazard) {
		id, reason = c.endID(ref, r), infer.ReasonStop
	} else {
		id = c.opts.Words.Next(&r.stream)
	}
	c.push(k, ref, r, id)
	out.Ref = append(out.Ref, ref)
	out.ID = append(out.ID, id)
	out.Total = append(out.Total, uint32(r.generated))
	if r.generated == 1 {
		c.first(ref, r, out)
	}
	if reason == "" && r.generated >= r.max {
		reason = infer.ReasonLength
	}
	return reason
}

// generateSpecial is generate for a request that has more to be asked.
func (c *Core) generateSpecial(k *rank, ref Ref, r *request, out *Step) infer.Reason {
	d := &c.details[ref]
	said := int(r.generated)
	if d.stall && said >= d.stallAfter {
		r.held = true
		k.stalled++
		if r.phase == phaseDecode {
			k.context -= int64(r.length())
		}
		return ""
	}
	var reason infer.Reason
	var id uint32
	mayEnd := said >= d.min
	switch {
	case d.scripted:
		id, reason = c.recite(ref, r, d)
	case mayEnd && !r.endless && r.stream.Ends(c.hazard):
		id, reason = c.endID(ref, r), infer.ReasonStop
	default:
		id = c.opts.Words.Next(&r.stream)
	}
	if d.spoiled && reason == "" {
		id = c.garbage(r)
	}
	c.push(k, ref, r, id)
	d.unsent = append(d.unsent, id)
	if said == 0 || len(d.unsent) >= d.interval {
		c.send(ref, r, d, out)
	}
	if said == 0 {
		c.first(ref, r, out)
	}
	switch {
	case reason != "":
	case mayEnd && slices.Contains(d.stop, id):
		d.matched = int64(id)
		reason = infer.ReasonStop
	case r.generated >= r.max:
		reason = infer.ReasonLength
	}
	return reason
}

// push advances a request by an id.
func (c *Core) push(k *rank, ref Ref, r *request, id uint32) {
	c.opts.Words.Push(&r.stream, id)
	r.generated++
	c.counts.Generated++
	if c.opts.KVEvents {
		d := &c.details[ref]
		d.ids = append(d.ids, id)
	}
	if r.prompt+r.generated == r.mark {
		k.kv.turn(r, &c.details[ref])
	}
}

// send appends to the step the ids that were held back from a request.
func (c *Core) send(ref Ref, r *request, d *details, out *Step) {
	total := int(r.generated) - len(d.unsent)
	for _, id := range d.unsent {
		total++
		out.Ref = append(out.Ref, ref)
		out.ID = append(out.ID, id)
		out.Total = append(out.Total, uint32(total))
	}
	d.unsent = d.unsent[:0]
}

// first reports a request's first id.
func (c *Core) first(ref Ref, r *request, out *Step) {
	d := &c.details[ref]
	d.stamps.FirstToken = out.End
	out.First = append(out.First, First{Ref: ref, Stamps: d.stamps, Cached: d.cached, DPRank: int(r.rank)})
}

// endID returns an end id and notes that it ended the output.
func (c *Core) endID(ref Ref, r *request) uint32 {
	id := c.opts.EOS[r.stream.Pick(len(c.opts.EOS))]
	c.details[ref].matched = int64(id)
	return id
}

// recite returns what comes next of a request with a script.
func (c *Core) recite(ref Ref, r *request, d *details) (uint32, infer.Reason) {
	said := int(r.generated)
	switch {
	case said < len(d.script):
		if last := said+1 == len(d.script) && said+1 >= d.min; last && !d.ignoreEOS && len(c.opts.EOS) == 0 {
			return d.script[said], infer.ReasonStop
		}
		return d.script[said], ""
	case said >= d.min && !d.ignoreEOS && len(c.opts.EOS) > 0:
		return c.endID(ref, r), infer.ReasonStop
	}
	return c.opts.Words.Next(&r.stream), ""
}
