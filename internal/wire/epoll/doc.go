// Package epoll polls sockets that have been taken out of Go's poller, and calls
// back those that are ready.
//
// The obvious way, a goroutine per stream blocked in a read, costs each event a
// wake-up, and a read that only learns that there is nothing more; and each
// stream a stack. An epoll instance is itself something to poll: between events
// its goroutine is parked in Go's own poller. Blocked in epoll_wait it would hold
// a thread, which the runtime takes out of a core and puts back for every wait.
// Between Go's poller and the sockets' instance stands a second one, the gate,
// which is open only while the goroutine is parked: otherwise every event would
// wake a thread of Go's poller, to find that somebody is at work already.
//
// Sockets are polled edge by edge. That loses nothing because a call back either
// reads until the socket is empty, or until it gave less than asked for with no
// end of the peer's side reported; such an end is an edge of its own.
package epoll

// Worker is what a goroutine of a Poller has at hand for the sockets that it
// calls back, so that these need not hold it.
type Worker interface {
	// Turned is called after each call back: the place to let others run.
	Turned()
	// Idle is called before the goroutine waits.
	Idle()
}
