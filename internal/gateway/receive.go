package gateway

import (
	"context"
	"time"

	"weir/internal/infer"
	"weir/internal/trace"
)

// receive is stage 8 as the handler sees it: it waits until the engine's
// reader has put something into the mailbox, and takes it. The wait is the
// engine's time until the frame was read, and weir's own from there on.
func (x *exchange) receive() error {
	x.hold()
	x.enter(trace.Engine)
	for x.ctx.Err() == nil {
		x.abortIfAsked()
		if x.merge() {
			return nil
		}
		if x.expired.Swap(false) {
			if err := x.checkIdle(); err != nil {
				return err
			}
		}
		<-x.mailbox.Ready()
	}
	return x.gone()
}

// await makes the ends of the wait, other than output, wake the handler: the
// request's context and the idle timer.
func (x *exchange) await() {
	wake := x.mailbox.Wake
	x.stopAwaiting = context.AfterFunc(x.ctx, wake)
	x.lastOutput = trace.Now()
	x.idle = time.AfterFunc(min(x.g.opts.FirstTimeout, x.g.opts.IdleTimeout), func() {
		x.expired.Store(true)
		wake()
	})
}

// checkIdle ends a wait that took too long. The timer is not touched per
// token: when it fires it is set again for what is left since the last output.
func (x *exchange) checkIdle() error {
	limit := x.outputTimeout()
	left := limit - time.Duration(trace.Now()-x.lastOutput)
	if left > 0 {
		x.idle.Reset(left)
		return nil
	}
	return &infer.Error{Code: infer.CodeDeadline, Engine: x.target.Name, Retryable: true,
		Message: "the engine sent nothing for " + limit.String()}
}

// outputTimeout bounds the wait at hand.
func (x *exchange) outputTimeout() time.Duration {
	if x.rec.FirstReceived == 0 {
		return x.g.opts.FirstTimeout
	}
	return x.g.opts.IdleTimeout
}
