//go:build unix && !linux

package sock

import "syscall"

// TryRead reads what is there. Nothing is (-1, nil), the end of the peer's side
// (0, nil). The error is a system call's.
func TryRead(fd int, p []byte) (n int, err error) { return again(syscall.Read, fd, p) }

// TryPeek reports what a socket's next read would: whether a byte has come, or the end of the
// peer's side. It reads nothing. waits is true if the read would wait.
func TryPeek(fd int) (waits bool, err error) {
	n, err := again(func(fd int, p []byte) (int, error) {
		n, _, err := syscall.Recvfrom(fd, p, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return n, err
	}, fd, make([]byte, 1))
	return n < 0, err
}

// Ended reports whether the peer has ended its side or broken the connection, and all that it
// had sent before was read. It reads nothing.
func Ended(fd int) bool {
	n, err := again(func(fd int, p []byte) (int, error) {
		n, _, err := syscall.Recvfrom(fd, p, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return n, err
	}, fd, make([]byte, 1))
	return n == 0 || err != nil
}

// TryWrite writes as much as the socket takes at once: n is -1 when that is
// nothing. The error is a system call's.
func TryWrite(fd int, p []byte) (n int, err error) { return again(syscall.Write, fd, p) }
