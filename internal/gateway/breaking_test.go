package gateway

import (
	"testing"
	"time"
)

// bounds keeps the last deadline.
type bounds struct{ until time.Time }

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
	b.breakOff()
	if b.bound(&w, later); !w.until.Equal(broken) {
		t.Errorf("after the end of the writes the deadline is %v", w.until)
	}
	b.end()
	if b.breakOff(); !w.until.Equal(broken) {
		t.Errorf("the end of writes that are over sets %v", w.until)
	}
	b.begin(&w)
	if b.bound(&w, later); !w.until.Equal(later) {
		t.Errorf("the next request's deadline is %v, want %v", w.until, later)
	}
}
