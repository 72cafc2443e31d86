//go:build unix

package sock

import (
	"io"
	"net"
	"os"
	"syscall"
)

// Reads returns the connection with reads that wait in Go's poller as usual, but then
// make the system call without notifying the scheduler. A connection without a socket
// is returned unchanged. Only one goroutine may read.
func Reads(c net.Conn) net.Conn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return c
	}
	r := &reads{Conn: c, raw: raw}
	r.try = r.tryRead
	return r
}

type reads struct {
	net.Conn
	raw syscall.RawConn
	try func(fd uintptr) bool // tryRead, as a value made once

	// The state of the current read.
	p   []byte
	n   int
	err error
}

func (r *reads) tryRead(fd uintptr) bool {
	r.n, r.err = TryRead(int(fd), r.p)
	return r.n >= 0
}

// Read implements net.Conn.
func (r *reads) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	r.p, r.n, r.err = p, 0, nil
	err = r.raw.Read(r.try)
	r.p = nil
	switch {
	case err != nil:
		return 0, err
	case r.err != nil:
		return 0, &net.OpError{Op: "read", Net: r.LocalAddr().Network(), Addr: r.RemoteAddr(), Err: os.NewSyscallError("recv", r.err)}
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}
