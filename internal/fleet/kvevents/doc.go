// Package kvevents tracks the content of an engine rank's KV cache from the events that
// the engine publishes: blocks stored, blocks removed, all blocks cleared. vLLM and
// SGLang both publish numbered batches of msgpack over ZeroMQ.
//
// The package is pure. A Rank receives the batches of one publisher, both live and
// replayed, and returns the batches to request again. Package kvsub owns the sockets.
//
// # What is known
//
// A rank is Known if all batches of its publisher were received: a block that its events
// do not mention is not resident. It is Partial if the publisher was running before:
// blocks stored since then are resident, and the rest is unknown rather than absent. A
// missing batch is requested again. If it is not available, the blocks of the rank are
// forgotten, because blocks that the batch removed would otherwise be believed resident
// for ever. The rank is then Partial until its engine clears the cache or restarts.
//
// # Whose blocks
//
// The hash of a block has no meaning outside of the engine: vLLM's depends on a random
// seed. Here it is only a name, by which events refer to parents and to removed blocks.
// The event has the content of a block, its token ids and LoRA adapter. The blocks of
// package kvindex, in which prompts are looked up, are computed from these.
//
// A prompt with a salt or media cannot use a block with the same ids but without them.
// vLLM reports salt and media with each block (extra_keys), the salt with a prompt's first.
// SGLang reports salts from 0.5.18 on (cache_salt). Blocks with a salt are found by prompts
// with the same one: their chain begins at another root. All other blocks with keys are
// private, and kept by name only. So is a first block of SGLang's that names no salt and does
// not have the hash that its ids alone give.
//
// # Bounds
//
// A batch is decoded in memory proportional to its size, whatever its content. The blocks
// of all ranks together take at most their Budget. When a rank grows beyond it, the
// blocks of that rank are forgotten.
package kvevents
