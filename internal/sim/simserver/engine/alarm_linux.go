package engine

import (
	"encoding/binary"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"weir/internal/trace"
)

// alarm fires at a time of trace's clock. In a process that has nothing else to do, Go's
// timers are up to a millisecond late, because the runtime waits for events with a timeout
// in milliseconds. A kernel timer that is polled like a socket is some 50 us late.
type alarm struct {
	c    chan struct{} // capacity 1
	late *time.Timer   // Go's, where it is not the kernel's
	fd   int
	file *os.File
	done sync.WaitGroup
}

// newAlarm makes an alarm. With goTimers it uses only Go's timers, whose time may be
// virtual.
func newAlarm(goTimers bool) *alarm {
	a := &alarm{c: make(chan struct{}, 1)}
	if goTimers {
		a.late = time.AfterFunc(time.Hour, a.ring)
		return a
	}
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		a.late = time.AfterFunc(time.Hour, a.ring)
		return a
	}
	a.fd, a.file = fd, os.NewFile(uintptr(fd), "timerfd")
	a.done.Go(func() {
		var b [8]byte
		for {
			if _, err := a.file.Read(b[:]); err != nil {
				return // it was closed
			}
			if binary.NativeEndian.Uint64(b[:]) > 0 {
				a.ring()
			}
		}
	})
	return a
}

func (a *alarm) ring() {
	select {
	case a.c <- struct{}{}:
	default:
	}
}

// set makes the alarm fire at a time, in place of the one set before. It may also fire
// spuriously.
func (a *alarm) set(at int64) {
	if a.late != nil {
		a.late.Reset(time.Duration(at - trace.Now()))
		return
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(max(at, 1))} // 0 would disarm it
	if unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &spec, nil) != nil {
		a.ring() // the caller looks at the clock
	}
}

func (a *alarm) close() {
	if a.late != nil {
		a.late.Stop()
		return
	}
	a.file.Close()
	a.done.Wait()
}
