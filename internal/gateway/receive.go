package gateway

import (
	"context"

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
		if err := x.silence.overdue(); err != nil {
			return err
		}
		<-x.mailbox.Ready()
	}
	return x.gone()
}

// await makes the ends of the wait, other than output, wake the handler: the
// request's context and the engine's silence.
func (x *exchange) await() {
	wake := x.mailbox.Wake
	x.stopAwaiting = context.AfterFunc(x.ctx, wake)
	x.silence = x.newSilence(x.g.opts.FirstTimeout, func(*infer.Error) { wake() })
	x.silence.begin(trace.Now())
}
