//go:build !race

package sock

import (
	"syscall"
	"unsafe"
)

func receive(fd int, p []byte) (n int, err error) { return call(syscall.SYS_RECVFROM, fd, p) }

func send(fd int, p []byte) (n int, err error) { return call(syscall.SYS_SENDTO, fd, p) }

func call(trap uintptr, fd int, p []byte) (n int, err error) {
	for {
		r, _, errno := syscall.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), flags, 0, 0)
		switch errno {
		case 0:
			return int(r), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return -1, nil
		default:
			return 0, errno
		}
	}
}
