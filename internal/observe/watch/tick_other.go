//go:build !linux

package watch

import (
	"context"
	"time"

	"weir/internal/trace"
)

// tick calls saw when moments of the schedule have come. Without a timer that
// the poller can watch it sees the scheduler's lateness only.
func tick(ctx context.Context, saw func(last, read int64, n uint64)) error {
	due := trace.Now() + int64(gap)
	timer := time.NewTimer(gap)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		now := trace.Now()
		n := max(0, now-due)/int64(gap) + 1
		due += n * int64(gap)
		saw(due-int64(gap), now, uint64(n))
		timer.Reset(time.Duration(due - trace.Now()))
	}
}
