package plane

import (
	"fmt"
	"slices"
	"strings"

	"weir/internal/engine/plane/planepb"
)

// Fault is the Cause of every CodeIntegrity error of this package: what did
// not add up, and the last steps before it as evidence.
type Fault struct {
	// Reason is one of a small fixed set of words, fit for a metric's label.
	Reason FaultReason
	// Detail says it in numbers.
	Detail string
	// Slot and RequestID name the generation; RequestID is empty when the
	// whole session is at fault.
	Slot      uint32
	RequestID string
	// Frames are the last steps received, oldest first; the last one is at
	// fault.
	Frames []FrameSummary
	// Part is what the last step says of the slot, where it is about one.
	Part *Part
}

// FaultReason implements infer.Fault.
func (f *Fault) FaultReason() string { return string(f.Reason) }

// Shared says that the fault is the session's, and ends all its requests.
func (f *Fault) Shared() bool { return f.RequestID == "" }

// Evidence gives what was kept, for JSON.
func (f *Fault) Evidence() any {
	return struct {
		Slot      uint32         `json:"slot"`
		RequestID string         `json:"wire_request_id,omitzero"`
		Part      *Part          `json:"part,omitzero"`
		Steps     []FrameSummary `json:"last_steps"`
	}{f.Slot, f.RequestID, f.Part, f.Frames}
}

// Part is what one step says of one slot. Its ids are a user's text.
type Part struct {
	Before     int      `json:"received_before"` // ids of the request, up to this step
	IDs        []uint32 `json:"ids"`             // the first partIDs
	Count      int      `json:"count"`           // all of them
	Total      uint32   `json:"total"`           // as the engine counts
	Finish     string   `json:"finish,omitzero"` // reason
	Completion uint32   `json:"completion_tokens,omitzero"`
}

// partIDs bounds the ids that are kept of a part.
const partIDs = 256

func partOf(before int, ids []uint32, total uint32, fin *planepb.Finish) *Part {
	p := &Part{Before: before, IDs: slices.Clone(ids[:min(len(ids), partIDs)]), Count: len(ids), Total: total}
	if fin != nil {
		p.Finish, p.Completion = fin.GetReason().String(), fin.GetCompletionTokens()
	}
	return p
}

// FaultReason names one way in which what an engine sent can be wrong.
type FaultReason string

// The reasons. The first group ends one generation, the second the session.
const (
	FaultBackwards  FaultReason = "count_backwards"     // a total below the one before
	FaultTotal      FaultReason = "total_mismatch"      // a total that is not the ids received
	FaultCompletion FaultReason = "completion_mismatch" // Finish counts other than the last total
	FaultVocabulary FaultReason = "id_out_of_range"     // an id that the vocabulary does not have
	FaultLimit      FaultReason = "over_max_tokens"     // more ids than were asked for
	FaultReasonWord FaultReason = "finish_reason"       // no reason, an unknown one, or an abort nobody asked for
	FaultRefused    FaultReason = "refused_with_ids"    // refused the request and sent ids for it
	FaultOccupied   FaultReason = "slot_occupied"       // says that a slot free here is in use there

	FaultSequence  FaultReason = "sequence_gap"   // a step missing, repeated or out of order
	FaultColumns   FaultReason = "columns"        // columns that do not fit each other
	FaultSlot      FaultReason = "unknown_slot"   // a slot that holds no request
	FaultMalformed FaultReason = "malformed"      // bytes that are no step
	FaultOversized FaultReason = "oversized"      // a step over the size limit
	FaultOpening   FaultReason = "opening_step"   // a first step that is not an empty one with sequence 0
	FaultTwice     FaultReason = "finished_twice" // two Finish of one slot in a step
)

// Error implements error.
func (f *Fault) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", f.Reason, f.Detail)
	if f.RequestID != "" {
		fmt.Fprintf(&b, " (slot %d, request %s)", f.Slot, f.RequestID)
	}
	if n := len(f.Frames); n > 0 {
		fmt.Fprintf(&b, "; last of %d steps kept: %v", n, f.Frames[n-1])
	}
	return b.String()
}

// FrameSummary is what is kept of a step as evidence.
type FrameSummary struct {
	Sequence uint64 `json:"sequence"`
	SendTime int64  `json:"send_time"` // engine's clock, ns
	Received int64  `json:"received"`  // gateway's clock, ns
	Bytes    int    `json:"bytes"`
	// The lengths of the columns.
	Slots   int    `json:"slots"`
	Counts  int    `json:"counts"`
	Totals  int    `json:"totals"`
	IDs     int    `json:"ids"`
	Notices int    `json:"notices"`
	Running uint32 `json:"running"`
	Waiting uint32 `json:"waiting"`
}

// String is for logs.
func (s FrameSummary) String() string {
	return fmt.Sprintf("step %d: %d bytes, %d slots, %d counts, %d totals, %d ids, %d notices, received %d",
		s.Sequence, s.Bytes, s.Slots, s.Counts, s.Totals, s.IDs, s.Notices, s.Received)
}

const evidenceFrames = 8

// evidence keeps the summaries of the last steps, at the price of one small
// copy per step.
type evidence struct {
	ring [evidenceFrames]FrameSummary
	n    int
}

func (e *evidence) add(f *frame) {
	e.ring[e.n%evidenceFrames] = FrameSummary{
		Sequence: f.sequence, SendTime: f.sendTime, Received: f.received, Bytes: f.size,
		Slots: len(f.slot), Counts: len(f.count), Totals: len(f.total), IDs: len(f.id),
		Notices: len(f.notices), Running: f.running, Waiting: f.waiting,
	}
	e.n++
}

// last gives the summaries kept, oldest first.
func (e *evidence) last() []FrameSummary {
	n := min(e.n, evidenceFrames)
	out := make([]FrameSummary, 0, n)
	for i := e.n - n; i < e.n; i++ {
		out = append(out, e.ring[i%evidenceFrames])
	}
	return out
}
