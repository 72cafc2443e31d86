package sock

import (
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkFloor is what the kernel alone takes for an event of 300 bytes that is in a socket by
// itself, of a thousand sockets that have one each, on one thread: the write with the receiving
// half of TCP, and the read with its stamp after epoll has said that it is there. No program that
// reads a socket at a time takes less.
func BenchmarkFloor(b *testing.B) {
	const sockets = 1000
	stop, err := Stamps()
	if err != nil {
		b.Fatal(err)
	}
	defer stop()
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(epoll)
	var from, to [sockets]int
	for i := range sockets {
		fd, other := pair(b)
		if err := Stamp(fd); err != nil {
			b.Fatal(err)
		}
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: int32(fd)}); err != nil {
			b.Fatal(err)
		}
		to[i] = fd
		raw, err := other.(*net.TCPConn).SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { from[i] = int(fd) })
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	event, buf := make([]byte, 300), make([]byte, 4096)
	var r Receiver
	var events [64]unix.EpollEvent
	var writes, reads time.Duration
	count := 0
	for b.Loop() {
		began := time.Now()
		for i := range sockets {
			if n, err := TryWrite(from[i], event); n != len(event) || err != nil {
				b.Fatal(n, err)
			}
		}
		between := time.Now()
		for seen := 0; seen < sockets; {
			n, err := Ready(epoll, events[:])
			if err != nil && err != syscall.EINTR {
				b.Fatal(err)
			}
			for _, e := range events[:max(n, 0)] {
				if m, at, err := r.TryReceive(int(e.Fd), buf); m != len(event) || at == 0 || err != nil {
					b.Fatal(m, at, err)
				}
				seen++
			}
		}
		writes, reads = writes+between.Sub(began), reads+time.Since(between)
		count += sockets
	}
	b.ReportMetric(float64(writes.Nanoseconds())/float64(count), "ns/write")
	b.ReportMetric(float64(reads.Nanoseconds())/float64(count), "ns/read")
}
