package coreclient

import "weir/internal/engine/mux"

// The reasons of such wires. The first group ends one generation, the second the
// session.
const (
	FaultCount    mux.FaultReason = "count_mismatch"    // another number of ids than the engine counts
	FaultLength   mux.FaultReason = "length_mismatch"   // ended for its length with fewer ids than that
	FaultStop     mux.FaultReason = "stop_mismatch"     // ended by an id that is not the last one received
	FaultPrompt   mux.FaultReason = "prompt_mismatch"   // another number of prompt ids than were sent
	FaultLogprobs mux.FaultReason = "logprobs_mismatch" // log probabilities that are not those of the ids

	FaultRank mux.FaultReason = "engine_index" // outputs of another engine than the connection's
)
