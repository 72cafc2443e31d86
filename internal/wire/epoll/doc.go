// Package epoll polls sockets that have been taken out of Go's poller, and calls back
// when they are ready.
//
// With the obvious way, a goroutine per stream blocked in a read, each event costs a
// wake-up and a second read that finds nothing, and each stream costs a stack. An epoll
// instance can itself be polled, so between events its goroutine is parked in Go's own
// poller. If it were blocked in epoll_wait, it would hold a thread, which the runtime
// would detach from its core for every wait. A second epoll instance, the gate, is
// between Go's poller and the instance of the sockets. It is open only while the
// goroutine is parked. Without it every event would wake a thread of Go's poller even
// when the goroutine is already running.
//
// Sockets are polled edge-triggered. No event is lost, because a callback reads until
// the socket is empty, or until a read returns less than requested and no end of the
// peer's side was reported. Such an end is another edge.
package epoll

// Worker is what a goroutine of a Poller has at hand for the sockets that it
// calls back, so that these need not hold it.
type Worker interface {
	// Idle is called before the goroutine waits or yields.
	Idle()
}
