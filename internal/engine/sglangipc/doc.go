// Package sglangipc is the gateway's side of the wire between SGLang's
// TokenizerManager and its scheduler: msgpack over ZMTP, ids in and ids out, a
// message per step with the new ids of every running request, without SGLang's own
// HTTP server, TokenizerManager and detokenizer in the path.
//
// The wire is internal to SGLang. Its messages do not name the release, its structures
// are positional and change between releases, and a message that the scheduler cannot
// decode ends the engine. A launcher therefore starts SGLang's schedulers in place of
// its server (integrations/sglang) and writes a manifest with the missing facts: the
// release, the model's limits, and samples of the structures from SGLang's own encoder.
// A request is such a sample with weir's fields filled in; unknown fields keep the
// values of the sample. Outputs are read by the column names in the manifest.
//
// Both sockets are Unix sockets in one folder, bound here: the scheduler's input, to
// which requests are pushed, and its outputs, to which each data-parallel rank connects
// twice, for outputs and for the answers to calls. The launcher's manifest is
// engine.json in the same folder. The processes may start and restart in any order. A
// session begins with an input connection and a usable manifest, and is never revived:
// when it ends, all output connections are closed, and the live processes connect again.
//
// The package is a pure core and a thin shell, as engine/vllmcore is; they share
// engine/coreclient. The core decodes messages without allocating (batch), writes them
// (codec), and checks and offers what the engine sent (dispatcher). The shell owns the
// listeners and these goroutines, all of which have ended when Run returns: one per
// listener, one per connection, and one that waits for the end of each input. The
// goroutine of an input connection is also its session's writer.
//
// Invariants:
//
//   - A generation that Generate confirmed gets exactly one terminal delta.
//   - After Generate returned an error its sink is never called again.
//   - After each message the number of ids received equals the engine's cumulative
//     count, or the generation ends with an error (docs/integrity.md).
//   - No message is sent that could end the scheduler.
package sglangipc
