package sock

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"unsafe"
)

// BeginConnect begins to connect a socket that package net is about to connect, as
// net.Dialer's Control. A peer on the same machine has accepted it by the end of the call.
// Package net then finds it connected, and otherwise waits as usual: in its poller, beside a
// goroutine that waits for the end of the context.
func BeginConnect(network, address string, c syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil || to.Addr().Zone() != "" {
		return nil
	}
	port := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, to.Port()))
	return c.Control(func(fd uintptr) {
		// An error comes again, by the call that net makes.
		switch ip := to.Addr().Unmap(); {
		case network == "tcp4" && ip.Is4():
			at := syscall.RawSockaddrInet4{Family: syscall.AF_INET, Port: port, Addr: ip.As4()}
			_, _, _ = syscall.RawSyscall(syscall.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&at)), unsafe.Sizeof(at))
		case network == "tcp6" && ip.Is6():
			at := syscall.RawSockaddrInet6{Family: syscall.AF_INET6, Port: port, Addr: ip.As16()}
			_, _, _ = syscall.RawSyscall(syscall.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&at)), unsafe.Sizeof(at))
		}
	})
}
