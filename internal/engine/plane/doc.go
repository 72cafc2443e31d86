// Package plane is the gateway's side of the weir plane, the batched gRPC wire
// to an engine (proto/weir/plane/v1). An Engine holds one connection and on it
// one session: requests go in by unary Submit, aborts and pings over a control
// stream, and results come back a step at a time, each step holding the new
// ids of every running stream.
//
// The package is a pure core and a thin shell around it. The core decodes a
// step without allocating (frame), knows which generation sits in which slot
// (table), checks what the engine sent and offers it to the sinks (dispatcher),
// and estimates the engine's clock (clock, watchdog); it starts no goroutine
// and reads no socket. The shell (Engine, session) owns the connection and four
// goroutines per session, all of which have ended when Run moves on:
//
//   - the reader, which is Run's own goroutine: receives steps, dispatches them,
//     and is the only one that ever calls a sink
//   - the control writer: sends aborts, batched, and pings
//   - the control reader: receives the answers to pings
//   - the keeper: asks for pings and notices when nothing is heard any more
//
// What must hold:
//
//   - A generation that Generate confirmed gets exactly one terminal delta:
//     the engine's Finish, an integrity error, or the loss of the session.
//   - After Generate returned an error its sink is never called again.
//   - A slot is given to another request only after the engine said Finish for
//     it, or refused the request, so that late ids never reach a stranger.
//   - What does not add up is never delivered. A wrong count ends the one
//     generation; a wrong frame ends the session, because nothing that follows
//     can be trusted.
package plane
