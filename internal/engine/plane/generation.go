package plane

import (
	"sync"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
)

// phase says who may call a generation's sink.
type phase uint32

const (
	// handing: Submit is under way. Deltas are offered under the generation's
	// lock, so that giving up excludes them.
	handing phase = iota
	// accepted: Generate has returned the generation; the reader offers freely.
	accepted
	// abandoned: Generate has returned an error, or is about to. The sink gets
	// nothing more.
	abandoned
)

// generation is one request in one slot. It implements engine.Generation.
//
// The reader pays one atomic load per delta to know that the hand-over is
// over; only deltas that overtake Submit's reply take the lock.
type generation struct {
	sink    engine.Sink
	id      string // of the request, on the wire
	attempt uint32
	limit   int
	scored  bool // its ids come with log probabilities, and with
	top     int  // so many alternatives each
	slot    uint32
	aborts  *outbox

	aborting atomic.Bool // an abort was asked for
	over     atomic.Bool // the engine has nothing more to say about it

	phase atomic.Uint32 // a phase; written under mu
	mu    sync.Mutex
	heard int64 // when the first delta came while handing; 0: none has

	// ended says that the terminal delta was offered. It is written by the
	// reader, while handing under mu.
	ended bool

	// The rest belongs to the reader alone.
	total     int
	reaborted bool
	// What the current step's notices say of the slot, and where in the step's
	// columns its last ids are, so that both travel in one delta.
	noticed bool
	stamps  *planepb.Stamps
	finish  *planepb.Finish
	last    int
	// prompted is the engine's count of a prompt with media, 0 until it says it.
	prompted int
}

// Abort implements engine.Generation.
func (g *generation) Abort() {
	if g.over.Load() || g.aborting.Swap(true) {
		return
	}
	g.aborts.abort(g.slot, g.id)
}

// deliver offers d to the sink unless the hand-over was abandoned. Only the
// reader calls it.
func (g *generation) deliver(d *infer.Delta) bool {
	switch phase(g.phase.Load()) {
	case abandoned:
		return false
	case handing:
		g.mu.Lock()
		defer g.mu.Unlock()
		if phase(g.phase.Load()) == abandoned {
			return false
		}
		if g.heard == 0 {
			g.heard = d.Received
		}
	}
	if d.Finish != nil {
		g.ended = true
	}
	g.sink.Offer(d)
	return true
}

// accept ends the hand-over well. It reports false when the session ended
// first and took the generation with it, unheard.
func (g *generation) accept() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if phase(g.phase.Load()) == abandoned {
		return false
	}
	g.phase.Store(uint32(accepted))
	return true
}

// abandon ends the hand-over badly. A delta that was already offered says that
// the engine has the request, whatever became of Submit's reply: then, unless
// the engine refused it all the same, the generation is accepted after all and
// abandon returns the moment of that delta.
func (g *generation) abandon(refused bool) (heard int64, kept bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.heard != 0 && (!refused || g.ended) && phase(g.phase.Load()) != abandoned {
		g.phase.Store(uint32(accepted))
		return g.heard, true
	}
	g.phase.Store(uint32(abandoned))
	return g.heard, false
}

// lose abandons a generation that is still being handed over and was not heard
// of, and reports whether it was one. Its Generate then returns the error, and
// the sink is not bothered.
func (g *generation) lose() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch phase(g.phase.Load()) {
	case abandoned:
		return true
	case handing:
		if g.heard == 0 {
			g.phase.Store(uint32(abandoned))
			return true
		}
	}
	return false
}
