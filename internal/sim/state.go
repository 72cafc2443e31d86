package sim

import (
	"time"

	"weir/internal/infer"
	"weir/internal/workload/content"
)

type phase uint8

const (
	phaseFree     phase = iota
	phaseAwait          // a leg that is not queued yet, as its partner is not met
	phaseWaiting        // in the queue, also after a retraction
	phaseTransfer       // its pages are reserved, and its KV is awaited or under way
	phasePrefill        // admitted, its prompt is not complete
	phaseDecode         // generating
	phaseKept           // a prefill leg that has its ids, and whose KV is kept
)

// ending is the way in which a request ended: Abort, Stop and similar calls, a full queue,
// or a timeout.
type ending uint8

const (
	notEnded ending = iota
	endAborted
	endStopped
	endDisplaced // by a request of a higher priority, in a full queue
	endBroken    // its pair came to nothing
	endFetched   // the KV that was kept of it was fetched
	endExpired   // it was not, and its lease is over
)

func (e ending) reason() infer.Reason {
	switch e {
	case endStopped:
		return infer.ReasonStop
	case endFetched, endExpired:
		return infer.ReasonLength // or what it was when its KV was kept
	}
	return infer.ReasonAbort
}

// request is the part of a request that the engine's innermost loop reads: one cache line.
// The rest is in details.
type request struct {
	stream    content.Stream
	prompt    int32
	generated int32
	max       int32 // of generated
	prefilled int32 // tokens whose KV is there; of no meaning once it generates
	mark      int32 // the length at which the KV cache wants to know
	room      int32 // tokens that its pages hold
	rank      int32
	phase     phase
	ended     ending
	held      bool // stalled
	endless   bool // no end id comes by chance
	special   bool // it has a minimum, stop ids, a script, a stall, or an interval
}

// length is the number of tokens so far, prompt and output.
func (r *request) length() int { return int(r.prompt + r.generated) }

// details are the rest of a request.
type details struct {
	min        int
	ignoreEOS  bool
	stall      bool
	stallAfter int
	stop       []uint32
	script     []uint32
	scripted   bool
	priority   int

	interval int
	unsent   []uint32 // generated and held back for the interval

	leg      Leg
	patience time.Duration
	lease    time.Duration
	fresh    bool         // finds nothing in the cache
	pages    Pages        // what becomes of them if it is aborted
	offered  bool         // its KV can be had
	spoiled  bool         // the KV that it has is not of its prompt
	ready    int64        // when its transfer ends, never before it began
	until    int64        // when its patience or its lease ends
	reason   infer.Reason // of a leg whose KV is kept
	failure  *infer.Error // of a pair that came to nothing

	salt            uint64
	lora, cacheSalt string
	ids             []uint32 // of prompt and output, with Options.KVEvents
	keys            []uint64 // of the full pages of prompt and output
	table           []pageID // the pages it holds
	keyed           int      // of the table, those in the tree

	chunk       int // prompt tokens in the step under way
	admitted    bool
	cached      int
	retractions int
	matched     int64 // the id that ended it, -1 when none did
	stamps      infer.Stamps
}

// set takes over a request. Slices that can be used again are.
func (c *Core) set(ref Ref, p *Request, rank int, created, now int64) {
	c.requests[ref] = request{
		stream:  p.stream,
		prompt:  int32(p.prompt),
		max:     int32(p.max),
		mark:    never,
		room:    never,
		rank:    int32(rank),
		phase:   phaseWaiting,
		endless: p.endless,
		special: p.min > 0 || len(p.stop) > 0 || p.scripted || p.stall || p.interval > 1,
	}
	d := &c.details[ref]
	*d = details{
		min: p.min, ignoreEOS: p.ignoreEOS, stall: p.stall, stallAfter: p.stallAfter,
		stop: p.stop, script: p.script, scripted: p.scripted, priority: p.priority,
		interval: p.interval, unsent: d.unsent[:0],
		leg: p.leg, patience: p.patience, lease: p.lease, fresh: p.fresh, pages: p.pages, ready: forever, until: forever,
		salt: p.salt, lora: p.lora, cacheSalt: p.cacheSalt, ids: p.ids, keys: p.keys, table: d.table[:0],
		matched: -1,
		stamps:  infer.Stamps{ServerCreated: created, QueueStart: now},
	}
}

// alloc returns a free ref.
func (c *Core) alloc() Ref {
	if n := len(c.free); n > 0 {
		ref := c.free[n-1]
		c.free = c.free[:n-1]
		return ref
	}
	c.requests = append(c.requests, request{})
	c.details = append(c.details, details{})
	return Ref(len(c.requests) - 1)
}
