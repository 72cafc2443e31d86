// Package kvevents knows what the KV cache of an engine rank holds by the events that
// the engine publishes: blocks stored, blocks removed, all cleared. vLLM and SGLang
// publish them alike, as numbered batches of msgpack over ZeroMQ.
//
// It is pure. A Rank is handed the batches of one publisher, live ones and those that
// were asked for again, and says what to ask for. Package kvsub has the sockets.
//
// # What is known
//
// A publisher that was heard from its first batch on is Known: what its events do not
// hold is not there. One that was running before is Partial: what was stored since is
// there, and of the rest nothing can be said, so it is not taken for empty. A batch that
// is missing is asked for. If it cannot be had, the rank is forgotten, because what it
// removed would be believed for ever, and is Partial until its engine clears it or
// restarts.
//
// # Whose blocks
//
// The hash of a block is the engine's own affair: vLLM's depends on a random seed. Here
// it is a name, by which blocks follow one another and are removed. What a block holds is
// in the event: its token ids, and the LoRA adapter. Of these come the blocks of package
// kvindex, by which a prompt is looked up.
//
// A prompt with a salt or with media cannot use a block of the same ids without. vLLM
// says so beside each block (extra_keys). SGLang says it of salts in its latest releases
// only, but the hash of a prompt's first block is one that can be computed: where it
// differs, the block is somebody's own. Such blocks are kept by name alone.
//
// # Bounds
//
// Whatever a publisher sends, a batch is decoded in memory proportional to its bytes, and
// the blocks of all ranks together take no more than their Budget: beyond it the rank
// that grew is forgotten.
package kvevents
