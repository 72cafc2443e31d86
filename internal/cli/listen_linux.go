package cli

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// sharePort has a socket share its port with others that do.
func sharePort(_, _ string, c syscall.RawConn) error {
	var err error
	if failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); failed != nil {
		return failed
	}
	return err
}

// giveWay has the kernel give new connections to the socket that has shared the listener's port
// later, if there is one: the first of them is number 0 and this process's, and the next is 1.
// Where there is none the kernel goes on as before. What has connected to this socket by then is
// still accepted from it, so that a listener can be closed that nobody waits in.
func giveWay(l net.Listener) error {
	sc, ok := l.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	chosen := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1}}
	program := unix.SockFprog{Len: uint16(len(chosen)), Filter: &chosen[0]}
	if failed := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program)
	}); failed != nil {
		return failed
	}
	return err
}
