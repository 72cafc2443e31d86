package kvevents

import (
	"sync"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"weir/internal/fleet/kvindex"
)

// Knowledge is how complete the knowledge of a rank's cache is.
type Knowledge int32

const (
	// Unknown: no event has arrived, or none that could be decoded.
	Unknown Knowledge = iota
	// Partial: the known blocks are resident, and there may be more.
	Partial
	// Known: no other blocks are resident.
	Known
)

// String returns the word that weir engines shows.
func (k Knowledge) String() string { return [...]string{"unknown", "partial", "known"}[k] }

// Options describe a rank.
type Options struct {
	// IndexTokens is the number of tokens of a block of the index.
	IndexTokens int
	// BlockTokens is the number of tokens of a block of the engine, 0 if only its
	// events state it.
	BlockTokens int
	// Root returns the root in the index of prompts for an adapter and with a cache salt.
	// Either is empty if there is none.
	Root func(lora, salt string) kvindex.Block
	// Replays is set if lost batches can be requested.
	Replays bool
	Budget  *Budget
}

// Rank is the known content of the cache of one engine rank. Connected, Live, Replayed,
// Ended and Close must not be called concurrently. The other methods may be called from
// any goroutine.
type Rank struct {
	opts    Options
	decoder Decoder
	tree    *tree

	phase phase
	heard bool   // some batch was taken
	last  uint64 // its number
	sum   uint64 // and a hash of its bytes, by which its publisher is known again
	fresh bool   // no live batch has been the next one since batches were replayed
	asked bool   // for what is missing before the live batch at hand
	lost  bool   // there is no connection

	said      Knowledge    // as far as numbers say
	knowledge atomic.Int32 // and as the names of blocks allow
	empty     atomic.Int64 // when the cache was known to be empty last
	unit      atomic.Int32 // blocks of the index after which one of the engine's ends too
	counts    counts
	closing   sync.Once
}

// phase is what batches that are replayed are for.
type phase uint8

const (
	following  phase = iota // none are awaited
	verifying               // the latest one that was taken, to know its publisher by
	catching                // those that follow it
	differing               // its publisher is another one
	rebuilding              // all from the first one on
	resuming                // those behind the first one of them
)

type counts struct {
	batches, events, passed, misfits, orphans, strange, bad atomic.Uint64
	odd                                                     [NumOdd]atomic.Uint64
	gaps, past, replays, rebuilds, overflows                atomic.Uint64
}

// Stats are counts of what a publisher has sent so far.
type Stats struct {
	Batches, Events uint64
	// Ignored counts events for other caches, odd ones, and those that are inconsistent with the
	// known blocks: blocks of another size, and blocks whose parent is unknown.
	Ignored uint64
	// Odd counts the odd ones.
	Odd [NumOdd]uint64
	// Strange counts removals of unknown blocks.
	Strange uint64
	// Bad counts batches that could not be decoded.
	Bad uint64
	// Gaps counts missing numbers, Past batches that came again or too late.
	Gaps, Past uint64
	// Replays counts requests for lost batches. Rebuilds counts how often all blocks
	// were forgotten, and Overflows how often this was because of the memory bound.
	Replays, Rebuilds, Overflows uint64
	Blocks                       int64 // known blocks
	BlockTokens                  int   // of each; 0: not known
}

// Add adds the counts of another rank.
func (s *Stats) Add(o Stats) {
	s.Batches += o.Batches
	s.Events += o.Events
	s.Ignored += o.Ignored
	for i := range s.Odd {
		s.Odd[i] += o.Odd[i]
	}
	s.Strange += o.Strange
	s.Bad += o.Bad
	s.Gaps += o.Gaps
	s.Past += o.Past
	s.Replays += o.Replays
	s.Rebuilds += o.Rebuilds
	s.Overflows += o.Overflows
	s.Blocks += o.Blocks
	s.BlockTokens = max(s.BlockTokens, o.BlockTokens)
}

// New returns a rank of whose cache nothing is known.
func New(o Options) *Rank {
	r := &Rank{opts: o, tree: newTree(o.Root, o.IndexTokens, o.BlockTokens, o.Budget)}
	r.measure()
	return r
}

// Close releases the rank's memory. Nothing is known of its cache afterwards.
func (r *Rank) Close() {
	r.closing.Do(func() {
		r.knowledge.Store(int32(Unknown))
		r.tree.clear()
	})
}

// Knowledge returns how much is known.
func (r *Rank) Knowledge() Knowledge { return Knowledge(r.knowledge.Load()) }

