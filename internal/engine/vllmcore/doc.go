// Package vllmcore is the gateway's side of the wire between a vLLM front end and
// its engine cores: msgpack over ZMTP, ids in and ids out, without vLLM's own API
// server in the path. An Engine waits for the cores of one model, the ranks of a
// data-parallel group, to dial in (vllm serve --headless), or is given the sockets
// that vLLM has bound for its front end. Which rank a request goes to is its caller's to
// say.
//
// An engine says HELLO on the handshake socket, is told two addresses, loads its
// model, and connects to both: to the input, where it says what it is and then
// reads requests, and to the output, where it writes one message per step with the
// new ids of every running request. Each pair of connections is a session.
//
// The package is a pure core and a thin shell around it. The core decodes messages
// without allocating (batch), checks what the engine sent and offers it to the
// sinks (dispatcher), and keeps a lockstep group awake (waves); it starts no goroutine
// and reads no socket. What it has in common with engine/sglangipc is engine/coreclient. The
// shell owns the listeners and these goroutines, all of which have ended when Run
// returns:
//
//   - one per listener, which accepts
//   - one per connection to the handshake socket, until the engine is ready
//   - one per input connection, which serves the session to its end: it writes, and
//     watches over the engine's silence
//   - one that waits for the end of each input connection
//   - one per output connection, which reads and dispatches: it calls the sinks
//
// What must hold:
//
//   - A generation that Generate confirmed gets exactly one terminal delta. The
//     wire says nothing of a request that the front end aborted; its terminal delta
//     is made when the engine has answered a call sent after the abort, because then
//     nothing more of it can come.
//   - After Generate returned an error its sink is never called again.
//   - There are no cumulative counts on this wire, so what shows a loss is the
//     connection: nothing is lost or turned around within one. When it breaks, its
//     session's generations end with an error, even if the engine connects again.
//     What can be checked besides is checked (docs/integrity.md).
//   - Only what every known release decodes is sent, because an engine does not
//     survive a message that it cannot decode: its input thread ends.
package vllmcore
