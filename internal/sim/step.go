package sim

import (
	"time"

	"weir/internal/infer"
)

// Ref names a request inside the engine. It is valid from Submit until its
// Done was returned, and is given again afterwards.
type Ref uint32

// Step is the result of one engine step, as columns: request Ref[i] got ID[i] as its
// Total[i]-th id. A request that got several ids, by speculation or a stream interval, has
// consecutive rows, one for each. A Step is valid until the next call of Advance.
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

	// Reserved are the decode legs that have pages now and want the KV of their prompt.
	// Fetched are those that have received it. Kept are the prefill legs whose KV is ready
	// for a decode leg from now on.
	Reserved []Reserved
	Fetched  []Ref
	Kept     []Kept

	Running, Waiting int // after the step
}

// First holds the times of a request's first id and what led to it.
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
	Completion   int   // ids generated
	Cached       int   // prompt tokens found in the KV cache when it was first admitted
	Matched      int   // the end or stop id that ended it, which is its last; -1 when none did
	Retractions  int   // how often it was sent back to the queue
	DPRank       int   // the rank that had it
	Stage        Stage // of a leg, with Err: where its pair came to nothing
	Expired      bool  // of a prefill leg: its KV was not fetched in time
	Prefilled    bool  // it ended in the step that computed the last of its prompt, before its first id
	Owed         int   // of a decode leg with PagesOwed: what its pages are known by until they are Written; 0: none are kept
}

// Reserved is a decode leg that wants the KV of its prompt.
type Reserved struct {
	Ref    Ref
	Tokens int  // to be transferred
	Again  bool // it was sent back to the queue, and wants that of its ids too
	DPRank int  // the rank that has it
}

// Kept is a prefill leg whose KV is kept.
type Kept struct {
	Ref    Ref
	Reason infer.Reason
	Tokens int     // whose KV there is
	Pages  []int32 // that hold it; nil where the cache is unlimited
	Cached int     // prompt tokens found in the KV cache
	DPRank int     // the rank that has it
}

func (s *Step) reset() {
	*s = Step{Ref: s.Ref[:0], ID: s.ID[:0], Total: s.Total[:0], First: s.First[:0], Done: s.Done[:0], Retracted: s.Retracted[:0],
		Reserved: s.Reserved[:0], Fetched: s.Fetched[:0], Kept: s.Kept[:0]}
}

// Counts are totals since the engine started. At any moment received =
// finished + aborted + rejected + running + waiting + kept.
type Counts struct {
	Received, Finished, Aborted, Rejected uint64
	Prefilled, Generated                  uint64 // ids computed of prompts, and generated
	// Cached counts ids of prompts that were found in the KV cache. A retracted request
	// that comes back counts again, here and in Prefilled, including its own ids.
	Cached      uint64
	Transferred uint64 // ids whose KV came from a prefill engine
	Retracted   uint64 // times that a request was sent back to the queue
	Evicted     uint64 // tokens, in whole pages, that left the KV cache
	Steps       uint64
	// Running are the requests in the running batch. Waiting are those before it: in the
	// queue, or waiting for their partner or their KV. Kept are the prefill legs that have
	// their ids and whose KV is kept.
	Running, Waiting, Kept int
	// Owed are the decode legs that have ended and whose pages are kept until they are
	// Written, or their KV has come. They count as aborted above.
	Owed int
	// Overwritten are the aborted decode legs whose KV was on its way into pages that others
	// could have by then.
	Overwritten uint64
	// Lost is schedule time given up because the engine was driven too late.
	Lost time.Duration
}
