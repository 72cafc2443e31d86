// Package coreclient is what adapters to an engine's core process have in common. On
// such a wire requests go one way and outputs come back another, a message per step
// of the engine for all of its requests, and nothing is acknowledged. Fences stand
// in for that: questions that change nothing, sent behind requests and aborts, whose
// answers come behind all output before them.
//
// The core is pure: a Generation is one request and how far its hand-over is, a Table
// knows those of a session, an Outbox holds what is to be sent and what the engine has
// taken in, and a Dispatcher gives each its deltas. Around it are a Host, which binds
// the sockets that engines connect to, a Place, in which one engine serves at a time,
// and a Session, an engine from its input connection to its loss. What the bytes mean
// is the adapter's Wire.
//
// What must hold:
//
//   - A generation that Await confirmed gets exactly one terminal delta.
//   - After Await returned an error its sink is never called again.
package coreclient
