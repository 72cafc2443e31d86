package front

import (
	"sync"
	"time"

	"weir/internal/trace"
)

// breaking ends a write that waits for the client, and a read of its body, when the request's
// context ends. After a hang-up they end at once. Otherwise the client is there and is to get
// an error, which cannot follow a write that was broken off, so the write has some time left.
type breaking struct {
	mu    sync.Mutex
	w     deadlined // nil: it has not begun, or is over
	by    uint32    // when ended: breakOff ends the writes by then, in milliseconds of trace's clock modulo 2^32
	ended bool      // by breakOff
	reads bool      // the body may be being read
}

// deadlined is a connection whose reads and writes can end by a deadline.
type deadlined interface {
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// broken is a deadline that has passed.
var broken = time.Unix(1, 0)

// LastWords bounds a write that was under way when something other than a hang-up ended its
// request, and the error that follows it.
const LastWords = 5 * time.Second

// begin has breakOff end the writes to w.
func (b *breaking) begin(w deadlined) {
	b.mu.Lock()
	b.w, b.ended, b.reads = w, false, false
	b.mu.Unlock()
}

// reading says whether the body is being read. A read that begins after breakOff does not end
// by it.
func (b *breaking) reading(reads bool) {
	b.mu.Lock()
	b.reads = reads
	b.mu.Unlock()
}

// bound bounds a write to w, by the end of the writes at the latest: a deadline of its own would
// undo that.
func (b *breaking) bound(w deadlined, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		if by := deadlineAt(b.by); by.Before(until) {
			until = by
		}
	}
	_ = w.SetWriteDeadline(until) // fails only on a closed connection, as writes will
}

// soon is a time from now as breaking keeps it, in few bytes because an exchange fills its size
// class.
func soon(left time.Duration) uint32 { return uint32((trace.Now() + int64(left)) / 1e6) }

// deadlineAt is such a time as a deadline.
func deadlineAt(by uint32) time.Time {
	return time.Now().Add(time.Duration(int32(by-soon(0))) * time.Millisecond)
}

// breakOff ends the writes within a time, and a read of the body at once.
func (b *breaking) breakOff(within time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.w == nil {
		return
	}
	if by := soon(within); !b.ended || int32(by-b.by) < 0 {
		b.by, b.ended = by, true
		_ = b.w.SetWriteDeadline(deadlineAt(by)) // fails only on a closed connection, as writes will
	}
	if b.reads {
		_ = b.w.SetReadDeadline(broken) // likewise
	}
}

// end ends it. From here on deadlines are the caller's own, and w need not live.
func (b *breaking) end() { b.begin(nil) }
