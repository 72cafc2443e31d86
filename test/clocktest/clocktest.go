// Package clocktest reads a clock that somebody has set.
package clocktest

import (
	"time"
	"unsafe"
)

// Set returns a time as it is read when the wall clock has been set by whole seconds, and the monotonic
// clock has gone on. Package time makes no such time by itself. The time must be one of time.Now.
func Set(now time.Time, by time.Duration) time.Time {
	set := now
	// The first word has the seconds of the wall clock above the 30 bits of its nanoseconds.
	*(*uint64)(unsafe.Pointer(&set)) += uint64(by/time.Second) << 30
	if set.Sub(now) != 0 || set.Round(0).Sub(now.Round(0)) != by {
		panic("clocktest: package time keeps its times in another form now")
	}
	return set
}
