// Package plane is the gateway's side of the weir plane, the batched gRPC wire to an engine
// (proto/weir/plane/v1). An Engine holds one session: requests go in many in a message by
// Submissions, or one by one by Submit, aborts and pings over a control stream, and results come
// back a step at a time, each step holding the new ids of every running stream.
//
// A session has two connections. Describe, Submit and Control run over one of grpc-go's.
// Steps, which is a message per engine step and the hot path of weir, has its own, read
// by stepStream without a second goroutine. Small requests go over it too (submissions), and
// their answers come with the steps. When either connection ends, the session ends.
//
// The package is a pure core and a thin shell around it. The core extracts messages from
// DATA frames (messages), checks headers and trailers (answer), decodes a step without
// allocating (frame), maps slots to generations (table), checks the engine's output and
// offers it to the sinks (dispatcher), and estimates the engine's clock and measures its
// silence (package remote). It starts no goroutine and reads no socket. The shell
// (Engine, session, stepStream) owns the connections and five goroutines per session,
// all of which have ended when Run moves on:
//
//   - the reader, which is Run's own goroutine: reads the connection of the steps,
//     dispatches them, and is the only one that ever calls a sink
//   - the submission writer: writes the requests that came while another goroutine wrote
//     its own
//   - the control writer: sends aborts, batched, and pings
//   - the control reader: receives the answers to pings
//   - the keeper: requests pings and signs of life on both connections, and ends the
//     session when none arrive
//
// Invariants:
//
//   - A generation that Generate confirmed gets exactly one terminal delta:
//     the engine's Finish, an integrity error, or the loss of the session.
//   - After Generate returned an error its sink is never called again.
//   - A slot is reused only after the engine has sent Finish for it or refused its
//     request. If the request went in a batch, its answer comes no later than its
//     Finish. Late ids therefore never reach another request.
//   - Output that fails a check is never delivered. A wrong count ends one generation. A
//     wrong frame ends the session, because no later frame can be trusted.
package plane
