// Package idstream is the common part of adapters for engines that receive token ids over
// HTTP and stream ids back as server-sent events, with a connection for each request. It
// does the hand-over, reads in steps that do not block, delivers exactly one terminal
// delta, and keeps evidence of an answer whose counts do not match. The adapter's Wire
// decodes the events and aborts requests.
//
// Goroutines: those of Host.Run, up to one per core, which read the sockets that can be
// polled (turns); one for each generation whose socket cannot be polled; and one for each
// generation that ends. All have ended when Run returns.
package idstream
