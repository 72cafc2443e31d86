package sock

import "golang.org/x/sys/unix"

// Acknowledged counts the bytes of a TCP connection that the peer's kernel has said it
// has. A peer's program cannot have read a byte that is not among them, and the end
// of its side, which a read gives, acknowledges all that came before it. ok is false
// where the system does not tell.
func Acknowledged(fd int) (n uint64, ok bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, false
	}
	return info.Bytes_acked, true
}
