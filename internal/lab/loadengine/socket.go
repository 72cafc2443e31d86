//go:build linux

package loadengine

import (
	"bytes"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sys/unix"

	"weir/internal/wire/sock"
)

const responseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n"

// models returns the whole response that lists one model.
func models(id string) []byte {
	body := `{"object":"list","data":[{"id":"` + id + `","object":"model","created":1767225600,"owned_by":"weir"}]}`
	return []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body)
}

// listenEpoll listens at an address and polls the listener.
func listenEpoll(address string) (epoll, listener int, err error) {
	addr, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		return 0, 0, err
	}
	if listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, 0, fmt.Errorf("socket: %w", err)
	}
	_ = unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	sa := &unix.SockaddrInet4{Port: addr.Port}
	copy(sa.Addr[:], addr.IP.To4())
	if err := unix.Bind(listener, sa); err != nil {
		return 0, 0, fmt.Errorf("bind %s: %w", address, err)
	}
	if err := unix.Listen(listener, 16384); err != nil {
		return 0, 0, fmt.Errorf("listen: %w", err)
	}
	if epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return 0, 0, fmt.Errorf("epoll: %w", err)
	}
	return epoll, listener, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, listener, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(listener)})
}

// acceptAll takes the connections that wait, polls them edge by edge, and hands
// them over.
func acceptAll(epoll, listener int, taken func(fd int)) {
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		_ = sock.Stamp(fd)
		ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(fd)}
		if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
			unix.Close(fd)
			continue
		}
		taken(fd)
	}
}

// mostRequest bounds the kept part of an incomplete request.
const mostRequest = 16 << 20

// readAll appends all available data to in, and returns the kernel's stamp of its last
// byte, or 0 if there is none. open is false if the connection has ended, or sends more
// than any request has.
func readAll(recv *sock.Receiver, fd int, buf []byte, in *[]byte) (stamp int64, open bool) {
	for {
		n, at, err := recv.TryReceive(fd, buf)
		if n == 0 || err != nil || len(*in)+n > mostRequest {
			return stamp, false
		}
		if n < 0 {
			return stamp, true
		}
		*in, stamp = append(*in, buf[:n]...), at
	}
}

// firstRequest returns the head, in lower case and with its empty line, and the body
// of the request that bytes begin with, if it is whole.
func firstRequest(in []byte) (head, body []byte, ok bool) {
	end := bytes.Index(in, []byte("\r\n\r\n"))
	if end < 0 {
		return nil, nil, false
	}
	head = bytes.ToLower(in[:end+4])
	length := max(0, member(head, "content-length:"))
	if len(in) < len(head)+length {
		return nil, nil, false
	}
	return head, in[len(head) : len(head)+length], true
}

// member reads the number behind a mark, -1 when it is not there.
func member(b []byte, mark string) int {
	i := bytes.Index(b, []byte(mark))
	if i < 0 {
		return -1
	}
	return number(b[i+len(mark):])
}

// number reads a number after spaces, up to the first other byte.
func number(b []byte) int {
	b = bytes.TrimLeft(b, " ")
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n
}
