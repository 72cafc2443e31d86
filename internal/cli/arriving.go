package cli

import (
	"net"
	"time"
)

// arriving is the input from clients that a gateway has not read yet when it leaves. The
// gateway must read all of it before it closes its listener, because the close resets
// connections that the kernel has queued; no other process gets them.
type arriving struct {
	bound  time.Duration
	queue  *acceptQueue                  // nil: it goes to the next gateway
	since  time.Time                     // connections that are older and have had no request are idle
	unread func(since time.Time) (n int) // connections that were accepted and have had no request
}

// acceptQueue reports what the kernel has queued for a listener.
type acceptQueue struct {
	length     func() (int, error)                 // connections that were not accepted
	handshakes func() (map[string]struct{}, error) // clients that were answered and are to confirm that
}

const (
	letInEvery = 5 * time.Millisecond
	letInFor   = 5 * time.Second // at most: a client may connect and send nothing
	letInSoon  = time.Second     // likewise, while clients go on to come
	// A packet that another core works on while the listener gives way may still become a
	// connection of it, so one look is not enough.
	emptyLooks = 4
)

// wait waits until nothing more arrives, until it has checked for its bound, or until another
// signal. Time in which the process is stopped counts as one check. It returns the number of
// remaining connections.
func (a *arriving) wait(again <-chan struct{}) (left int) {
	tick := time.NewTicker(letInEvery)
	defer tick.Stop()
	var shaking map[string]struct{}
	for look, empty := 1, 0; look <= int(a.bound/letInEvery) && empty < emptyLooks; look++ {
		select {
		case <-tick.C:
		case <-again:
			return left
		}
		left = 0
		if a.queue != nil {
			// From here on, clients that begin are another gateway's.
			if look >= emptyLooks && (look == emptyLooks || len(shaking) > 0) {
				shaking = a.queue.stillShaking(shaking, look == emptyLooks)
			}
			left += len(shaking) // before the queue, into which they go
			if n, err := a.queue.length(); err == nil {
				left += n
			}
		}
		if left += a.unread(a.since); left > 0 || a.queue != nil && look < emptyLooks {
			empty = 0
			continue
		}
		empty++
	}
	return left
}

// stillShaking returns the earlier handshakes that are not confirmed yet; at first all.
func (q *acceptQueue) stillShaking(before map[string]struct{}, first bool) map[string]struct{} {
	now, err := q.handshakes()
	if err != nil || first {
		return now
	}
	for client := range before {
		if _, ok := now[client]; !ok {
			delete(before, client)
		}
	}
	return before
}

// queueOf returns the queue of a TCP listener, or nil if the system does not report it.
func queueOf(l net.Listener) *acceptQueue {
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil
	}
	return kernelQueue(tcp)
}
