//go:build linux

package cell

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Board is memory that the processes of a cell share. It holds when the load began, how far
// the engine is, when each request reached it and, for the plane, when each token was sent.
//
// A stamp is written before its token is sent and read after the token was received, so the
// sockets order the two.
type Board struct {
	mem      []byte
	tokens   int
	arrivals []int64 // by stream
	stamps   []int64
}

// Fields at the board's beginning, each in a cache line of its own.
const (
	boardStart = iota * 64 // CLOCK_REALTIME ns when the load begins; 0: not yet
	boardTaken
	boardSent
	boardFlooded
	boardHead = 4096
)

// OpenBoard maps a board file, making it when it is not there, with room for
// the stamps of this many tokens of this many streams.
func OpenBoard(path string, streams, tokens int) (*Board, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("board: %w", err)
	}
	defer f.Close()
	size := boardHead + 8*streams*(1+tokens)
	if err := f.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("board: %w", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("board: map %d bytes: %w", size, err)
	}
	b := &Board{mem: mem, tokens: tokens}
	if streams > 0 {
		times := unsafe.Slice((*int64)(unsafe.Pointer(&mem[boardHead])), streams*(1+tokens))
		b.arrivals, b.stamps = times[:streams], times[streams:]
	}
	return b, nil
}

// Close unmaps it.
func (b *Board) Close() { _ = unix.Munmap(b.mem) }

// Begin sets the time when the load begins.
func (b *Board) Begin(at int64) { b.field(boardStart).Store(at) }

// Taken counts the requests that the engine has taken in so far.
func (b *Board) Taken() *atomic.Int64 { return b.field(boardTaken) }

// Sent counts the tokens that the engine has sent.
func (b *Board) Sent() *atomic.Int64 { return b.field(boardSent) }

// Flooded counts the requests of the flood that are over.
func (b *Board) Flooded() *atomic.Int64 { return b.field(boardFlooded) }

func (b *Board) field(offset int) *atomic.Int64 {
	return (*atomic.Int64)(unsafe.Pointer(&b.mem[offset]))
}

// Started returns the time when the load began or will begin, and false if Begin has not
// been called yet.
func (b *Board) Started() (int64, bool) {
	at := b.field(boardStart).Load()
	return at, at != 0
}

// Arrived notes when a stream's request reached the engine.
func (b *Board) Arrived(stream int, at int64) { b.arrivals[stream] = at }

// Arrival returns when a stream's request reached the engine, and false if it did not.
func (b *Board) Arrival(stream int) (int64, bool) {
	at := b.arrivals[stream]
	return at, at != 0
}

// Stamp notes when a token is sent.
func (b *Board) Stamp(stream, token int, at int64) { b.stamps[stream*b.tokens+token] = at }

// SentAt returns when a token was sent, and false if it was not.
func (b *Board) SentAt(stream, token int) (int64, bool) {
	if token >= b.tokens {
		return 0, false
	}
	at := b.stamps[stream*b.tokens+token]
	return at, at != 0
}

// Now reads CLOCK_REALTIME, the clock of the kernel's receive stamps.
func Now() int64 { return time.Now().UnixNano() }

// SleepUntil sleeps to an absolute time of that clock, from the caller's own
// thread: Go's timers are up to a millisecond late.
func SleepUntil(at int64) {
	ts := unix.NsecToTimespec(at)
	for unix.ClockNanosleep(unix.CLOCK_REALTIME, unix.TIMER_ABSTIME, &ts, nil) == unix.EINTR {
	}
}
