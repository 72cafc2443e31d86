package plane

import (
	"sync/atomic"

	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
)

// generation is one request in one slot. It implements engine.Generation.
type generation struct {
	// noticed is set if the current step has notices of the slot. The reader's.
	noticed   bool
	reaborted bool // the reader's
	slot      uint32
	mux.Generation
	aborts *outbox

	owed atomic.Int32 // bytes of the submission, if that needs an answer among the notices
	// The content of the current step's notices for the slot, and the place of its last ids in the
	// step's columns, so that both travel in one delta. The reader's.
	last    int32
	created atomic.Uint64 // of the answer, on the engine's clock; 0: not reported
	stamps  *planepb.Stamps
	finish  *planepb.Finish
	// prompted is the engine's count of a prompt with media, 0 until it says it. The reader's.
	prompted int32
	told     *infer.Stamps // that were handed over last; the reader's
}

// Abort implements engine.Generation.
func (g *generation) Abort() {
	if g.AskAbort() {
		g.aborts.abort(g.slot, g.ID)
	}
}
