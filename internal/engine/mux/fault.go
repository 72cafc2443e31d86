package mux

import (
	"fmt"
	"slices"
	"strings"
)

// FaultReason names one way in which what an engine sent can be wrong.
type FaultReason string

// The reasons that more than one wire knows; the others are the adapters'.
const (
	FaultLimit      FaultReason = "over_max_tokens" // more ids than were asked for
	FaultReasonWord FaultReason = "finish_reason"   // ended for no reason, an unknown one, or one that was not asked for
	FaultMalformed  FaultReason = "malformed"       // bytes that are no frame; it ends the session
)

// Fault is the Cause of every CodeIntegrity error of a session: what did not add up,
// and the last frames before it as evidence.
type Fault struct {
	// Reason is one of a small fixed set of words, fit for a metric's label.
	Reason FaultReason
	// Detail says it in numbers.
	Detail string
	// Place is where on the wire it was found: "slot 3", "engine 0".
	Place string
	// RequestID is that of the request on the wire; empty when the whole session is at
	// fault.
	RequestID string
	// Frames are the last ones received, oldest first; the last one is at fault.
	Frames []Frame
	// Part is what the last frame says of one request, where it is about one.
	Part *Part
}

// FaultReason implements infer.Fault.
func (f *Fault) FaultReason() string { return string(f.Reason) }

// Shared reports whether the fault is the session's, and ends all its requests.
func (f *Fault) Shared() bool { return f.RequestID == "" }

// Evidence returns what was kept, for JSON.
func (f *Fault) Evidence() any {
	return struct {
		Place     string  `json:"place,omitzero"`
		RequestID string  `json:"wire_request_id,omitzero"`
		Part      *Part   `json:"part,omitzero"`
		Frames    []Frame `json:"last_frames"`
	}{f.Place, f.RequestID, f.Part, f.Frames}
}

// Error implements error.
func (f *Fault) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", f.Reason, f.Detail)
	if f.RequestID != "" {
		fmt.Fprintf(&b, " (%s, request %s)", f.Place, f.RequestID)
	}
	if n := len(f.Frames); n > 0 {
		fmt.Fprintf(&b, "; last of %d frames kept: %v", n, f.Frames[n-1])
	}
	return b.String()
}

// Part is what one frame says of one request. Its ids are a user's text.
type Part struct {
	Before     int      `json:"received_before"`            // ids of the request, up to this frame
	IDs        []uint32 `json:"ids"`                        // the first partIDs
	Count      int      `json:"count"`                      // all of them
	Total      int      `json:"total,omitzero"`             // as the engine counts
	Finish     string   `json:"finish_reason,omitzero"`     //
	Stop       string   `json:"stop_reason,omitzero"`       // what ended it
	Completion int      `json:"completion_tokens,omitzero"` // as its end counts
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

// Frame is what is kept of a frame as evidence.
type Frame struct {
	Sequence uint64 `json:"sequence,omitzero"`
	Sent     int64  `json:"sent,omitzero"` // engine's clock, ns; 0: not reported
	Received int64  `json:"received"`      // gateway's clock, ns
	Bytes    int    `json:"bytes"`
	Requests int    `json:"requests"` // that it is about
	IDs      int    `json:"ids"`
	// The lengths of the other columns, where a frame has some.
	Counts  int `json:"counts,omitzero"`
	Totals  int `json:"totals,omitzero"`
	Notices int `json:"notices,omitzero"`
}

// String is for logs.
func (f Frame) String() string {
	return fmt.Sprintf("sequence %d, %d bytes, %d requests, %d counts, %d totals, %d ids, %d notices, received %d",
		f.Sequence, f.Bytes, f.Requests, f.Counts, f.Totals, f.IDs, f.Notices, f.Received)
}

const evidenceFrames = 8

// evidence keeps the last frames, at the price of one small copy per frame.
type evidence struct {
	ring [evidenceFrames]Frame
	n    int
}

func (e *evidence) add(f *Frame) {
	e.ring[e.n%evidenceFrames] = *f
	e.n++
}

// last returns the frames kept, oldest first.
func (e *evidence) last() []Frame {
	var out []Frame
	for i := max(0, e.n-evidenceFrames); i < e.n; i++ {
		out = append(out, e.ring[i%evidenceFrames])
	}
	return out
}
