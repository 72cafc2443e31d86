package plane

import (
	"sync"

	"weir/internal/engine/plane/planepb"
)

// outbox holds what the control writer is to send. Anyone may put something in
// without waiting; the one writer takes all there is, so that a thousand
// hang-ups at once leave in one message.
type outbox struct {
	wake chan struct{} // capacity 1: there is something

	mu     sync.Mutex
	aborts []*planepb.Abort
	ping   bool
}

func newOutbox() *outbox { return &outbox{wake: make(chan struct{}, 1)} }

func (o *outbox) abort(slot uint32, id string) {
	o.mu.Lock()
	o.aborts = append(o.aborts, &planepb.Abort{Slot: slot, RequestId: id})
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) askPing() {
	o.mu.Lock()
	o.ping = true
	o.mu.Unlock()
	o.signal()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// maxAborts bounds one control message, far below any message size limit.
const maxAborts = 4096

// take returns what is to be sent next.
func (o *outbox) take() (aborts []*planepb.Abort, ping bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	ping, o.ping = o.ping, false
	if len(o.aborts) > maxAborts {
		aborts = o.aborts[:maxAborts:maxAborts]
		o.aborts = o.aborts[maxAborts:]
	} else {
		aborts, o.aborts = o.aborts, nil
	}
	return aborts, ping
}
