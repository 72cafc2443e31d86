package gateway

import (
	"context"
	"sync"
)

// intake lets the requests of an HTTP/2 connection begin once net/http has taken in all
// that the client has sent so far. net/http begins a request at its head. A client that
// resets each stream right behind its head would otherwise make the gateway prepare and
// dispatch as many requests as it can write heads, and wait for the answer of none. What
// was sent together is taken in within microseconds, and a stream whose reset was among
// it has ended before its request begins.
//
// net/http reads from a connection again only when it has taken in all frames of what it
// read before, so its read is the sign.
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

// asks says that net/http asks for more. unread gives how much the client has sent that
// was not read.
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
	select {
	case <-waiting:
	case <-ctx.Done():
	}
}
