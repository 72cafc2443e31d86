//go:build race

package sock

import "syscall"

// The race detector takes what syscall.Write has sent to happen before syscall.Read returns.
// Tests depend on that where both ends of a connection are in one process. The descriptors
// that Go has opened never wait, and raise no SIGPIPE.

func receive(fd int, p []byte) (n int, err error) { return again(syscall.Read, fd, p) }

func send(fd int, p []byte) (n int, err error) { return again(syscall.Write, fd, p) }
