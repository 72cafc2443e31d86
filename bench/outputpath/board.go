//go:build linux

package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// board is memory that the processes of a cell share: when the load began, how
// far the engine is, and, for the plane, when each token was sent.
//
// A stamp is written before its token is sent and read after the token was
// received, so the sockets order the two.
type board struct {
	mem    []byte
	tokens int
	stamps []int64
}

// Fields at the board's beginning, each in a cache line of its own.
const (
	boardStart   = iota * 64 // CLOCK_REALTIME ns when the load begins; 0: not yet
	boardStreams             // requests the engine has taken in so far
	boardSent                // tokens the engine has sent
	boardHead    = 4096
)

// openBoard maps a board file, making it when it is not there, with room for
// the stamps of so many tokens of so many streams.
func openBoard(path string, streams, tokens int) (*board, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("board: %w", err)
	}
	defer f.Close()
	size := boardHead + 8*streams*tokens
	if err := f.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("board: %w", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("board: map %d bytes: %w", size, err)
	}
	b := &board{mem: mem, tokens: tokens}
	if n := streams * tokens; n > 0 {
		b.stamps = unsafe.Slice((*int64)(unsafe.Pointer(&mem[boardHead])), n)
	}
	return b, nil
}

func (b *board) close() { _ = unix.Munmap(b.mem) }

func (b *board) field(offset int) *atomic.Int64 {
	return (*atomic.Int64)(unsafe.Pointer(&b.mem[offset]))
}

// started gives the moment the load began or will begin, and false when nobody
// has said so yet.
func (b *board) started() (int64, bool) {
	at := b.field(boardStart).Load()
	return at, at != 0
}

// stamp notes when a token is sent.
func (b *board) stamp(stream, token int, at int64) { b.stamps[stream*b.tokens+token] = at }

// sent tells when a token was sent, and false for one that was not.
func (b *board) sent(stream, token int) (int64, bool) {
	if token >= b.tokens {
		return 0, false
	}
	at := b.stamps[stream*b.tokens+token]
	return at, at != 0
}

// now reads CLOCK_REALTIME, the clock of the kernel's receive stamps.
func now() int64 { return time.Now().UnixNano() }

// sleepUntil sleeps to an absolute time of that clock, from the caller's own
// thread: Go's timers are up to a millisecond late.
func sleepUntil(at int64) {
	ts := unix.NsecToTimespec(at)
	for unix.ClockNanosleep(unix.CLOCK_REALTIME, unix.TIMER_ABSTIME, &ts, nil) == unix.EINTR {
	}
}
