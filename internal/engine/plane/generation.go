package plane

import (
	"weir/internal/engine/mux"
	"weir/internal/engine/plane/planepb"
	"weir/internal/infer"
)

// generation is one request in one slot. It implements engine.Generation.
type generation struct {
	// noticed is set if the current step has notices of the slot. The reader's.
	noticed bool
	slot    uint32
	mux.Generation
	aborts *outbox

	// The rest belongs to the reader alone.
	reaborted bool
	// What the current step's notices say of the slot, and where in the step's
	// columns its last ids are, so that both travel in one delta.
	stamps *planepb.Stamps
	finish *planepb.Finish
	last   int
	// prompted is the engine's count of a prompt with media, 0 until it says it.
	prompted int
	told     *infer.Stamps // that were handed over last
}

// Abort implements engine.Generation.
func (g *generation) Abort() {
	if g.AskAbort() {
		g.aborts.abort(g.slot, g.ID)
	}
}
