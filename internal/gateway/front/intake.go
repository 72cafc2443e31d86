package front

import (
	"context"
	"sync"
	"time"
)

// intake delays the requests of an HTTP/2 connection until net/http has processed all
// frames that the client has sent so far. net/http begins a request when it has the
// header. A client that resets each stream directly after its header could otherwise
// make the gateway prepare and dispatch requests as fast as it can write headers,
// without waiting for any answer. Frames that were sent together are processed within
// microseconds, so a stream whose reset is among them has ended before its request
// begins.
//
// net/http reads from a connection again only when it has processed all frames of the
// previous read, so its next read is the signal.
type intake struct {
	mu      sync.Mutex
	reading bool          // net/http asks for more
	over    bool          // nothing more will come
	waiting chan struct{} // closed when those who wait may begin; nil: nobody waits
	held    int           // bytes read since somebody waits
}

// maxIntake bounds what is taken in before a request begins all the same: the client may
// send without a pause.
const maxIntake = 256 << 10

// asks reports that net/http asks for more. unread gives how much the client has sent
// that was not read.
func (i *intake) asks(unread func() int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reading = true
	if i.waiting != nil && (i.held >= maxIntake || unread() == 0) {
		i.begin()
	}
}

// arrived says what a read brought.
func (i *intake) arrived(n int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.reading = false
	i.held += n
	if err != nil {
		i.over = true
		i.begin()
	}
}

func (i *intake) begin() {
	if i.waiting != nil {
		close(i.waiting)
		i.waiting = nil
	}
}

// intakeTime bounds the wait of a request for what was sent with it: that takes microseconds, and
// the signal is net/http's.
const intakeTime = time.Second

// wait waits until a request may begin, or is over.
func (i *intake) wait(ctx context.Context, unread func() int) {
	i.mu.Lock()
	if i.over || i.reading && unread() == 0 {
		i.mu.Unlock()
		return
	}
	if i.waiting == nil {
		i.waiting, i.held = make(chan struct{}), 0
	}
	waiting := i.waiting
	i.mu.Unlock()
	late := time.NewTimer(intakeTime)
	defer late.Stop()
	select {
	case <-waiting:
	case <-ctx.Done():
	case <-late.C:
	}
}
