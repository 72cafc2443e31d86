package sock

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Flags that hold whatever the descriptor's own are: never wait, and no SIGPIPE.
const flags = syscall.MSG_DONTWAIT | syscall.MSG_NOSIGNAL

// TryRead reads what is there. Nothing is (-1, nil), the end of the peer's side
// (0, nil). The error is a system call's.
func TryRead(fd int, p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, syscall.EINVAL
	}
	return receive(fd, p)
}

// TryPeek reports what a socket's next read would: whether a byte has come, or the end of the
// peer's side. It reads nothing. waits is true if the read would wait.
func TryPeek(fd int) (waits bool, err error) {
	var next [1]byte
	for {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&next[0])), 1, flags|syscall.MSG_PEEK, 0, 0)
		switch errno {
		case 0:
			return false, nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return true, nil
		default:
			return false, errno
		}
	}
}

// Ended reports whether the peer has ended its side or broken the connection, and all that it
// had sent before was read. It reads nothing.
func Ended(fd int) bool {
	var next [1]byte
	for {
		n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&next[0])), 1, flags|syscall.MSG_PEEK, 0, 0)
		if errno != syscall.EINTR {
			return errno == 0 && n == 0 || errno != 0 && errno != syscall.EAGAIN
		}
	}
}

// TryWrite writes as much as the socket takes at once: n is -1 when that is
// nothing. The error is a system call's.
func TryWrite(fd int, p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	return send(fd, p)
}

// Ready returns the events that an epoll instance has at once, without waiting.
func Ready(epoll int, events []unix.EpollEvent) (n int, err error) {
	for {
		r, _, errno := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(epoll),
			uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
		switch errno {
		case 0:
			return int(r), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}
