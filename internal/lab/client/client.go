//go:build linux

// Package client is the client of the output path's benchmark. It opens the streams of a
// cell, reads them on one thread over epoll, and verifies each of them to its end: every
// token once, in order; the count in the usage; the end marker. The kernel stamps received
// data (SO_TIMESTAMPNS), so a token's delay is the time from the engine's stamp to the
// arrival in the client's kernel, both on CLOCK_REALTIME. It does not contain the client's
// own lateness. If several segments wait in one socket, the kernel returns the time of the
// last one: a late client makes delays look longer, never shorter.
package client

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"weir/internal/lab/cell"
	"weir/internal/lab/proc"
	"weir/internal/wire/sock"
)

// client opens the streams of a cell and reads them on one thread.
type client struct {
	cell      *cell.Cell
	board     *cell.Board
	verify    verifier
	epoll     int
	addr      unix.SockaddrInet4
	streams   []clientStream
	byFD      map[int32]int
	opened    int // streams opened so far
	live      int
	from, to  int64 // the window
	delays    *hdrhistogram.Histogram
	first     *hdrhistogram.Histogram // of the probes: of their first tokens
	added     *hdrhistogram.Histogram // of the probes: to their first tokens, both ways
	received  int                     // tokens in the window
	requests  int                     // that ended in the window
	total     Result                  // counts the requests that have ended
	chunks    int                     // in the window
	events    int
	negative  int // delays below zero
	unstamped int // reads
	recv      sock.Receiver
	buf       []byte

	// State of the current read. reading is the stream.
	reading int   // the stream
	at      int64 // the kernel's stamp
	within  bool  // the window
	onEvent func([]byte)
}

type clientStream struct {
	fd       int
	opened   int64 // when its request was written
	asked    int   // requests before this one on its connection
	account  account
	response response
	verdict  verdict
	why      string
}

// Run runs the cell's load and returns the result.
func Run(c *cell.Cell) (*Result, error) {
	b, err := c.OpenBoard()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	w, err := cell.LoadWords()
	if err != nil {
		return nil, err
	}
	addr, err := net.ResolveTCPAddr("tcp4", c.Gateway)
	if err != nil {
		return nil, err
	}
	k := &client{cell: c, board: b, streams: make([]clientStream, c.Clients()), byFD: map[int32]int{},
		delays: newHistogram(), first: newHistogram(), added: newHistogram()}
	k.addr.Port = addr.Port
	copy(k.addr.Addr[:], addr.IP.To4())
	k.verify = verifier{relayed: c.Relayed, words: w, board: b, seen: k.seen}
	k.onEvent = k.event
	if k.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	k.buf = make([]byte, 256<<10)
	stop, err := sock.Stamps()
	if err != nil {
		return nil, err
	}
	defer stop()
	return k.run()
}

// newHistogram holds microseconds up to two minutes.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 120_000_000, 3) }

func (k *client) run() (*Result, error) {
	runtime.LockOSThread()
	idle, err := proc.Of(k.cell.PIDs)
	if err != nil {
		return nil, err
	}
	if err := k.openAll(); err != nil {
		return nil, err
	}
	start := cell.Now() + int64(100*time.Millisecond)
	k.from = start + int64(k.cell.Times.Warm)
	k.to = k.from + int64(k.cell.Times.Measure)
	sampled := make(chan *window, 1)
	go func() { sampled <- sampleWindow(k.cell, k.from, k.to) }()
	k.board.Begin(start)

	probeGap := int64(0)
	if k.cell.Load.Probes > 0 {
		probeGap = int64(k.cell.Times.Measure) / int64(k.cell.Load.Probes)
	}
	deadline := k.to + int64(k.cell.Times.Tail+k.cell.Times.Drain)
	for cell.Now() < deadline && (k.live > 0 || k.opened < k.cell.Clients()) {
		if n := k.opened - k.cell.Load.Streams; n < k.cell.Load.Probes && cell.Now() >= k.from+int64(n)*probeGap {
			if err := k.open(k.opened); err != nil {
				return nil, err
			}
			continue
		}
		if err := k.poll(1); err != nil {
			return nil, err
		}
	}
	w := <-sampled
	if w.err != nil {
		return nil, w.err
	}
	return k.result(idle, w), nil
}

// openAll opens the streams, never more at once than the gateway keeps up
// with, and returns when the engine has them all.
func (k *client) openAll() error {
	const ahead = 128
	patience := cell.Now() + int64(60*time.Second)
	for {
		taken := int(k.board.Taken().Load())
		if taken >= k.cell.Load.Streams {
			return nil
		}
		if cell.Now() > patience {
			return fmt.Errorf("the engine has %d of %d streams after a minute; %s", taken, k.cell.Load.Streams, k.failure())
		}
		if k.opened < k.cell.Load.Streams && k.opened-taken < ahead {
			if err := k.open(k.opened); err != nil {
				return err
			}
			continue
		}
		if err := k.poll(1); err != nil {
			return err
		}
	}
}

