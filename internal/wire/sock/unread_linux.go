package sock

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Unread returns the number of bytes that have arrived on a connection and were not read.
// A connection without a socket reports it by a method of the same name; without one the
// number is 0.
func Unread(c net.Conn) (n int) {
	if u, ok := c.(interface{ Unread() int }); ok {
		return u.Unread()
	}
	s, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }) // closed: nothing has
	return n
}
