package load

import (
	"errors"

	"golang.org/x/sys/unix"

	"weir/internal/trace"
)

// sleepUntil sleeps until the clock shows at, which is near. trace.Now is
// CLOCK_MONOTONIC.
func sleepUntil(at int64) {
	if at <= trace.Now() {
		return
	}
	ts := unix.NsecToTimespec(at)
	for errors.Is(unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil), unix.EINTR) {
	}
}