// failure returns why the first failed stream failed.
func (k *client) failure() string {
	for i := range k.streams {
		if s := &k.streams[i]; s.verdict == errored || s.verdict == cut {
			return fmt.Sprintf("stream %d: %s", i, s.why)
		}
	}
	return "none failed"
}

// open connects and sends a request.
func (k *client) open(n int) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	if err := sock.Stamp(fd); err != nil {
		return err
	}
	if err := unix.Connect(fd, &k.addr); err != nil {
		return fmt.Errorf("connect %s: %w", k.cell.Gateway, err)
	}
	opened, err := k.ask(fd, n, true)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fmt.Errorf("nonblock: %w", err)
	}
	if err := unix.EpollCtl(k.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	k.streams[n] = clientStream{fd: fd, opened: opened, account: account{usage: -1}}
	k.byFD[int32(fd)] = n
	k.opened++
	k.live++
	return nil
}

// ask writes a stream's request.
func (k *client) ask(fd, n int, first bool) (opened int64, err error) {
	request := k.request(n, first)
	opened = cell.Now()
	if m, err := unix.Write(fd, request); err != nil || m < len(request) {
		return 0, fmt.Errorf("write request: %d of %d bytes: %w", m, len(request), err)
	}
	return opened, nil
}

func (k *client) request(n int, first bool) []byte {
	id := "stream"
	if n >= k.cell.Load.Streams {
		id = cell.ProbeID
	}
	limit := k.cell.Limit(n, first)
	if limit == 0 {
		limit = cell.NoLimit
	}
	body := k.cell.Body(n, limit)
	return append(k.cell.Head(fmt.Sprintf("%s-%d", id, n), len(body)), body...)
}

// poll reads every stream that has something.
func (k *client) poll(wait int) error {
	var events [1024]unix.EpollEvent
	n, err := unix.EpollWait(k.epoll, events[:], wait)
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("epoll: %w", err)
	}
	for _, ev := range events[:max(n, 0)] {
		k.read(k.byFD[ev.Fd])
	}
	return nil
}

// read reads once; remaining data makes the socket ready again.
func (k *client) read(n int) {
	s := &k.streams[n]
	m, at, err := k.recv.TryReceive(s.fd, k.buf)
	switch {
	case err != nil, m == 0:
		k.end(n, err)
		return
	case m < 0:
		return
	}
	if at == 0 {
		// Without a stamp the time of reading is the best there is, and too late.
		k.unstamped++
		at = cell.Now()
	}
	k.reading, k.at = n, at
	k.within = at >= k.from && at < k.to && k.from != 0
	chunks, events := s.response.chunks, s.account.events
	err = s.response.feed(k.buf[:m], k.onEvent)
	if k.within {
		k.chunks += s.response.chunks - chunks
		k.events += s.account.events - events
	}
	if err != nil || s.response.complete() {
		k.end(n, err)
	}
}

// event takes in an event of the stream that is being read.
func (k *client) event(e []byte) { k.verify.event(&k.streams[k.reading].account, k.reading, e) }

// seen takes in a token of the stream that is being read.
func (k *client) seen(sent int64) {
	if !k.within {
		return
	}
	k.received++
	if k.at < sent {
		k.negative++
	}
	d := max((k.at-sent+500)/1000, 0)
	_ = k.delays.RecordValue(d) // two minutes are never reached
	if (k.reading >= k.cell.Load.Streams || k.streams[k.reading].asked > 0) && k.streams[k.reading].account.received == 1 {
		_ = k.first.RecordValue(d)
		if at, ok := k.board.Arrival(k.reading); ok {
			_ = k.added.RecordValue(d + max((at-k.streams[k.reading].opened+500)/1000, 0))
		}
	}
}

// end judges a stream's request. It closes the connection, unless another request follows
// on it.
func (k *client) end(n int, broken error) {
	s := &k.streams[n]
	s.verdict = s.account.judge(&s.response, broken)
	switch {
	case broken != nil:
		s.why = broken.Error()
	case s.account.errorText != "":
		s.why = s.account.errorText
	default:
		s.why = fmt.Sprintf("ended with finish %t, usage %d, [DONE] %t", s.account.finished, s.account.usage, s.account.done)
	}
	k.total.count(s)
	if k.within {
		k.requests++
	}
	if k.cell.Load.Length > 0 && n < k.cell.Load.Streams && s.verdict == complete && k.at < k.to {
		if opened, err := k.ask(s.fd, n, false); err == nil {
			*s = clientStream{fd: s.fd, opened: opened, asked: s.asked + 1, account: account{usage: -1}}
			return
		}
	}
	delete(k.byFD, int32(s.fd))
	unix.Close(s.fd)
	k.live--
}
