//go:build linux

package loadengine

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"weir/internal/lab/cell"
	"weir/internal/wire/sock"
)

// httpEngine is an engine over HTTP that costs next to nothing: one thread, raw sockets,
// prepared bytes, one write per event. If a stream's connection is full, its writes are
// counted and made one by one when there is room again.
type httpEngine struct {
	cell     *cell.Cell
	board    *cell.Board
	sched    cell.Schedule
	wire     wire
	epoll    int
	listener int
	conns    map[int32]*engineConn
	streams  []*engineConn // by stream
	late     []*engineConn // probes, which keep their own time
	cursor   int           // the next token of the cell.Schedule
	taken    int64
	recv     sock.Receiver
	buf      [4096]byte
}

// engineConn is a connection and the stream on it, if any.
type engineConn struct {
	fd      int
	in      []byte // of a request not yet whole
	arrived int64  // its last byte, in this kernel
	stream  int    // -1: none
	sent    int    // tokens
	owed    int    // tokens due and not sent
	limit   int
	begins  int64 // of a probe: when its first token is due, after the start
	rest    []byte
	blocked bool
	ending  bool // the end is due
}

// RunHTTP serves until it is killed.
func RunHTTP(c *cell.Cell) error {
	runtime.LockOSThread()
	b, err := c.OpenBoard()
	if err != nil {
		return err
	}
	defer b.Close()
	e := &httpEngine{cell: c, board: b, conns: map[int32]*engineConn{}, streams: make([]*engineConn, c.Capacity())}
	if e.wire, err = wireOf(c); err != nil {
		return err
	}
	stop, err := sock.Stamps()
	if err != nil {
		return err
	}
	defer stop()
	if c.Load.Rate > 0 || c.Load.Idle {
		e.sched = cell.NewSchedule(c.Load, c.Times)
	}
	if e.epoll, e.listener, err = listenEpoll(c.Engine); err != nil {
		return err
	}
	return e.run()
}

// run is the engine's loop: read what came, send what is due, sleep until the next tick.
// Ticks are absolute, so a late one is made up for.
func (e *httpEngine) run() error {
	events := make([]unix.EpollEvent, 1024)
	var start, next int64
	for {
		wait := 0
		if start == 0 {
			wait = 1
		}
		for {
			n, err := unix.EpollWait(e.epoll, events, wait)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("epoll: %w", err)
			}
			for _, ev := range events[:max(n, 0)] {
				e.ready(ev)
			}
			if n < len(events) {
				break
			}
		}
		if start == 0 {
			at, ok := e.board.Started()
			if !ok {
				continue
			}
			start, next = at, at
			cell.SleepUntil(start)
		}
		if e.emit(cell.Now() - start) {
			continue
		}
		next += int64(cell.Tick)
		if t := cell.Now(); next < t-int64(cell.Tick) {
			next = t // ticks that were missed are one: all that is due goes out at once
		}
		cell.SleepUntil(next)
	}
}

// maxEmit bounds the tokens that are handled between two looks at the sockets,
// or an engine that is behind would look away for longer and longer.
const maxEmit = 1024

// emit sends what is due at a time after the start. It reports whether to continue without
// a pause, because more is due or the load has no pauses.
func (e *httpEngine) emit(at int64) (more bool) {
	wrote := false
	if e.sched.Streams > 0 {
		for n := 0; e.cursor < e.sched.Total() && e.sched.Due(e.cursor) <= at; n++ {
			if n == maxEmit {
				more = true
				break
			}
			if c := e.streams[e.cursor%e.sched.Streams]; c != nil {
				c.owed++
				e.push(c, at)
			}
			e.cursor++
		}
	} else {
		for _, c := range e.streams[:e.cell.Load.Streams] {
			if c != nil && !c.blocked {
				c.owed = 1
				wrote = e.push(c, at) || wrote
			}
		}
	}
	if (e.cell.Load.Idle || e.cell.Load.EndOnTime || e.cell.Load.Length > 0) && at >= int64(e.cell.Times.End()) {
		for _, c := range e.streams {
			if c != nil {
				e.push(c, at)
			}
		}
	}
	e.emitLate(at)
	return more || wrote
}

// emitLate does the same for the probes.
func (e *httpEngine) emitLate(at int64) {
	kept := e.late[:0]
	for _, c := range e.late {
		due := 0
		if at >= c.begins {
			due = 1
			if e.sched.Period > 0 {
				due += int((at - c.begins) / e.sched.Period)
			}
		}
		if c.owed = min(due, c.limit) - c.sent; c.owed > 0 {
			e.push(c, at)
		}
		if c.stream >= 0 && c.sent < c.limit {
			kept = append(kept, c)
		}
	}
	e.late = kept
}

