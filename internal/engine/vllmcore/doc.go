// Package vllmcore is the gateway's side of the wire between a vLLM front end and its engine
// cores: msgpack over ZMTP, ids in and ids out, without vLLM's own API server in the path.
// An Engine waits for the cores of one model, the ranks of a data-parallel group, to dial in
// (vllm serve --headless), or is given the sockets that vLLM has bound for its front end.
// The caller chooses the rank for each request.
//
// An engine sends HELLO on the handshake socket, receives two addresses, loads its model,
// and connects to both. On the input connection it describes itself and then reads requests.
// On the output connection it writes one message per step with the new ids of every running
// request. Each pair of connections is a session.
//
// The package is a pure core and a thin shell around it. The core decodes messages without
// allocating (batch), checks what the engine sent and offers it to the sinks (dispatcher),
// and keeps a lockstep group awake (waves); it starts no goroutine and reads no socket.
// Package coreclient is the part shared with sglangipc. The shell owns the listeners and
// these goroutines, all of which have ended when Run returns:
//
//   - one per listener, which accepts
//   - one per connection to the handshake socket, until the engine is ready
//   - one per input connection, which serves the session to its end: it writes, and
//     watches over the engine's silence
//   - one that waits for the end of each input connection
//   - one per output connection, which reads and dispatches: it calls the sinks
//
// Invariants:
//
//   - A generation that Generate confirmed gets exactly one terminal delta. The engine sends
//     no final output for a request that the front end aborted. The adapter makes its
//     terminal delta when the engine has answered a call sent after the abort, because then
//     no more output for it can arrive.
//   - After Generate returned an error its sink is never called again.
//   - This wire has no cumulative counts. Within a connection nothing is lost or reordered,
//     so a loss always shows as a broken connection. When a connection breaks, the
//     generations of its session end with an error, even if the engine connects again.
//     docs/integrity.md lists the other checks.
//   - Only messages that every known release decodes are sent, because a message that an
//     engine cannot decode ends its input thread.
package vllmcore
