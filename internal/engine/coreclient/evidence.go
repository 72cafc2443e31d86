package coreclient

import "weir/internal/engine/mux"

// The reasons of faults on such wires. The first group ends one generation, the
// second the session.
const (
	FaultCount    mux.FaultReason = "count_mismatch"    // the number of ids differs from the engine's count
	FaultLength   mux.FaultReason = "length_mismatch"   // ended for its length with fewer ids than the limit
	FaultStop     mux.FaultReason = "stop_mismatch"     // ended by an id that is not the last id received
	FaultPrompt   mux.FaultReason = "prompt_mismatch"   // the engine counts another number of prompt ids than were sent
	FaultLogprobs mux.FaultReason = "logprobs_mismatch" // log probabilities do not match the ids

	FaultRank mux.FaultReason = "engine_index" // outputs of another engine than that of the connection
)