// push writes the owed events of a stream, as far as its connection accepts them.
func (e *httpEngine) push(c *engineConn, at int64) (wrote bool) {
	if c.blocked {
		return false
	}
	for c.stream >= 0 {
		if len(c.rest) > 0 {
			n, ok := e.write(c, c.rest)
			c.rest = c.rest[n:]
			if !ok {
				return wrote
			}
			continue
		}
		if c.ending {
			e.finish(c)
			return true
		}
		if c.limit > 0 && c.sent >= c.limit || (c.limit == 0 || e.cell.Load.Length > 0) && at >= int64(e.cell.Times.End()) {
			if e.cell.Load.Idle && at < int64(e.cell.Times.End()) {
				return wrote
			}
			c.rest = e.wire.ending(c.stream, c.sent)
			c.ending = true
			continue
		}
		if c.owed == 0 {
			return wrote
		}
		if !e.cell.Relayed {
			e.board.Stamp(c.stream, c.sent, cell.Now())
		}
		b := e.wire.token(c.stream, c.sent)
		n, ok := e.write(c, b)
		if n == 0 && !ok {
			return wrote
		}
		wrote = true
		if n < len(b) {
			c.rest = append([]byte(nil), b[n:]...)
		}
		c.sent++
		c.owed--
		e.board.Sent().Add(1)
	}
	return wrote
}

// write writes once. ok is false when the connection takes no more.
func (e *httpEngine) write(c *engineConn, b []byte) (n int, ok bool) {
	n, err := unix.Write(c.fd, b)
	if n < 0 {
		n = 0
	}
	switch {
	case err == nil:
		return n, true
	case errors.Is(err, unix.EAGAIN):
		c.blocked = true
	case errors.Is(err, unix.EINTR):
		return n, true
	default:
		e.drop(c)
	}
	return n, false
}

// finish frees the connection for its next request.
func (e *httpEngine) finish(c *engineConn) {
	e.streams[c.stream] = nil
	c.stream, c.ending, c.sent, c.owed = -1, false, 0, 0
	e.request(c)
}

func (e *httpEngine) drop(c *engineConn) {
	if c.stream >= 0 {
		e.streams[c.stream] = nil
		c.stream = -1
	}
	delete(e.conns, int32(c.fd))
	unix.Close(c.fd)
}

// ready serves one readiness of the listener or a connection.
func (e *httpEngine) ready(ev unix.EpollEvent) {
	if int(ev.Fd) == e.listener {
		e.accept()
		return
	}
	c := e.conns[ev.Fd]
	if c == nil {
		return
	}
	if ev.Events&unix.EPOLLOUT != 0 && c.blocked {
		c.blocked = false
		if at, ok := e.board.Started(); ok {
			e.push(c, cell.Now()-at)
		}
	}
	if ev.Events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) != 0 && e.conns[ev.Fd] != nil {
		e.read(c)
	}
}

func (e *httpEngine) accept() {
	acceptAll(e.epoll, e.listener, func(fd int) {
		if e.cell.Load.Rate == 0 {
			// An engine that never pauses must not fill megabytes per stream.
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 32<<10)
		}
		e.conns[int32(fd)] = &engineConn{fd: fd, stream: -1}
	})
}

// read reads all available data, because readiness is reported only once.
func (e *httpEngine) read(c *engineConn) {
	at, open := readAll(&e.recv, c.fd, e.buf[:], &c.in)
	if !open {
		e.drop(c)
		return
	}
	if c.arrived = at; at == 0 {
		c.arrived = cell.Now() // without a stamp the time of reading is the best there is
	}
	if c.stream < 0 {
		e.request(c)
	}
}

// request takes a request from the data read, if it is complete.
func (e *httpEngine) request(c *engineConn) {
	head, body, ok := firstRequest(c.in)
	if !ok {
		return
	}
	document := e.wire.document(head, body)
	stream, limit := -1, 0
	if document == nil {
		stream, limit = e.wire.asked(body)
	}
	if limit == cell.NoLimit {
		limit = 0
	}
	c.in = append(c.in[:0], c.in[len(head)+len(body):]...)
	if document != nil {
		e.write(c, document)
		return
	}
	if stream < 0 || stream >= len(e.streams) || e.streams[stream] != nil {
		e.write(c, []byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
		return
	}
	if n, _ := e.write(c, []byte(responseHead)); n < len(responseHead) {
		e.drop(c)
		return
	}
	c.stream, c.limit = stream, limit
	e.streams[stream] = c
	e.board.Arrived(stream, c.arrived)
	e.taken++
	e.board.Taken().Store(e.taken)
	if stream >= e.cell.Load.Streams && e.cell.Load.Flood != cell.HangUps {
		at, _ := e.board.Started()
		c.begins = e.sched.NextStep(cell.Now() - at)
		e.late = append(e.late, c)
	}
}
