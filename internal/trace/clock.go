// Package trace holds the timeline's vocabulary: the clock, the stages a
// request passes, and the record that says where each millisecond went.
package trace

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The anchor ties Go's monotonic clock, which is CLOCK_MONOTONIC read without
// a system call but hides its value, to CLOCK_MONOTONIC itself. Two processes
// on one machine then share one clock and their offset is exactly zero.
var anchorTime, anchorMono = readAnchor()

func readAnchor() (time.Time, int64) {
	var ts unix.Timespec
	// Of several tries the one with the tightest bracket is the anchor.
	best := time.Duration(1<<63 - 1)
	var at time.Time
	var mono int64
	for range 8 {
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return before, before.UnixNano()
		}
		if width := time.Since(before); width < best {
			best, at, mono = width, before.Add(width/2), ts.Nano()
		}
	}
	return at, mono
}

// Now reads the timeline's clock: CLOCK_MONOTONIC in nanoseconds.
func Now() int64 { return anchorMono + int64(time.Since(anchorTime)) }

// At gives the stamp of a time that was read from the clock in this process.
func At(t time.Time) int64 { return anchorMono + int64(t.Sub(anchorTime)) }

// Wall gives the wall time of a stamp.
func Wall(stamp int64) time.Time { return anchorTime.Add(time.Duration(stamp - anchorMono)) }

// Stamp gives the stamp of a wall time; it is as good as the wall clock is steady.
func Stamp(wall time.Time) int64 { return anchorMono + int64(wall.Round(0).Sub(anchorTime)) }

// BootID identifies the running kernel. Two processes that report the same id
// share CLOCK_MONOTONIC. It is empty where the system does not tell.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
