package cli

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
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

// kernelQueue returns what Linux has for a listener.
func kernelQueue(l *net.TCPListener) *acceptQueue {
	port := l.Addr().(*net.TCPAddr).Port
	return &acceptQueue{
		length: func() (n int, err error) {
			raw, err := l.SyscallConn()
			if err != nil {
				return 0, err
			}
			failed := raw.Control(func(fd uintptr) {
				var info *unix.TCPInfo
				if info, err = unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
					n = int(info.Unacked) // which a listener has for this
				}
			})
			return n, errors.Join(failed, err)
		},
		handshakes: func() (map[string]struct{}, error) { return handshakes(port) },
	}
}

// handshakes returns the clients of a port to which the kernel has answered and which have not
// confirmed that.
func handshakes(port int) (map[string]struct{}, error) {
	clients := map[string]struct{}{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		table, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(table)) {
			// sl local_address rem_address st ...
			f := strings.Fields(line)
			if len(f) > 3 && f[3] == synReceived && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				clients[f[2]] = struct{}{}
			}
		}
	}
	return clients, nil
}

const synReceived = "03" // TCP_SYN_RECV
