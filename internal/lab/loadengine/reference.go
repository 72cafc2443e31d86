//go:build linux

package loadengine

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"weir/internal/lab/cell"
	"weir/internal/trace"
	"weir/internal/wire/sock"
)

// referenceEngine sends tokens at times that are known beforehand, to measure the error of
// a load generator. It uses one thread, raw sockets and prepared bytes, with one write per
// token. If it is late itself, because a thousand writes take longer than their interval or
// because others use the machine, its stamps show by how much: an arrival is the kernel's
// stamp of the request, and a token's time is read right before its write.
type referenceEngine struct {
	spec     *cell.Reference
	truth    cell.Truth
	template *cell.EventTemplate
	epoll    int
	listener int
	conns    map[int32]*referenceConn
	due      []*referenceConn // a heap by their next token
	taken    int
	recv     sock.Receiver
	buf      [64 << 10]byte
	out      []byte
}

// referenceConn is a connection and the answer on it, if any.
type referenceConn struct {
	fd      int
	in      []byte // of a request not yet whole
	arrived int64  // its last byte
	request int    // -1: none
	sent    int
	limit   int
	usage   bool   // was asked for
	due     int64  // of the next token
	at      int    // in the heap
	rest    []byte // what the socket did not take
}

// RunReference serves until it is killed.
func RunReference(x *cell.Reference) error {
	runtime.LockOSThread()
	// Timers of the kernel's are 50 us late by default, so that several may end together.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	truth, err := x.OpenTruth()
	if err != nil {
		return err
	}
	defer truth.Close()
	stop, err := sock.Stamps()
	if err != nil {
		return err
	}
	defer stop()
	e := &referenceEngine{spec: x, truth: truth, template: cell.NewEventTemplate(), conns: map[int32]*referenceConn{}}
	if e.epoll, e.listener, err = listenEpoll(x.Listen); err != nil {
		return err
	}
	return e.run()
}

// maxDue bounds the tokens written between two looks at the sockets.
const maxDue = 64

// run is the engine's loop: determine what is due, read what came, wait.
func (e *referenceEngine) run() error {
	events := make([]unix.EpollEvent, 256)
	for {
		now := trace.Now()
		for n := 0; n < maxDue && len(e.due) > 0 && e.due[0].due <= now; n++ {
			e.say(e.due[0], now)
			now = trace.Now()
		}
		wait := int64(-1)
		if len(e.due) > 0 {
			wait = max(0, e.due[0].due-now)
		}
		n, err := epollWait(e.epoll, events, wait)
		if err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
		for _, ev := range events[:n] {
			e.ready(ev)
		}
	}
}

// epollWait waits for nanoseconds, for ever when they are negative.
func epollWait(epoll int, events []unix.EpollEvent, ns int64) (int, error) {
	var ts *unix.Timespec
	if ns >= 0 {
		t := unix.NsecToTimespec(ns)
		ts = &t
	}
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
		uintptr(unsafe.Pointer(ts)), 0, 0)
	if errno != 0 && errno != unix.EINTR {
		return 0, errno
	}
	if errno != 0 {
		return 0, nil
	}
	return int(n), nil
}

// say writes a stream's next token, and with the last one its end.
func (e *referenceEngine) say(c *referenceConn, now int64) {
	b := e.template.Fill(c.request, c.sent, now)
	e.truth.Wrote(c.request, c.sent, now)
	c.sent++
	last := c.sent == c.limit
	if last {
		e.out = append(append(e.out[:0], b...), cell.Ending(c.request, c.sent, c.usage)...)
		b = e.out
	}
	ok := e.write(c, b)
	if !ok {
		return // it is gone
	}
	if last {
		e.settle(c)
		c.request = -1
		e.serve(c)
		return
	}
	c.due += int64(e.spec.ITL)
	e.down(c.at)
}

// write writes b after earlier unsent data, and reports whether the connection is still
// open.
func (e *referenceEngine) write(c *referenceConn, b []byte) bool {
	if len(c.rest) > 0 {
		c.rest = append(c.rest, b...)
		return true
	}
	n, err := sock.TryWrite(c.fd, b)
	if err != nil {
		e.drop(c)
		return false
	}
	if n = max(n, 0); n < len(b) {
		c.rest = append(c.rest[:0], b[n:]...)
	}
	return true
}

