package sock

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Unread gives how many bytes have arrived on a connection that nobody has read. One that
// has no socket of its own says it by a method of the name; otherwise there are none.
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
