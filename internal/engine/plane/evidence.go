package plane

import (
	"fmt"

	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
)

// partOf is what one step says of one slot, as evidence.
func partOf(before int, ids []uint32, total uint32, fin *planepb.Finish) *mux.Part {
	finish := ""
	if fin != nil {
		finish = fin.GetReason().String()
	}
	p := mux.PartOf(before, ids, finish, "")
	p.Total, p.Completion = int(total), int(fin.GetCompletionTokens())
	return p
}

// The reasons of this wire. The first group ends one generation, the second the
// session.
const (
	FaultBackwards  mux.FaultReason = "count_backwards"     // a total below the one before
	FaultTotal      mux.FaultReason = "total_mismatch"      // a total that is not the ids received
	FaultCompletion mux.FaultReason = "completion_mismatch" // Finish counts other than the last total
	FaultVocabulary mux.FaultReason = "id_out_of_range"     // an id that the vocabulary does not have
	FaultRefused    mux.FaultReason = "refused_with_ids"    // refused the request and sent ids for it
	FaultOccupied   mux.FaultReason = "slot_occupied"       // says that a slot free here is in use there

	FaultSequence  mux.FaultReason = "sequence_gap"   // a step missing, repeated or out of order
	FaultColumns   mux.FaultReason = "columns"        // columns that do not fit each other
	FaultSlot      mux.FaultReason = "unknown_slot"   // a slot that holds no request
	FaultOversized mux.FaultReason = "oversized"      // a step over the size limit
	FaultOpening   mux.FaultReason = "opening_step"   // a first step that is not an empty one with sequence 0
	FaultTwice     mux.FaultReason = "finished_twice" // two Finish of one slot in a step
	FaultAnswer    mux.FaultReason = "stray_answer"   // an answer to a request that needs none
)

// place returns which slot a fault is about.
func place(slot uint32) string { return fmt.Sprintf("slot %d", slot) }

// summary is what is kept of a step as evidence.
func (f *frame) summary() mux.Frame {
	return mux.Frame{
		Sequence: f.sequence, Sent: f.sendTime, Received: f.received, Bytes: f.size,
		Requests: len(f.slot), Counts: len(f.count), Totals: len(f.total), IDs: len(f.id), Notices: len(f.notices),
	}
}
