package gateway

import (
	"testing"
	"time"

	"weir/internal/trace"
)

// bounds keeps the last deadlines.
type bounds struct{ reads, until time.Time }

func (b *bounds) SetReadDeadline(t time.Time) error { b.reads = t; return nil }

func (b *bounds) SetWriteDeadline(t time.Time) error { b.until = t; return nil }

// A deadline that a writer sets for itself does not undo the end of the writes, whichever comes
// first. Those of the next request on the connection are its own.
func TestBreakingStays(t *testing.T) {
	var b breaking
	var w bounds
	later := time.Now().Add(time.Minute)
	b.begin(&w)
	if b.bound(&w, later); !w.until.Equal(later) {
		t.Errorf("before the end of the writes the deadline is %v, want %v", w.until, later)
	}
	soon := trace.Now() + int64(time.Second)
	b.breakOff(soon)
	if b.bound(&w, later); time.Until(w.until) > time.Second {
		t.Errorf("the writes are to end within a second, and the deadline is %v", w.until)
	}
	if b.bound(&w, broken); !w.until.Equal(broken) {
		t.Errorf("a deadline before the end of the writes is %v", w.until)
	}
	b.breakOff(longAgo)
	b.breakOff(soon)
	if b.bound(&w, later); !w.until.Equal(broken) {
		t.Errorf("after the end of the writes the deadline is %v", w.until)
	}
	if !w.reads.IsZero() {
		t.Errorf("a read has the deadline %v although nothing is read", w.reads)
	}
	b.reading(true)
	if b.breakOff(soon); !w.reads.Equal(broken) {
		t.Errorf("a read has the deadline %v", w.reads)
	}
	b.end()
	if b.breakOff(longAgo); !w.until.Equal(broken) {
		t.Errorf("the end of writes that are over sets %v", w.until)
	}
	b.begin(&w)
	if b.bound(&w, later); !w.until.Equal(later) {
		t.Errorf("the next request's deadline is %v, want %v", w.until, later)
	}
}
