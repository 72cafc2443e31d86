// Package sglang is SGLang's own API, POST /generate, as weir speaks it to
// its callers: a text or ids come in, and text and ids go out, whatever engine is
// behind. It is a dialect as package dialect describes them. docs/generate.md is its
// manual.
//
// Two things are the caller's choice here that are a server's setting at SGLang:
// whether the events of a stream repeat all of the answer so far
// (incremental_streaming_output), and whether there is text at all
// (skip_tokenizer_init).
package sglang
