// Package mux is what adapters have in common that have many requests over one session,
// with which all of them are lost: how far the hand-over of a request is and who
// may call its sink (Generation), what a reader offers when things end badly
// (Dispatcher), what is kept of what an engine sent as evidence (Fault), and why a
// session ended (End). How a wire names its requests, and what its bytes mean, is the
// adapter's.
//
// What must hold:
//
//   - A generation that was accepted gets exactly one terminal delta.
//   - After a hand-over was abandoned its sink is never called again.
package mux
