// Package sglangipc is the gateway's side of the wire between SGLang's
// TokenizerManager and its scheduler: msgpack over ZMTP, ids in and ids out, a
// message per step with the new ids of every running request, without SGLang's own
// HTTP server, TokenizerManager and detokenizer in the path.
//
// The wire is SGLang's own affair and not made for others: nothing on it says which
// release speaks, its structures are positional and change between releases, and a
// message that the scheduler cannot decode ends the engine. So a launcher, which
// starts SGLang's schedulers in the place of its server (integrations/sglang), hands
// over what they do not say: the release, the model's bounds, and the structures
// themselves, as samples that SGLang's own encoder wrote (the manifest). Requests are
// those samples with weir's fields put in; what weir does not know of stays as the
// engine wrote it. Outputs are read by the names that the engine gives its columns.
//
// Both sockets are Unix sockets in one folder, bound here: the scheduler's input,
// where requests are pushed, and its outputs, where a scheduler connects twice, for
// outputs and for the answers to calls; each data-parallel rank does. The launcher's
// manifest lies beside them as engine.json. In whatever order they start or start again,
// they find each other. A session begins with an input connection and a manifest that
// can be used, and is never revived: with its end every output connection is closed,
// and what lives connects again.
//
// The package is a pure core and a thin shell, as engine/vllmcore is; they share
// engine/coreclient. The core decodes messages without allocating (batch), writes them
// (codec), and checks and offers what the engine sent (dispatcher). The shell owns
// the listeners and these goroutines, all of which have ended when Run returns: one
// per listener, one per connection, which of an input is its session's writer too, and
// one that waits for the end of each input.
//
// What must hold:
//
//   - A generation that Generate confirmed gets exactly one terminal delta.
//   - After Generate returned an error its sink is never called again.
//   - With each message the ids received equal the engine's cumulative count, or the
//     generation ends with an error (docs/integrity.md).
//   - Nothing is sent that the scheduler does not survive.
package sglangipc
