// Package sglang implements SGLang's own API, POST /generate, for weir's callers: a
// text or ids come in, and text and ids go out, whatever engine answers. It is a
// dialect (package dialect). docs/generate.md is its manual.
//
// A caller chooses here what a server setting decides in SGLang: whether the events
// of a stream repeat all of the answer so far (incremental_streaming_output), and
// whether there is text at all (skip_tokenizer_init).
package sglang
