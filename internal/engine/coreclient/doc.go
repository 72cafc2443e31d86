// Package coreclient is the common part of adapters for an engine's core process. On
// such a wire, requests and outputs travel on separate connections. Each step of the
// engine sends one message with the output of all requests, and nothing is
// acknowledged. Fences replace acknowledgements: a fence is a call without side
// effects, sent after requests and aborts. Its answer arrives after all output that
// precedes it.
//
// The core is pure. A Generation is one request and the state of its hand-over. A Table
// holds the generations of a session. An Outbox holds the messages to send and those
// that the engine has received. A Dispatcher gives each generation its deltas. Around
// the core are a Host, which binds the sockets that engines connect to; a Place, in
// which one engine serves at a time; and a Session, which lasts from an engine's input
// connection to its loss. The adapter's Wire encodes and decodes the messages.
//
// Invariants:
//
//   - A generation that Await confirmed gets exactly one terminal delta.
//   - After Await returned an error its sink is never called again.
package coreclient
