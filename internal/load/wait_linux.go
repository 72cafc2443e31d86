package load

import (
	"errors"

	"golang.org/x/sys/unix"

	"weir/internal/trace"
)

// sleepUntil sleeps until the clock shows at, which is near. trace.Now is CLOCK_MONOTONIC.
func sleepUntil(at int64) {
	if at <= trace.Now() {
		return
	}
	ts := unix.NsecToTimespec(at)
	for errors.Is(unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &ts, nil), unix.EINTR) {
	}
}

// preciseSleep makes the kernel end this thread's sleeps when they are due, and
// not up to 50 us later so that several end together.
func preciseSleep() (restore func()) {
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // what cannot be set is measured as slip
	return func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, 0, 0, 0, 0) }
}
