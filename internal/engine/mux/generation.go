package mux

import (
	"sync"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/infer"
)

// phase states who may call a generation's sink.
type phase uint32

const (
	// handing: the hand-over is under way. Deltas are offered under the generation's
	// lock, so that giving up excludes them.
	handing phase = iota
	// accepted: Generate returns the generation, or has; the reader offers freely.
	accepted
	// abandoned: Generate returns an error, or has. The sink gets nothing more.
	abandoned
)

// Generation is one request on one engine. The methods that are documented as the
// reader's are called by one goroutine at a time, the one that offers deltas.
//
// The reader pays one atomic load per delta to know that the hand-over is over; only
// deltas that come before that take the lock.
type Generation struct {
	// The fields that each delta needs come first, to lie in one cache line.

	sink  engine.Sink
	phase atomic.Uint32 // a phase; written under mu
	// ended is set if the terminal delta was offered. The reader writes it, while
	// handing under mu.
	ended bool
	// Scored is set if its ids come with log probabilities, and with Top alternatives
	// each.
	Scored  bool
	Attempt uint32
	Limit   int // of ids
	Total   int // ids delivered; the reader's

	ID     string // of the request, on the wire
	Top    int
	Cached int // ids of the prompt that were not computed; -1: not reported; the reader's

	aborting atomic.Bool // an abort was asked for
	gone     atomic.Bool // the engine has nothing more to say about it

	mu    sync.Mutex
	heard int64 // when the engine was first heard of it while handing; 0: it was not
	why   *infer.Error
	// settled is closed when the hand-over is over. It is nil if no goroutine waits for
	// the engine's answer to it.
	settled chan struct{}
}

// Init begins the hand-over of a request.
func (g *Generation) Init(req *infer.Request, attempt uint32, sink engine.Sink) {
	g.ID, g.Attempt, g.Limit, g.Cached, g.sink = req.ID, attempt, req.MaxTokens, -1, sink
	if req.Logprobs != nil {
		g.Scored, g.Top = true, *req.Logprobs
	}
}

// InitSettled is Init where the engine's first word of the request is what accepts it,
// and gives what is closed when the hand-over is over.
func (g *Generation) InitSettled(req *infer.Request, attempt uint32, sink engine.Sink) {
	g.Init(req, attempt, sink)
	g.settled = make(chan struct{})
}

// Settled is closed when the hand-over is over.
func (g *Generation) Settled() <-chan struct{} { return g.settled }

// Offer offers a delta, unless the hand-over was abandoned or the terminal delta was
// offered before, and says whether it did. It is the reader's.
func (g *Generation) Offer(d *infer.Delta) bool {
	switch phase(g.phase.Load()) {
	case abandoned:
		return false
	case handing:
		g.mu.Lock()
		defer g.mu.Unlock()
		if phase(g.phase.Load()) == abandoned {
			return false
		}
		g.hear(d.Received)
	}
	if g.ended {
		return false
	}
	if d.Finish != nil {
		g.ended = true
	}
	g.sink.Offer(d)
	return true
}

// hear takes in a sign that the engine has the request.
func (g *Generation) hear(at int64) {
	if g.heard == 0 {
		g.heard = at
	}
	if g.settled != nil && phase(g.phase.Load()) == handing {
		g.settle(accepted)
	}
}

func (g *Generation) settle(p phase) {
	g.phase.Store(uint32(p))
	if g.settled != nil {
		close(g.settled)
	}
}

// Hear takes in that the engine has the request, at a moment of trace's clock. It is
// the reader's.
func (g *Generation) Hear(at int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if phase(g.phase.Load()) == handing {
		g.hear(at)
	}
}

// Accept ends the hand-over well. It reports false when the session ended first and
// took the generation with it, unheard.
func (g *Generation) Accept() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if phase(g.phase.Load()) == handing {
		g.settle(accepted)
	}
	return phase(g.phase.Load()) == accepted
}

// GiveUp ends the hand-over with an error, for Generate. If output for the request has
// arrived, the engine has the request, whatever happened to the hand-over: the
// generation is then accepted, unless the engine refused it nevertheless. heard is the
// time of that output.
func (g *Generation) GiveUp(refused bool) (heard int64, kept bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if phase(g.phase.Load()) == handing {
		if g.heard != 0 && (!refused || g.ended) {
			g.settle(accepted)
		} else {
			g.settle(abandoned)
		}
	}
	return g.heard, phase(g.phase.Load()) == accepted
}

// Abandon ends the hand-over with an error if there was no output for the request, and
// reports whether the hand-over is abandoned, now or before: Generate then returns the
// error, and the sink is not called.
func (g *Generation) Abandon(why *infer.Error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if phase(g.phase.Load()) == handing && g.heard == 0 {
		g.why = why
		g.settle(abandoned)
	}
	return phase(g.phase.Load()) == abandoned
}

// Outcome returns how a hand-over ended: when it was accepted, and why it was
// abandoned.
func (g *Generation) Outcome() (at int64, why *infer.Error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.heard, g.why
}

// Forget frees what Settled returns, for a hand-over that is over and for which nobody waits any
// more.
func (g *Generation) Forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if phase(g.phase.Load()) != handing {
		g.settled = nil
	}
}

// Handing reports whether nothing is known yet of whether the engine has the request.
// It is the reader's.
func (g *Generation) Handing() bool {
	if phase(g.phase.Load()) != handing {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.heard == 0
}

// Abandoned reports whether the hand-over ended badly.
func (g *Generation) Abandoned() bool { return phase(g.phase.Load()) == abandoned }

// Over reports whether no goroutine waits for its output. Only the reader calls it.
func (g *Generation) Over() bool { return g.ended || g.Abandoned() }

// AskAbort records that an abort was requested, and reports whether it must be sent to
// the engine.
func (g *Generation) AskAbort() bool { return !g.gone.Load() && !g.aborting.Swap(true) }

// AskAgain makes the next AskAbort send the abort once more.
func (g *Generation) AskAgain() { g.aborting.Store(false) }

// Aborting reports whether an abort was asked for.
func (g *Generation) Aborting() bool { return g.aborting.Load() }

// Leave notes that the engine has nothing more to say about it.
func (g *Generation) Leave() { g.gone.Store(true) }

// Gone reports whether Leave was called.
func (g *Generation) Gone() bool { return g.gone.Load() }