func (e *referenceEngine) drop(c *referenceConn) {
	e.settle(c)
	delete(e.conns, int32(c.fd))
	unix.Close(c.fd)
}

// ready serves one readiness of the listener or a connection.
func (e *referenceEngine) ready(ev unix.EpollEvent) {
	if int(ev.Fd) == e.listener {
		e.accept()
		return
	}
	c := e.conns[ev.Fd]
	if c == nil {
		return
	}
	if ev.Events&unix.EPOLLOUT != 0 && len(c.rest) > 0 {
		rest := bytes.Clone(c.rest)
		c.rest = c.rest[:0]
		if !e.write(c, rest) {
			return
		}
	}
	if ev.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		e.read(c)
	}
}

func (e *referenceEngine) accept() {
	acceptAll(e.epoll, e.listener, func(fd int) { e.conns[int32(fd)] = &referenceConn{fd: fd, request: -1, at: -1} })
}

// read reads all available data, because readiness is reported only once.
func (e *referenceEngine) read(c *referenceConn) {
	at, open := readAll(&e.recv, c.fd, e.buf[:], &c.in)
	if !open {
		e.drop(c)
		return
	}
	// Without a stamp the time of reading is the best there is.
	now := time.Now()
	c.arrived = trace.At(now)
	if at != 0 {
		c.arrived -= max(0, now.UnixNano()-at)
	}
	if c.request < 0 {
		e.serve(c)
	}
}

// serve takes a request from the data read, if it is complete.
func (e *referenceEngine) serve(c *referenceConn) {
	head, body, ok := firstRequest(c.in)
	if !ok {
		return
	}
	switch {
	case bytes.HasPrefix(head, []byte("get /v1/models ")):
		e.write(c, models("exact"))
	case bytes.HasPrefix(head, []byte("post ")):
		c.request = requestNumber(head)
		if c.request < 0 {
			c.request = e.taken
		}
		c.sent, c.limit = 0, max(1, member(body, `"max_tokens":`), member(body, `"max_completion_tokens":`))
		c.usage = bytes.Contains(body, []byte(`"include_usage":true`)) || bytes.Contains(body, []byte(`"include_usage": true`))
		e.taken++
		e.truth.Took(c.request, c.arrived, e.taken)
		c.due = c.arrived + int64(e.spec.TTFT)
		if e.write(c, []byte(responseHead)) {
			e.await(c)
		}
	default:
		e.write(c, []byte("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
	}
	c.in = append(c.in[:0], c.in[len(head)+len(body):]...)
}

// requestNumber reads the number that ends a request's id, -1 where there is none.
func requestNumber(head []byte) int {
	i := bytes.Index(head, []byte("x-request-id:"))
	if i < 0 {
		return -1
	}
	id, _, _ := bytes.Cut(head[i:], []byte("\r\n"))
	dash := bytes.LastIndexByte(id, '-')
	n, err := strconv.Atoi(string(id[dash+1:]))
	if err != nil {
		return -1
	}
	return n
}

// await puts a stream into the heap.
func (e *referenceEngine) await(c *referenceConn) {
	c.at = len(e.due)
	e.due = append(e.due, c)
	e.up(c.at)
}

// settle takes it out.
func (e *referenceEngine) settle(c *referenceConn) {
	i := c.at
	if i < 0 {
		return
	}
	c.at = -1
	last := len(e.due) - 1
	moved := e.due[last]
	e.due[last] = nil
	e.due = e.due[:last]
	if i < last {
		e.due[i], moved.at = moved, i
		e.up(i)
		e.down(moved.at)
	}
}

func (e *referenceEngine) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if e.due[parent].due <= e.due[i].due {
			return
		}
		e.swap(i, parent)
		i = parent
	}
}

func (e *referenceEngine) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(e.due); child++ {
			if e.due[child].due < e.due[least].due {
				least = child
			}
		}
		if least == i {
			return
		}
		e.swap(i, least)
		i = least
	}
}

func (e *referenceEngine) swap(i, j int) {
	e.due[i], e.due[j] = e.due[j], e.due[i]
	e.due[i].at, e.due[j].at = i, j
}