// Stats returns the counts so far.
func (r *Rank) Stats() Stats {
	c := &r.counts
	s := Stats{
		Batches: c.batches.Load(), Events: c.events.Load(), Bad: c.bad.Load(), Strange: c.strange.Load(),
		Ignored: c.passed.Load() + c.misfits.Load() + c.orphans.Load(),
		Gaps:    c.gaps.Load(), Past: c.past.Load(), Replays: c.replays.Load(), Rebuilds: c.rebuilds.Load(), Overflows: c.overflows.Load(),
		Blocks: r.tree.count.Load(), BlockTokens: int(r.unit.Load()) * r.opts.IndexTokens,
	}
	for i := range c.odd {
		s.Odd[i] = c.odd[i].Load()
		s.Ignored += s.Odd[i]
	}
	return s
}

// Unit returns how many blocks of the index the engine reuses together; 0: not known.
func (r *Rank) Unit() int { return int(r.unit.Load()) }

// Whole returns the number of resident blocks that an engine can reuse for a prompt of so
// many tokens. It reuses only whole blocks of its own size, before the last token, which
// it always computes.
func Whole(blocks, unit, length, indexTokens int) int {
	blocks = min(blocks, max(length-1, 0)/indexTokens)
	return blocks / max(unit, 1) * max(unit, 1)
}

