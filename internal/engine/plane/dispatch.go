package plane

import (
	"fmt"
	"math"

	"google.golang.org/grpc/codes"

	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/engine/remote"
	"weir/internal/infer"
)

// dispatcher passes the deltas of each step to their sinks and checks the engine's
// counts. It belongs to the reader: its methods must not be called concurrently.
type dispatcher struct {
	mux.Dispatcher
	vocab    uint32 // ids are below it; 0: not known
	table    *table
	offset   func() remote.Offset
	next     uint64 // sequence expected
	meters   *meters
	logprobs infer.Logprobs // those of the Delta's ids
	subs     *submissions   // nil: no answers are due
}

// open takes in the first step, which says only that the session exists.
func (d *dispatcher) open(f *frame) *mux.Fault {
	d.Keep(f.summary())
	if f.err != nil {
		return d.Fault(mux.FaultMalformed, f.err.Error())
	}
	if f.sequence != 0 || len(f.slot) > 0 || len(f.id) > 0 || len(f.notices) > 0 {
		return d.Fault(FaultOpening, fmt.Sprintf("sequence %d with %d slots, %d ids, %d notices",
			f.sequence, len(f.slot), len(f.id), len(f.notices)))
	}
	d.next = 1
	return nil
}

// step takes in one step. A fault is the session's: nothing that follows can
// be trusted. An error of one generation ends that generation only.
func (d *dispatcher) step(f *frame) *mux.Fault {
	d.Keep(f.summary())
	if f.err != nil {
		return d.Fault(mux.FaultMalformed, f.err.Error())
	}
	if f.sequence != d.next {
		return d.Fault(FaultSequence, fmt.Sprintf("step %d where %d was expected", f.sequence, d.next))
	}
	d.next++
	if err := f.check(); err != nil {
		return d.Fault(FaultColumns, err.Error())
	}
	d.meters.step(f)
	d.Delta.Received = f.received

	if fault := d.announce(f); fault != nil {
		return fault
	}
	if fault := d.scores(f); fault != nil {
		return fault
	}
	off := 0
	var scored scores
	for i, slot := range f.slot {
		n := 1
		if len(f.count) > 0 {
			n = int(f.count[i])
		}
		ids := f.id[off : off+n]
		off += n
		g := d.table.get(slot)
		if g == nil {
			fault := d.unknown(slot)
			fault.Part = partOf(0, ids, f.total[i], nil)
			return fault
		}
		d.At = &g.Generation
		d.Delta.Logprobs = nil
		if g.Scored {
			var ok bool
			if d.logprobs, ok = scored.take(f, n, g.Top); !ok {
				return d.unscored(f, n, n*g.Top)
			}
			d.Delta.Logprobs = &d.logprobs
		}
		if g.noticed && int(g.last) == i {
			d.withNotice(g, f, ids, f.total[i])
			continue
		}
		d.entry(g, ids, f.total[i], nil, nil)
	}
	for _, n := range f.notices {
		// A slot without ids in this step. Those with ids are through.
		if g := d.table.get(n.GetSlot()); g != nil && g.noticed {
			d.At = &g.Generation
			d.Delta.Logprobs = nil
			d.withNotice(g, f, nil, uint32(g.Total))
		}
	}
	d.At = nil
	return nil
}

// scores checks that a step's log probabilities are those of its ids. From the
// first one missing on they would be others', so it is found before any is given
// out.
func (d *dispatcher) scores(f *frame) *mux.Fault {
	if len(f.own)+len(f.topID)+len(f.top) == 0 {
		return nil // and then a slot that should have some is found at its turn
	}
	own, top := 0, 0
	for i, slot := range f.slot {
		if g := d.table.get(slot); g != nil && g.Scored {
			n := 1
			if len(f.count) > 0 {
				n = int(f.count[i])
			}
			own, top = own+n, top+n*g.Top
		}
	}
	if own != len(f.own) || top != len(f.topID) || top != len(f.top) {
		return d.unscored(f, own, top)
	}
	return nil
}

func (d *dispatcher) unscored(f *frame, own, top int) *mux.Fault {
	return d.Fault(FaultColumns, fmt.Sprintf("%d log probabilities for %d ids, and %d of %d alternatives for %d",
		len(f.own), own, len(f.top), len(f.topID), top))
}

