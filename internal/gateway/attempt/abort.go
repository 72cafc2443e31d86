package attempt

import (
	"sync/atomic"

	"weir/internal/gateway/stream"
	"weir/internal/infer"
)

// abortable is what /abort_request changes of a request. If an engine has the request,
// the engine is asked to abort it, and its output until then is the answer. A request
// that no engine has yet ends with ErrAborted.
type abortable struct {
	asked   atomic.Bool
	sent    bool                           // the engine was told
	mailbox atomic.Pointer[stream.Mailbox] // from the hand-over on
}

var ErrAborted = infer.Errorf(infer.CodeCancelled, "the request was aborted by /abort_request")

func (a *abortable) ask(end func(cause error)) {
	a.asked.Store(true)
	if !a.wake() {
		end(ErrAborted)
	}
}

// wake gives the stream of a request that an engine has its turn, and reports whether there is
// one.
func (a *abortable) wake() bool {
	box := a.mailbox.Load()
	if box != nil {
		box.Wake()
	}
	return box != nil
}

// ready reports whether the request goes to an engine now, unless it was aborted.
func (a *abortable) ready(box *stream.Mailbox) bool {
	a.mailbox.Store(box)
	return !a.asked.Load()
}
