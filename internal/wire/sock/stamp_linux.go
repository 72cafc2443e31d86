package sock

import (
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stampsBegin is how long the kernel takes to begin stamping packets after the
// first socket asked for it, with much to spare.
const stampsBegin = 50 * time.Millisecond

// Stamps makes the kernel stamp every packet it receives until stop is called,
// which it otherwise begins to do some time after the first socket asked for it,
// and no longer does when there is none.
func Stamps() (stop func(), err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := Stamp(fd); err != nil {
		unix.Close(fd)
		return nil, err
	}
	time.Sleep(stampsBegin)
	return func() { unix.Close(fd) }, nil
}

// Stamp asks for the receive stamps of a socket's bytes (SO_TIMESTAMPNS).
func Stamp(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("SO_TIMESTAMPNS: %w", err)
	}
	return nil
}

// Receiver reads sockets together with the stamps. It is for one reader at a
// time, and must not be copied once it was used.
type Receiver struct {
	oob [64]byte
	iov unix.Iovec
	msg unix.Msghdr
}

// TryReceive is like TryRead and also returns the time at which the kernel received the
// last segment of the bytes, in nanoseconds of CLOCK_REALTIME, or 0 if it has none. A
// read may return several segments, because the kernel joins those that wait: the bytes
// before the last segment arrived earlier than at, never later.
func (r *Receiver) TryReceive(fd int, p []byte) (n int, at int64, err error) {
	if len(p) == 0 {
		return 0, 0, syscall.EINVAL
	}
	r.iov.Base = &p[0]
	r.iov.SetLen(len(p))
	r.msg.Iov = &r.iov
	r.msg.SetIovlen(1)
	r.msg.Control = &r.oob[0]
	for {
		r.msg.SetControllen(len(r.oob))
		k, _, errno := syscall.RawSyscall(syscall.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.msg)), flags)
		switch errno {
		case 0:
			return int(k), r.stamp(), nil
		case syscall.EINTR:
		case syscall.EAGAIN:
			return -1, 0, nil
		default:
			return 0, 0, errno
		}
	}
}

// stamp returns the stamp of the read at hand.
func (r *Receiver) stamp() int64 {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&r.oob[0]))
	if r.msg.Controllen < unix.SizeofCmsghdr || h.Level != unix.SOL_SOCKET || h.Type != unix.SO_TIMESTAMPNS {
		return 0
	}
	return (*unix.Timespec)(unsafe.Pointer(&r.oob[unix.CmsgLen(0)])).Nano()
}

// Arrived counts what has arrived on a TCP connection, read or not (TCP_INFO). ok is
// false if the kernel does not report it.
func Arrived(fd int) (a Arrivals, ok bool) {
	var info unix.TCPInfo
	if tcpInfo(fd, &info) < unsafe.Offsetof(info.Rcv_ooopack)+unsafe.Sizeof(info.Rcv_ooopack) {
		return Arrivals{}, false
	}
	return Arrivals{Segments: info.Data_segs_in, OutOfOrder: info.Rcv_ooopack, Bytes: info.Bytes_received}, true
}

// DelayAck makes the kernel acknowledge later reads by its delayed-ACK timer, some 40
// ms later, and not at once. The setting ends whenever the timer has run out.
func DelayAck(fd int) error {
	return os.NewSyscallError("TCP_QUICKACK", unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0))
}
