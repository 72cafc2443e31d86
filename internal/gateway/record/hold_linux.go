package record

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hold computes for a time and keeps its core from all other goroutines, like work that the
// scheduler cannot interrupt: the signal for preemption is blocked, and no function called
// here checks whether another goroutine should run.
func hold(d time.Duration) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const preempt = unix.SIGURG - 1
	var before, blocked unix.Sigset_t
	blocked.Val[0] = 1 << preempt
	if unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before) != nil {
		return
	}
	var now unix.Timespec
	syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&now)), 0)
	until := now.Sec*1e9 + now.Nsec + int64(d)
	for now.Sec*1e9+now.Nsec < until {
		syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&now)), 0)
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) // it worked before
}
