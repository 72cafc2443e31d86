// Package idstream is what adapters have in common whose engine takes ids over HTTP and
// streams ids back as server-sent events, a connection for each request: the hand-over,
// the reading in turns, the one terminal delta, and what is kept of an answer that does
// not add up. What the events say, and how the engine is told to stop, is the adapter's
// own (Wire).
//
// Goroutines: those of Host.Run, up to one per core that read what generations bring where
// their sockets are polled (turns); one for each generation whose cannot be polled; and one
// for each that ends. All have ended when Run returns.
package idstream
