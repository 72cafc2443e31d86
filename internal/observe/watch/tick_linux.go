package watch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"weir/internal/trace"
)

// maxMissed bounds what is recorded at once: a minute, for a machine that slept.
const maxMissed = 6000

// tick calls saw when moments of the schedule have come. The kernel keeps the schedule, and
// the poller of all other I/O of the process reports it.
func tick(ctx context.Context, saw func(last, read int64, n uint64)) error {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("canary: timerfd_create: %w", err)
	}
	timer := os.NewFile(uintptr(fd), "timerfd")
	defer timer.Close()
	unhook := context.AfterFunc(ctx, func() { timer.Close() })
	defer unhook()
	due := trace.Now() + int64(gap)
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(due), Interval: unix.NsecToTimespec(int64(gap))}
	if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return fmt.Errorf("canary: timerfd_settime: %w", err)
	}
	var b [8]byte
	for {
		if _, err := timer.Read(b[:]); err != nil {
			if ctx.Err() != nil || errors.Is(err, os.ErrClosed) {
				return ctx.Err()
			}
			return fmt.Errorf("canary: %w", err)
		}
		n := binary.NativeEndian.Uint64(b[:])
		due += int64(n) * int64(gap)
		saw(due-int64(gap), trace.Now(), min(n, maxMissed))
	}
}
