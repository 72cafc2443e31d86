// Package kvindex says which part of a prompt is resident in which KV cache, as
// far as the gateway's own placements tell.
//
// A prompt is a chain of blocks of BlockTokens ids each. The hash of a block
// covers all ids before it, and a root that holds whatever else decides whether
// KV can be reused (model, LoRA adapter, salt). So a block's hash alone stands for
// a whole prefix, and a run of consecutive blocks that one placement added is kept
// as one segment, found by the hash of its first block. Where two prompts part
// inside of a segment, the second one's rest is a segment of its own: nothing is
// ever split.
//
// A Cache is the KV cache of one engine rank during one life of the engine. It
// keeps its segments in the order of use, a path's root newer than its leaf, and
// evicts by volume: what was used longest ago goes when more was placed than the
// rank's KV holds. Time plays no part in it.
//
// Match takes no lock and allocates nothing, and so never waits for a placement.
// Placements in different caches meet only in the short lock of a segment whose
// holders they change.
package kvindex
