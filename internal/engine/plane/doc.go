// Package plane is the gateway's side of the weir plane, the batched gRPC wire
// to an engine (proto/weir/plane/v1). An Engine holds one session: requests go in
// by unary Submit, aborts and pings over a control stream, and results come back a
// step at a time, each step holding the new ids of every running stream.
//
// A session has two connections. Describe, Submit and Control run over one of
// grpc-go's. Steps, which is a message per engine step and the hot path of weir,
// has its own, read by stepStream without a second goroutine. The end of either is
// that of the session.
//
// The package is a pure core and a thin shell around it. The core takes messages
// out of DATA (messages), judges headers and trailers (answer), decodes a step
// without allocating (frame), knows which generation sits in which slot (table),
// checks what the engine sent and offers it to the sinks (dispatcher), and knows
// the engine's clock and its silence (package remote); it starts no goroutine and
// reads no socket. The shell (Engine, session, stepStream) owns the connections and four
// goroutines per session, all of which have ended when Run moves on:
//
//   - the reader, which is Run's own goroutine: reads the connection of the steps,
//     dispatches them, and is the only one that ever calls a sink
//   - the control writer: sends aborts, batched, and pings
//   - the control reader: receives the answers to pings
//   - the keeper: asks for pings, and for signs of life on either connection, and
//     notices when there are none any more
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
