package front

import (
	"testing"
	"time"
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
	b.breakOff(time.Second)
	if b.bound(&w, later); time.Until(w.until) > time.Second {
		t.Errorf("the writes are to end within a second, and the deadline is %v", w.until)
	}
	if b.bound(&w, broken); !w.until.Equal(broken) {
		t.Errorf("a deadline before the end of the writes is %v", w.until)
	}
	b.breakOff(-time.Second)
	b.breakOff(time.Second)
	if b.bound(&w, later); w.until.After(time.Now()) {
		t.Errorf("after the end of the writes the deadline is %v", w.until)
	}
	if !w.reads.IsZero() {
		t.Errorf("a read has the deadline %v although nothing is read", w.reads)
	}
	b.reading(true)
	if b.breakOff(time.Second); !w.reads.Equal(broken) {
		t.Errorf("a read has the deadline %v", w.reads)
	}
	b.end()
	if b.breakOff(-time.Second); w.until.After(time.Now()) {
		t.Errorf("the end of writes that are over sets %v", w.until)
	}
	b.begin(&w)
	if b.bound(&w, later); !w.until.Equal(later) {
		t.Errorf("the next request's deadline is %v, want %v", w.until, later)
	}
}
