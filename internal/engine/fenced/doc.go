// Package fenced is what adapters to an engine's core process have in common. On
// such a wire requests go one way and outputs come back another, a message per step
// of the engine for all of its requests, and nothing is acknowledged. Fences stand
// in for that: questions that change nothing, sent behind requests and aborts, whose
// answers come behind all output before them.
//
// It is pure but for Outbox.Write, the one loop that reads a clock, and for the Host,
// which binds the sockets that engines connect to: a Generation is one request and
// how far its hand-over is, a Table knows those of a session, an Outbox holds what is
// to be sent and what the engine has taken in, and a Dispatcher gives each its
// deltas. What the bytes mean is the adapter's.
//
// What must hold:
//
//   - A generation that Await confirmed gets exactly one terminal delta.
//   - After Await returned an error its sink is never called again.
package fenced
