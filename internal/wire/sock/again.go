//go:build unix && (!linux || race)

package sock

import "syscall"

// again makes a system call until no signal interrupts it.
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
