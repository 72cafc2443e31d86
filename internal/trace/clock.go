// Package trace defines the timeline: its clock, the stages of a request, and the
// record that attributes each millisecond of a request to a stage.
package trace

import (
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// The anchor ties Go's monotonic clock, which is CLOCK_MONOTONIC read without
// a system call but hides its value, to CLOCK_MONOTONIC itself. Two processes
// on one machine then share one clock and their offset is exactly zero.
var anchorTime, anchorMono = readAnchor()

func readAnchor() (time.Time, int64) {
	var ts unix.Timespec
	// The anchor is the try with the tightest bracket.
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

// At returns the stamp of a time that this process read from the clock.
func At(t time.Time) int64 { return anchorMono + int64(t.Sub(anchorTime)) }

// Wall returns the wall time of a stamp, by the wall clock as it is now. A step of the
// wall clock since then shifts the result.
func Wall(stamp int64) time.Time {
	a := wall()
	return a.at.Add(time.Duration(stamp - a.mono))
}

// Stamp returns the stamp of a wall time. A step of the wall clock in between makes
// it wrong.
func Stamp(at time.Time) int64 {
	a := wall()
	return a.mono + int64(at.Round(0).Sub(a.at.Round(0)))
}

// reading is the wall clock read at a stamp.
type reading struct {
	at   time.Time
	mono int64
}

// read reads it.
func read() reading {
	now := time.Now()
	return reading{now, At(now)}
}

// ahead is by how much the wall clock has gained on the stamps from one reading to another.
func (r *reading) ahead(later reading) time.Duration {
	return later.at.Round(0).Sub(r.at.Round(0)) - time.Duration(later.mono-r.mono)
}

// settings is the reading that Wall and Stamp go by. It stays the same until the clock is
// set, so that a stamp has one wall time.
var settings atomic.Pointer[reading]

// set is by how much the wall clock gains on the stamps only where somebody has set it, or
// the machine has slept: what steers it steers both alike.
const set = time.Millisecond

func wall() *reading {
	a := settings.Load()
	if a == nil {
		settings.CompareAndSwap(nil, &reading{anchorTime, anchorMono})
		a = settings.Load()
	}
	now := read()
	if a.ahead(now).Abs() < set {
		return a
	}
	// A thread that loses its core between the readings of the two clocks has seen the
	// same. That does not happen several times in a row.
	for range 3 {
		if now = read(); a.ahead(now).Abs() < set {
			return a
		}
	}
	settings.CompareAndSwap(a, &reading{now.at, now.mono}) // whose copy alone leaves the stack
	return settings.Load()
}

// BootID identifies the running kernel. Two processes that report the same id share
// CLOCK_MONOTONIC. It is empty if the system does not report one.
func BootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