// announce notes at the generations what this step's notices say of them.
func (d *dispatcher) announce(f *frame) *mux.Fault {
	if len(f.notices) == 0 {
		return nil
	}
	for _, n := range f.notices {
		g := d.table.get(n.GetSlot())
		if g == nil {
			return d.unknown(n.GetSlot())
		}
		if n.GetAccepted() != nil || n.GetRefused() != nil {
			if fault := d.answer(g, n, f.received); fault != nil {
				return fault
			}
			if n.GetRefused() != nil {
				continue
			}
		}
		if !g.noticed {
			g.noticed, g.stamps, g.finish, g.last = true, nil, nil, -1
		}
		if count := n.GetPromptTokens(); count > 0 {
			g.prompted = int32(min(count, math.MaxInt32))
		}
		if n.CachedTokens != nil {
			g.Cached = int(n.GetCachedTokens())
		}
		if s := n.GetStamps(); s != nil {
			g.stamps = s
		}
		if fin := n.GetFinish(); fin != nil {
			if g.finish != nil {
				return d.Fault(FaultTwice, fmt.Sprintf("slot %d", n.GetSlot()))
			}
			g.finish = fin
		}
	}
	for i, slot := range f.slot {
		if g := d.table.get(slot); g != nil && g.noticed {
			g.last = int32(i)
		}
	}
	return nil
}

// answer takes in the engine's answer to a submission.
func (d *dispatcher) answer(g *generation, n *planepb.Notice, now int64) *mux.Fault {
	size := g.owed.Swap(0)
	if size == 0 {
		fault := d.Fault(FaultAnswer, "the engine answers a request that has its answer, or gets it from Submit")
		fault.Place = place(g.slot)
		return fault
	}
	d.subs.unanswered.Add(-int64(size))
	if a := n.GetAccepted(); a != nil {
		g.created.Store(a.GetServerCreated())
		g.Hear(now)
		return nil
	}
	v := refusal(d.Engine, codes.Code(n.GetRefused().GetCode()), n.GetRefused().GetMessage())
	if !v.occupied {
		d.table.release(g)
	}
	if !g.Abandon(v.err) && !g.Over() {
		d.At, d.Delta.Logprobs = &g.Generation, nil
		d.fail(g, FaultRefused, "ids arrived for a request that was then refused", nil)
	}
	return nil
}

func (d *dispatcher) withNotice(g *generation, f *frame, ids []uint32, total uint32) {
	stamps, finish := g.stamps, g.finish
	g.noticed, g.stamps, g.finish = false, nil, nil
	x := &d.Delta
	x.PromptTokens, x.CachedTokens, x.CachedKnown = int(g.prompted), g.Cached, g.Cached >= 0
	d.entry(g, ids, total, g.tell(d.stamps(stamps, f), finish), finish)
	x.PromptTokens, x.CachedTokens, x.CachedKnown = 0, 0, false
}

// tell returns the stamps to deliver: those that arrived, if any, with the number of times that
// the request was sent back to the queue, which is reported with its end.
func (g *generation) tell(came *infer.Stamps, fin *planepb.Finish) *infer.Stamps {
	if n := int64(fin.GetRetracted()); n > 0 {
		s := infer.Stamps{}
		if came != nil {
			s = *came
		} else if g.told != nil {
			s = *g.told
		}
		s.Retracted, came = n, &s
	}
	if came != nil {
		g.told = came
	}
	return came
}

// entry processes the part of a step for one slot.
func (d *dispatcher) entry(g *generation, ids []uint32, total uint32, stamps *infer.Stamps, fin *planepb.Finish) {
	if fin != nil {
		// The slot is free even if the entry is wrong, and it is free before anyone can see that
		// the generation ended.
		d.table.release(g)
	}
	if g.Over() {
		d.drop(g, fin != nil)
		return
	}
	want := g.Total + len(ids)
	if reason, detail := d.wrong(g, ids, want, total, fin); reason != "" {
		d.fail(g, reason, detail, partOf(g.Total, ids, total, fin))
		if fin == nil {
			g.Abort()
		}
		return
	}
	g.Total = want
	if len(ids) == 0 && stamps == nil && fin == nil {
		return
	}
	x := &d.Delta
	x.Attempt, x.IDs, x.Total, x.Stamps, x.Finish = g.Attempt, ids, want, stamps, nil
	if fin != nil {
		x.Finish = d.finish(g, fin)
	}
	if !g.Offer(x) {
		d.drop(g, fin != nil)
	}
}

// drop counts what came too late. The first time it also repeats the abort,
// because the one sent when the hand-over failed may have overtaken the
// request, and then the engine ignored it; now it is known to have it.
func (d *dispatcher) drop(g *generation, last bool) {
	d.meters.Late.Add(1)
	if !last && !g.reaborted {
		g.reaborted = true
		g.AskAgain()
		g.Abort()
	}
}

