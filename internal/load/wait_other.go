//go:build !linux

package load

import (
	"time"

	"weir/internal/trace"
)

// sleepUntil sleeps until the clock shows at, which is near.
func sleepUntil(at int64) {
	if left := at - trace.Now(); left > 0 {
		time.Sleep(time.Duration(left))
	}
}

func preciseSleep() (restore func()) { return func() {} }
