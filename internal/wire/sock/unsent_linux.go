package sock

import (
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// LimitUnsent has writes to a connection wait while the kernel holds n bytes or more that it
// has not sent, because the peer's window is full (TCP_NOTSENT_LOWAT). Without it the kernel
// takes up to 4 MiB (net.ipv4.tcp_wmem), and a writer learns that late that nobody reads. What is
// on its way in the network is not limited. A connection without a socket is left as it is.
func LimitUnsent(c net.Conn, n int) error {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	if failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, n) }); failed != nil {
		return failed
	}
	return os.NewSyscallError("TCP_NOTSENT_LOWAT", err)
}
