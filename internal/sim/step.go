package sim

import (
	"time"

	"weir/internal/infer"
)

// Ref names a request inside the engine. It is valid from Submit until its
// Done was returned, and is given again afterwards.
type Ref uint32

// Step is the result of one engine step, as columns: request Ref[i] got ID[i],
// its Total[i]-th. A request that got several, by speculation or a stream
// interval, has a row for each, one after another. It is valid until the next call of Advance.
type Step struct {
	Start, End int64 // ns
	Batch      Batch // of all ranks together

	Ref   []Ref
	ID    []uint32
	Total []uint32

	First []First // of requests that got their first id in this step
	Done  []Done  // of requests that ended, after their last id
	// Retracted are the requests that were sent back to the queue at the end of
	// the step.
	Retracted []Ref

	Running, Waiting int // after the step
}

// First tells a request's stamps, with its first id.
type First struct {
	Ref    Ref
	Stamps infer.Stamps
	Cached int // prompt tokens found in the KV cache
	DPRank int // the rank that has it
}

// Done is the last word on a request. Its Ref is free.
type Done struct {
	Ref          Ref
	Reason       infer.Reason // stop, length or abort
	Err          *infer.Error // why the engine itself aborted it; nil otherwise
	PromptTokens int
	Completion   int // ids generated
	Cached       int // prompt tokens found in the KV cache when it was first admitted
	Matched      int // the end or stop id that ended it, which is its last; -1 when none did
	Retractions  int // how often it was sent back to the queue
	DPRank       int // the rank that had it
	// Handle is set by a prefill engine that has the prompt's KV.
	Handle *Handle
}

func (s *Step) reset() {
	*s = Step{Ref: s.Ref[:0], ID: s.ID[:0], Total: s.Total[:0], First: s.First[:0], Done: s.Done[:0], Retracted: s.Retracted[:0]}
}

// Counts are totals since the engine started. At any moment received =
// finished + aborted + rejected + running + waiting.
type Counts struct {
	Received, Finished, Aborted, Rejected uint64
	Prefilled, Generated                  uint64 // ids computed of prompts, and generated
	// Cached are ids of prompts that were found in the KV cache. A retracted
	// request that comes back counts again, here and in Prefilled, with its own
	// ids.
	Cached      uint64
	Transferred uint64 // ids whose KV came from a prefill engine
	Retracted   uint64 // times that a request was sent back to the queue
	Evicted     uint64 // tokens, in whole pages, that left the KV cache
	Steps       uint64
	// Running are the requests in the running batch, Waiting those before it: in
	// the queue, or with their KV under way.
	Running, Waiting int
	// Lost is schedule time given up because the engine was driven too late.
	Lost time.Duration
}
