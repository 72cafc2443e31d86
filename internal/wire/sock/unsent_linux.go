package sock

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// LimitUnsent has writes to a connection wait while the kernel holds Unsent bytes or more that it
// cannot send yet, because the peer's window is full (TCP_NOTSENT_LOWAT). Bytes on their way in the
// network do not count. A connection without a socket is left as it is.
func LimitUnsent(c net.Conn) error {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, Unsent) }); failed != nil {
		return failed
	}
	return os.NewSyscallError("TCP_NOTSENT_LOWAT", err)
}
