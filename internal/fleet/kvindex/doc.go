// Package kvindex finds the part of a prompt that is resident in each KV cache,
// according to the gateway's own placements.
//
// A prompt is a chain of blocks of BlockTokens ids each. The hash of a block covers all
// ids up to its end and a root with everything else that decides whether KV can be
// reused (model, LoRA adapter, salt). The hash of one block therefore identifies a
// whole prefix. Consecutive blocks that one placement added form a segment, which is
// found by the hash of its first block. If two prompts diverge within a segment, the
// rest of the second one becomes a segment: segments are never split.
//
// A Cache models the KV cache of one engine rank during one life of the engine. It
// keeps its segments in order of use, the root of a path newer than its leaf. When more
// was placed than the rank's KV cache holds, the least recently used segments are
// evicted. Time plays no part.
//
// Match takes no lock and allocates nothing, so it never waits for a placement.
// Placements in different caches contend only for the lock of a segment whose holders
// they change, which is held briefly.
package kvindex
