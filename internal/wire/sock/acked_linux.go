package sock

import "golang.org/x/sys/unix"

// Acknowledged returns the number of bytes of a TCP connection that the peer's kernel
// has acknowledged. The peer's program cannot have read any other byte. The end of the
// peer's side, as found by a read, acknowledges all bytes before it. ok is false if the
// system does not report the number.
func Acknowledged(fd int) (n uint64, ok bool) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, false
	}
	return info.Bytes_acked, true
}
