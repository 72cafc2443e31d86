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
	var info unix.TCPInfo
	if tcpInfo(fd, &info) < unsafe.Offsetof(info.Bytes_acked)+unsafe.Sizeof(info.Bytes_acked) {
		return 0, false
	}
	return info.Bytes_acked, true
}

// tcpInfo reads what the kernel knows of a TCP connection, and returns how many bytes of info
// it has filled. An older kernel fills only the beginning; after an error nothing is filled.
// info stays on the caller's stack, because callers ask with each request.
func tcpInfo(fd int, info *unix.TCPInfo) (filled uintptr) {
	size := uint32(unsafe.Sizeof(*info))
	_, _, errno := syscall.RawSyscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0
	}
	return uintptr(size)
}
