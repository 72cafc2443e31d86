package load

import (
	"context"
	"time"

	"weir/internal/trace"
)

// timerSlack is how early the last, precise sleep begins. Go's timers are up
// to a millisecond late on a busy machine.
const timerSlack = int64(2 * time.Millisecond)

// waitUntil sleeps until the clock of trace.Now shows at. It returns false if ctx ended
// first. The caller has locked its OS thread: the last part is slept in the kernel, until
// an absolute time.
func waitUntil(ctx context.Context, at int64) bool {
	if left := at - trace.Now() - timerSlack; left > 0 {
		t := time.NewTimer(time.Duration(left))
		defer t.Stop()
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
		}
	}
	sleepUntil(at)
	return ctx.Err() == nil
}
