package gateway

import (
	"time"

	"weir/internal/trace"
)

// merge is stage 9: it takes all that is pending as one, and reports whether
// there was anything.
func (x *exchange) merge() bool {
	x.cells = x.mailbox.Take(x.cells)
	if len(x.cells) == 0 {
		return false
	}
	now := trace.Now()
	read := x.cells[0].Received
	x.rec.Ledger.Split(read, trace.Receive, now)
	x.enterAt(trace.Merge, now)
	x.silence.begin(now)
	for i := range x.cells {
		c := &x.cells[i]
		if c.Stamps != nil && (x.stamped < 0 || x.stamped == int(c.Choice)) {
			x.stamped = int(c.Choice)
			x.leg().Stamps = *c.Stamps
		}
		if x.rec.FirstReceived == 0 && len(c.IDs) > 0 {
			x.rec.FirstReceived = read
			x.silence.limitTo(x.g.opts.IdleTimeout)
			x.rec.LiveAtFirstToken = int(x.g.live.Load())
			x.rec.PendingAtFirstToken = int(x.g.waiting.Load())
		}
	}
	return true
}

// hold lets output gather until the flush interval since the last write is
// over: fewer and larger writes, for a bounded delay. Without an interval, and
// for the first output, it does nothing; what merges then merges because the
// gateway or the client is busy.
func (x *exchange) hold() {
	interval := x.g.opts.FlushInterval
	if interval == 0 || x.lastFlush == 0 {
		return
	}
	left := interval - time.Duration(trace.Now()-x.lastFlush)
	if left <= 0 {
		return
	}
	x.enter(trace.Merge)
	if x.holding == nil {
		x.holding = time.NewTimer(left)
	} else {
		x.holding.Reset(left)
	}
	select {
	case <-x.holding.C:
	case <-x.ctx.Done():
	}
}
