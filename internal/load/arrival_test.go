package load

import (
	"testing"

	"weir/internal/wire/sock"
)

// Data that came in one segment has its time. Data that came in several segments, or may have, is
// known only to have come after the read before.
func TestArrivals(t *testing.T) {
	const room = 100
	type step struct {
		n       int // bytes read
		at      int64
		dark    bool          // without a stamp
		known   sock.Arrivals // afterwards, where they are asked for
		deaf    bool          // they are asked for in vain
		first   int64         // of what the read brought, where that was asked
		inexact bool          // of its last byte
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"one segment each", []step{
			{n: 10, at: 20, known: sock.Arrivals{Segments: 1, Bytes: 10}, first: 20},
			{n: 10, at: 30, known: sock.Arrivals{Segments: 2, Bytes: 20}, first: 30}}},
		{"two at once", []step{{n: 10, at: 20}, {n: 20, at: 30, known: sock.Arrivals{Segments: 3, Bytes: 30}, first: 20}}},
		{"the first two at once", []step{{n: 10, at: 20, known: sock.Arrivals{Segments: 2, Bytes: 10}, first: 5}}},
		{"not asked of reads of several, then asked, then known again", []step{
			{n: 30, at: 20}, {n: 10, at: 30, known: sock.Arrivals{Segments: 4, Bytes: 40}, first: 20},
			{n: 10, at: 40, known: sock.Arrivals{Segments: 5, Bytes: 50}, first: 40}}},
		{"one more came before it was asked, and then another with it", []step{
			{n: 10, at: 20, known: sock.Arrivals{Segments: 2, Bytes: 20}, first: 5},
			{n: 20, at: 40, known: sock.Arrivals{Segments: 3, Bytes: 30}, first: 20}}},
		{"a segment longer than there is room", []step{
			{n: room, at: 20, inexact: true}, {n: 50, at: 20},
			{n: 10, at: 30, known: sock.Arrivals{Segments: 2, Bytes: room + 60}, first: 30}}},
		{"more than there is room, joined", []step{
			{n: room, at: 30, known: sock.Arrivals{Segments: 4, Bytes: room + 50}, first: 5, inexact: true},
			{n: 50, at: 30, known: sock.Arrivals{Segments: 4, Bytes: room + 50}, first: 5}}},
		{"no stamp", []step{{n: 10, at: 20, dark: true, known: sock.Arrivals{Segments: 1, Bytes: 10}, first: 5, inexact: true},
			{n: 10, at: 30, known: sock.Arrivals{Segments: 3, Bytes: 20}, first: 5}}},
		{"no counters", []step{{n: 10, at: 20, deaf: true, first: 5}, {n: 10, at: 30, deaf: true, first: 20}}},
		{"counters of nothing", []step{{n: 10, at: 20, known: sock.Arrivals{Bytes: 10}, first: 5}}},
		{"out of order", []step{
			{n: 10, at: 20, known: sock.Arrivals{Segments: 1, Bytes: 10}, first: 20},
			// One was lost and two came behind it, of which one is still awaited for.
			{n: 20, at: 30, known: sock.Arrivals{Segments: 4, OutOfOrder: 2, Bytes: 30}, first: 20},
			{n: 20, at: 40, known: sock.Arrivals{Segments: 5, OutOfOrder: 2, Bytes: 50}, first: 30},
			{n: 10, at: 50, known: sock.Arrivals{Segments: 6, OutOfOrder: 2, Bytes: 60}, first: 50}}},
	} {
		var a arrivals
		a.begin(5)
		for i, s := range c.steps {
			a.read(s.n, room, s.at, !s.dark)
			if a.exact() == s.inexact {
				t.Errorf("%s: step %d: the last byte's time is known: %v", c.name, i, a.exact())
			}
			if s.first == 0 {
				continue
			}
			if got := a.oldest(s.at, s.known, !s.deaf); got != s.first || !a.asked || a.first != got {
				t.Errorf("%s: step %d: since %d, want %d", c.name, i, got, s.first)
			}
		}
	}
}

// Where so much waited that the sender may have waited as well, what follows may
// have been held back until the read, and has no time of its own.
func TestHeldBack(t *testing.T) {
	var a arrivals
	a.begin(5)
	bytes, segments := uint64(0), uint32(0)
	read := func(n, room int, at int64) (first int64, exact bool) {
		a.read(n, room, at, true)
		bytes += uint64(n)
		segments++
		return a.oldest(at, sock.Arrivals{Segments: segments, Bytes: bytes}, true), a.exact()
	}
	if first, exact := read(windowOpen, windowOpen, 90); first != 90 || exact {
		t.Errorf("as much as may wait: %v, %v", first, exact)
	}
	for _, n := range []int{10, 20} { // the end of it, and what followed
		if first, exact := read(n, windowOpen, 100); first != 5 || exact {
			t.Errorf("held back: %v, %v", first, exact)
		}
	}
	if first, exact := read(10, windowOpen, 110); first != 110 || !exact {
		t.Errorf("afterwards: %v, %v", first, exact)
	}
	read(2*windowOpen, 3*windowOpen, 120)
	a.begin(130)
	if first, exact := read(10, windowOpen, 140); first != 140 || !exact {
		t.Errorf("another response: %v, %v", first, exact)
	}
}
