package fenced

import (
	"fmt"
	"slices"
	"strings"
)

// FaultReason names one way in which what an engine sent can be wrong.
type FaultReason string

// The reasons. The first group ends one generation, the second the session.
const (
	FaultCount      FaultReason = "count_mismatch"    // another number of ids than the engine counts
	FaultLimit      FaultReason = "over_max_tokens"   // more ids than were asked for
	FaultLength     FaultReason = "length_mismatch"   // ended for its length with fewer ids than that
	FaultStop       FaultReason = "stop_mismatch"     // ended by an id that is not the last one received
	FaultPrompt     FaultReason = "prompt_mismatch"   // another number of prompt ids than were sent
	FaultLogprobs   FaultReason = "logprobs_mismatch" // log probabilities that are not those of the ids
	FaultReasonWord FaultReason = "finish_reason"     // ended for a reason that was not asked for

	FaultMalformed FaultReason = "malformed"    // bytes that are no outputs
	FaultRank      FaultReason = "engine_index" // outputs of another engine than the connection's
)

// Fault is the Cause of every CodeIntegrity error of a session: what did not add
// up, and the last messages before it as evidence.
type Fault struct {
	Reason    FaultReason
	Detail    string
	Rank      int
	RequestID string // empty when the whole session is at fault
	Messages  []MessageSummary
	Part      *Part
}

// FaultReason implements infer.Fault.
func (f *Fault) FaultReason() string { return string(f.Reason) }

// Shared says that the fault is the session's, and ends all its requests.
func (f *Fault) Shared() bool { return f.RequestID == "" }

// Evidence gives what was kept, for JSON.
func (f *Fault) Evidence() any {
	return struct {
		Rank      int              `json:"rank"`
		RequestID string           `json:"wire_request_id,omitzero"`
		Part      *Part            `json:"part,omitzero"`
		Messages  []MessageSummary `json:"last_messages"`
	}{f.Rank, f.RequestID, f.Part, f.Messages}
}

// Error implements error.
func (f *Fault) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", f.Reason, f.Detail)
	if f.RequestID != "" {
		fmt.Fprintf(&b, " (request %s)", f.RequestID)
	}
	return b.String()
}

// Part is what one message says of one request. Its ids are a user's text.
type Part struct {
	Before int      `json:"received_before"` // ids of the request, up to this message
	IDs    []uint32 `json:"ids"`             // the first partIDs
	Count  int      `json:"count"`           // all of them
	Said   int      `json:"completion_tokens,omitzero"`
	Finish string   `json:"finish_reason,omitzero"`
	Stop   string   `json:"stop_reason,omitzero"`
}

// partIDs bounds the ids that are kept of a part, and partWord its words.
const (
	partIDs  = 256
	partWord = 64
)

// PartOf makes a Part of a generation whose next ids were not taken in.
func PartOf(before int, ids []uint32, finish, stop string) *Part {
	return &Part{Before: before, IDs: slices.Clone(ids[:min(len(ids), partIDs)]), Count: len(ids),
		Finish: finish[:min(len(finish), partWord)], Stop: stop[:min(len(stop), partWord)]}
}

// MessageSummary is what is kept of a message as evidence.
type MessageSummary struct {
	Timestamp int64 `json:"timestamp,omitzero"` // engine's clock, ns; 0: it gives none
	Received  int64 `json:"received"`           // gateway's clock, ns
	Bytes     int   `json:"bytes"`
	Outputs   int   `json:"outputs"`
	IDs       int   `json:"ids"`
}

const evidenceMessages = 8

// evidence keeps the summaries of the last messages.
type evidence struct {
	ring [evidenceMessages]MessageSummary
	n    int
}

// add keeps a summary.
func (e *evidence) add(s MessageSummary) {
	e.ring[e.n%evidenceMessages] = s
	e.n++
}

// last gives the summaries, oldest first.
func (e *evidence) last() []MessageSummary {
	var out []MessageSummary
	for i := max(0, e.n-evidenceMessages); i < e.n; i++ {
		out = append(out, e.ring[i%evidenceMessages])
	}
	return out
}
