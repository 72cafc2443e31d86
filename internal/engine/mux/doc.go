// Package mux is the common part of adapters that multiplex many requests over one
// session and lose all of them with it. A Generation is the state of a request's
// hand-over and decides who may call its sink. A Dispatcher ends generations whose
// output is wrong or lost. A Fault keeps the engine's message as evidence. An End is
// the reason why a session ended. The adapter decides how requests are named on the
// wire and decodes its bytes.
//
// Invariants:
//
//   - A generation that was accepted gets exactly one terminal delta.
//   - After a hand-over was abandoned its sink is never called again.
package mux