// Resident returns how many blocks of a prompt's chain the engine can reuse. length is
// the prompt's, in tokens. It takes no lock and allocates nothing.
func (r *Rank) Resident(chain []kvindex.Block, length int) int {
	unit := int(r.unit.Load())
	if unit == 0 || r.Knowledge() == Unknown {
		return 0
	}
	// Where a block is resident, all before it are.
	low, high := 0, Whole(len(chain), unit, length, r.opts.IndexTokens)/unit
	for low < high {
		mid := (low + high + 1) / 2
		if _, ok := r.tree.resident.Load(chain[mid*unit-1]); ok {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low * unit
}

// Removed returns when the engine removed the block after the first blocks of a
// chain, if that removal is among the latest ones.
func (r *Rank) Removed(chain []kvindex.Block, blocks int) (at int64, ok bool) {
	end := blocks + int(r.unit.Load())
	if end > len(chain) || end == blocks {
		return 0, false
	}
	g := &r.tree.gone[chain[end-1]%goneSlots]
	at = g.at.Load()
	return at, g.block.Load() == int64(chain[end-1])
}

// Empty returns when the engine's cache was last known to be empty, or to have been empty
// before its known blocks came; 0 if it never was.
func (r *Rank) Empty() int64 { return r.empty.Load() }

// Request is a request of a rank for lost batches: those from From on, if Replay is
// set.
type Request struct {
	Replay bool
	From   uint64
}

// Lost reports that the connection to the publisher has ended.
func (r *Rank) Lost() {
	r.lost = true
	r.publish()
}

// Connected reports that a connection to the publisher was made. Batches that were sent
// before may be lost.
func (r *Rank) Connected() Request {
	r.lost = false
	switch {
	case r.opts.Replays && r.heard:
		return r.ask(verifying, r.last)
	case r.opts.Replays:
		return r.ask(rebuilding, 0)
	case r.heard: // it may be another publisher
		r.lose()
	}
	return Request{}
}

// lose forgets a publisher.
func (r *Rank) lose() {
	r.forget(Unknown)
	r.heard = false
}

func (r *Rank) ask(p phase, from uint64) Request {
	r.phase = p
	r.publish()
	r.counts.replays.Add(1)
	return Request{Replay: true, From: from}
}

// Live processes a published batch at time now. If it requests lost batches, the caller
// must pass the same batch again after these.
func (r *Rank) Live(now int64, seq uint64, batch []byte) Request {
	r.tree.now = now
	asked := r.asked
	r.asked = false
	switch {
	case r.heard && seq == r.last+1:
		r.fresh = false
		r.take(seq, batch)
	case !r.heard && seq == 0:
		r.begin(seq, batch, Known)
	case r.heard && seq <= r.last:
		sum := xxh3.Hash(batch)
		if seq == r.last && sum == r.sum || r.fresh {
			break // it was replayed already
		}
		r.counts.past.Add(1)
		switch {
		case r.opts.Replays && !asked:
			// It may be that of a publisher that began anew. The latest one is known again, or
			// not.
			r.asked = true
			return r.ask(verifying, r.last)
		case seq == 0 && !r.opts.Replays:
			r.begin(seq, batch, Known)
		}
	default: // some are missing
		if !asked {
			r.counts.gaps.Add(1)
		}
		if r.opts.Replays && !asked {
			r.asked = true
			if r.heard {
				return r.ask(verifying, r.last)
			}
			return r.ask(rebuilding, 0)
		}
		r.begin(seq, batch, Partial)
	}
	return Request{}
}

// begin takes the first batch of a publisher, or the first one behind a gap.
func (r *Rank) begin(seq uint64, batch []byte, k Knowledge) {
	if k == Known && r.said != Known {
		r.empty.Store(r.tree.now) // it was, when it began
	}
	r.forget(k)
	r.heard, r.fresh = true, false
	r.take(seq, batch)
}

// Replayed processes a requested batch at time now. Batches are passed in the order in
// which they arrive.
func (r *Rank) Replayed(now int64, seq uint64, batch []byte) {
	r.tree.now = now
	switch r.phase {
	case verifying:
		if r.phase = differing; seq == r.last && xxh3.Hash(batch) == r.sum {
			r.phase = catching
		}
	case rebuilding:
		r.phase = resuming
		k := Partial
		if seq == 0 {
			k = Known
		}
		r.begin(seq, batch, k)
	case catching, resuming:
		switch {
		case seq == r.last+1:
			r.take(seq, batch)
		case seq > r.last:
			r.begin(seq, batch, Partial)
		}
	}
}

// Ended reports at time now the end of a replay; whole is set if it was not cut off.
// Another replay may be needed.
func (r *Rank) Ended(now int64, whole bool) Request {
	was := r.phase
	r.phase = following
	r.fresh = true
	switch {
	case was == verifying || was == differing:
		// It is another publisher, or has no more of what was taken last.
		r.lose()
		if whole {
			return r.ask(rebuilding, 0)
		}
	case was == rebuilding: // there is nothing to rebuild it of
		r.lose()
		if whole {
			// It has published nothing yet, and a cache is empty at the start. If the
			// publisher keeps nothing for replays, the number of the first batch shows that.
			r.said = Known
			r.empty.Store(now)
		}
	}
	r.publish()
	return Request{}
}

// forget begins anew with an empty cache, of which so much is known.
func (r *Rank) forget(k Knowledge) {
	if r.heard {
		r.counts.rebuilds.Add(1)
	}
	r.knowledge.Store(int32(Unknown)) // readers see none of what is being forgotten
	r.tree.clear()
	r.said = k
	r.publish()
}

// publish publishes how much is known. Nothing is known if the first block of every
// prompt looks private, as in SGLang before 0.5.6, and while the blocks may belong to
// another publisher.
func (r *Rank) publish() {
	k := r.said
	if r.lost || r.phase != following || r.tree.doubtful && !r.tree.proven {
		k = Unknown
	}
	r.knowledge.Store(int32(k))
}

// take takes the events of a batch.
func (r *Rank) take(seq uint64, batch []byte) {
	r.last, r.sum = seq, xxh3.Hash(batch)
	r.counts.batches.Add(1)
	r.events(batch)
	r.measure()
	r.publish()
}

func (r *Rank) events(batch []byte) {
	overflow := false
	err := r.decoder.Decode(batch, func(e *Event) {
		r.counts.events.Add(1)
		o := taken
		switch e.Kind {
		case Stored:
			o = r.tree.store(e)
		case Removed:
			var strange int
			strange, o = r.tree.remove(e)
			r.counts.strange.Add(uint64(strange))
		case Cleared:
			r.tree.clear()
			r.said = Known
			r.empty.Store(r.tree.now)
		}
		switch o {
		case passed:
			r.counts.passed.Add(1)
		case misfit:
			r.counts.misfits.Add(1)
		case orphaned:
			r.counts.orphans.Add(1)
		case full:
			overflow = true
		}
	}, func(o Odd) { r.counts.odd[o].Add(1) })
	switch {
	case err != nil: // it may have removed something
		r.counts.bad.Add(1)
		r.forget(Partial)
	case overflow:
		r.counts.overflows.Add(1)
		r.forget(Partial)
	}
}

// measure notes after how many blocks of the index one of the engine's ends.
func (r *Rank) measure() {
	size, index := r.tree.size, r.opts.IndexTokens
	if size <= 0 {
		return
	}
	a, b := size, index
	for b != 0 {
		a, b = b, a%b
	}
	r.unit.Store(int32(min(size/a, 1<<20)))
}
