//go:build unix && !linux

package sock

import "syscall"

// TryRead reads what is there. Nothing is (-1, nil), the end of the peer's side
// (0, nil). The error is a system call's.
func TryRead(fd int, p []byte) (n int, err error) { return again(syscall.Read, fd, p) }

// TryWrite writes as much as the socket takes at once: n is -1 when that is
// nothing. The error is a system call's.
func TryWrite(fd int, p []byte) (n int, err error) { return again(syscall.Write, fd, p) }

func again(call func(int, []byte) (int, error), fd int, p []byte) (n int, err error) {
	for {
		n, err = call(fd, p)
		switch err {
		case nil:
			return n, nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return -1, nil
		default:
			return 0, err
		}
	}
}