// wrong names what does not add up in an entry; an empty reason is none.
func (d *dispatcher) wrong(g *generation, ids []uint32, want int, total uint32, fin *planepb.Finish) (mux.FaultReason, string) {
	switch {
	case int(total) < g.Total:
		return FaultBackwards, fmt.Sprintf("the engine counts %d ids after %d", total, g.Total)
	case int(total) != want:
		return FaultTotal, fmt.Sprintf("the engine counts %d ids where %d were received", total, want)
	case want > g.Limit:
		return mux.FaultLimit, fmt.Sprintf("%d ids of at most %d", want, g.Limit)
	}
	if vocab := d.vocab; vocab > 0 {
		for _, id := range ids {
			if id >= vocab {
				return FaultVocabulary, fmt.Sprintf("id %d of a vocabulary of %d", id, vocab)
			}
		}
	}
	if fin == nil {
		return "", ""
	}
	// An engine that failed need not count right: its ids are delivered with an
	// error after them either way.
	if int(fin.GetCompletionTokens()) != want && fin.GetReason() != planepb.Finish_REASON_ERROR {
		return FaultCompletion, fmt.Sprintf("the engine finished with %d ids where %d were received",
			fin.GetCompletionTokens(), want)
	}
	switch fin.GetReason() {
	case planepb.Finish_REASON_STOP, planepb.Finish_REASON_LENGTH, planepb.Finish_REASON_ERROR:
	case planepb.Finish_REASON_ABORT:
		if !g.Aborting() {
			return mux.FaultReasonWord, "the engine ended the request by an abort that was not asked for"
		}
	default:
		return mux.FaultReasonWord, fmt.Sprintf("the engine ended the request for reason %d", fin.GetReason())
	}
	return "", ""
}

// fail ends one generation with an integrity error, because of its part in the current
// step.
func (d *dispatcher) fail(g *generation, reason mux.FaultReason, detail string, part *mux.Part) {
	d.meters.Broken.Add(1)
	fault := d.Fault(reason, detail)
	fault.Place, fault.RequestID, fault.Part = place(g.slot), g.ID, part
	d.End(&g.Generation, d.Faulty(fault))
}

// close ends every generation of the session with err.
func (d *dispatcher) close(err *infer.Error, now int64) {
	d.Delta.Received = now
	unanswered := mux.Unavailable(d.Engine, err.Cause)
	unanswered.NotRun = false // nobody knows
	for _, g := range d.table.close() {
		if g.owed.Load() != 0 && d.At != &g.Generation {
			g.Abandon(unanswered) // as Submit's errors are
		}
		d.Lose(&g.Generation, err)
		d.table.release(g)
	}
}

func (d *dispatcher) finish(g *generation, fin *planepb.Finish) *infer.Finish {
	out := &infer.Finish{PromptTokens: int(fin.GetPromptTokens()), CachedTokens: int(fin.GetCachedTokens())}
	switch fin.GetReason() {
	case planepb.Finish_REASON_STOP:
		out.Reason = infer.ReasonStop
	case planepb.Finish_REASON_LENGTH:
		out.Reason = infer.ReasonLength
	case planepb.Finish_REASON_ABORT:
		out.Reason = infer.ReasonAbort
	default:
		out.Reason = infer.ReasonError
		out.Err = &infer.Error{
			Code:      infer.CodeEngine,
			Message:   "the engine failed while it worked on the request; send it again",
			Engine:    d.Engine,
			Retryable: true,
			Cause:     fmt.Errorf("engine's words: %q", fin.GetMessage()),
		}
	}
	return out
}

func (d *dispatcher) stamps(s *planepb.Stamps, f *frame) *infer.Stamps {
	if s == nil {
		return nil
	}
	o := d.offset()
	if !o.Known {
		return nil
	}
	return &infer.Stamps{
		ServerCreated:  o.ToGateway(s.GetServerCreated()),
		QueueStart:     o.ToGateway(s.GetQueueStart()),
		QueueEnd:       o.ToGateway(s.GetQueueEnd()),
		PrefillStart:   o.ToGateway(s.GetPrefillStart()),
		PrefillEnd:     o.ToGateway(s.GetPrefillEnd()),
		FirstToken:     o.ToGateway(s.GetFirstToken()),
		FirstOutput:    o.ToGateway(uint64(f.sendTime)),
		ClockUncertain: o.Uncertain,
	}
}

func (d *dispatcher) unknown(slot uint32) *mux.Fault {
	fault := d.Fault(FaultSlot, fmt.Sprintf("slot %d holds no request", slot))
	fault.Place = place(slot)
	return fault
}
