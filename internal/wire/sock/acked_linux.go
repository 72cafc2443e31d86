package sock

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Acknowledged returns the number of bytes of a TCP connection that the peer's kernel
// has acknowledged. The peer's program cannot have read any other byte. The end of the
// peer's side, as found by a read, acknowledges all bytes before it. ok is false if the
// system does not report the number.
func Acknowledged(fd int) (n uint64, ok bool) {
	var info unix.TCPInfo // on the stack: it is asked for with each request
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := syscall.RawSyscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if end := unsafe.Offsetof(info.Bytes_acked) + unsafe.Sizeof(info.Bytes_acked); errno != 0 || uintptr(size) < end {
		return 0, false
	}
	return info.Bytes_acked, true
}
