package vllmcore

import (
	"sync"
	"sync/atomic"

	"weir/internal/engine"
	"weir/internal/infer"
)

// phase is how far the hand-over of a generation is.
type phase uint32

const (
	// handing: nobody knows yet whether the engine has the request.
	handing phase = iota
	// accepted: it has, and Generate returns the generation. The sink is the
	// reader's to call, and its session's end.
	accepted
	// abandoned: Generate returns an error. The sink gets nothing.
	abandoned
)

// generation is one request on one engine. It implements engine.Generation.
type generation struct {
	sink    engine.Sink
	id      string
	attempt uint32
	limit   int  // of ids
	prompt  int  // ids in it
	scored  bool // its ids come with log probabilities, and with
	top     int  // so many alternatives each
	end     []uint32
	stop    []uint32
	session *session

	written  atomic.Int64 // when its ADD was written; 0: it was not yet
	aborting atomic.Bool  // an abort was asked for
	over     atomic.Bool  // nothing more comes of it

	phase   atomic.Uint32 // a phase; left handing under mu
	mu      sync.Mutex
	settled chan struct{} // closed when it left handing
	acked   int64         // when it was accepted
	failure *infer.Error  // why the engine, or its loss, had it abandoned

	// The rest belongs to whoever dispatches.
	total  int
	ended  bool // the terminal delta was offered, or never will be
	cached int  // ids of the prompt that were not computed; -1: not said
	stamps infer.Stamps
	next   *generation // what followed it in the engine's last message
}

func newGeneration(s *session, req *infer.Request, attempt uint32, sink engine.Sink) *generation {
	g := &generation{
		sink: sink, id: req.ID, attempt: attempt, limit: req.MaxTokens, prompt: len(req.Prompt),
		stop: req.StopIDs, session: s, settled: make(chan struct{}), cached: -1,
	}
	if !req.IgnoreEOS {
		g.end = s.opts.EndIDs
	}
	if req.Logprobs != nil {
		g.scored, g.top = true, *req.Logprobs
	}
	return g
}

// Abort implements engine.Generation.
func (g *generation) Abort() {
	if g.over.Load() || g.aborting.Swap(true) {
		return
	}
	g.session.out.abort(g)
}

// accept ends the hand-over well, at a moment of trace's clock. It reports
// whether the generation is accepted, by this or before.
func (g *generation) accept(at int64) bool {
	switch phase(g.phase.Load()) {
	case accepted:
		return true
	case abandoned:
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if phase(g.phase.Load()) == handing {
		g.acked = at
		g.phase.Store(uint32(accepted))
		close(g.settled)
	}
	return phase(g.phase.Load()) == accepted
}

// abandon ends the hand-over badly, for a reason or because its caller left. It
// reports false when it had ended well before.
func (g *generation) abandon(why *infer.Error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch phase(g.phase.Load()) {
	case accepted:
		return false
	case handing:
		g.failure = why
		g.phase.Store(uint32(abandoned))
		close(g.settled)
	}
	return true
}

// deliver offers a delta, which is as good as an acknowledgement. It reports
// false when nobody wants it any more.
func (g *generation) deliver(d *infer.Delta) bool {
	if g.ended || !g.accept(d.Received) {
		return false
	}
	if d.Finish != nil {
		g.ended = true
	}
	g.sink.Offer(d)
	return true
}
