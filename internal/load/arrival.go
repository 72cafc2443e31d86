package load

import "weir/internal/wire/sock"

// arrivals estimates from when the bytes of a read had been arriving. It is fed with reads
// and with the kernel's counters, and knows no socket.
//
// A read has the stamp of the last segment that it brought. If it brought one segment, all
// of it arrived then. If it brought several, the others arrived between the stamp of the
// read before, which left nothing, and its own stamp. The number of segments of a read is
// the connection's count less those of earlier reads. The count is asked for only when it
// matters, and a read in between counts as one segment. So one segment may be taken for
// several, but never several for one.
type arrivals struct {
	floor int64 // what is not read yet arrived after it

	// The last read.
	since   int64 // it arrived after
	stamped bool
	full    bool  // it had no room for more
	held    bool  // the sender may have had to wait for room
	asked   bool  // what follows is known
	first   int64 // the earliest that any of it may have arrived

	run      int    // bytes read since nothing was left to read
	heldLast bool   // held, of what was read until then
	bytes    uint64 // read
	segments uint32 // read before the last read, at least
	ended    uint32 // that ended with it, at least
	disorder uint32 // segments out of order, when they were last counted
}

// windowOpen is how many bytes may wait without the sender having to wait for
// room: a quarter of the window with which Linux begins.
const windowOpen = 16 << 10

// begin records that nothing is left to read, and that nothing will arrive before a time.
func (a *arrivals) begin(at int64) {
	a.floor = max(a.floor, at)
	a.run, a.heldLast = 0, false
}

// read records a read of n bytes into room for this many; at is its stamp, if it has one.
func (a *arrivals) read(n, room int, at int64, stamped bool) {
	a.segments += a.ended
	a.bytes += uint64(n)
	a.run += n
	a.since, a.stamped, a.asked = a.floor, stamped, false
	a.held = a.heldLast || a.run > windowOpen
	// If a segment did not fit, the kernel may have joined it with a later one, and the
	// stamp is that of its end.
	if a.full = n == room; a.full {
		a.ended = 0
		return
	}
	a.ended = 1
	a.heldLast, a.run = a.run > windowOpen, 0
	if stamped && !a.heldLast {
		a.floor = max(a.floor, at)
	}
}

// exact reports whether the last byte of the last read arrived at its stamp.
func (a *arrivals) exact() bool { return a.stamped && !a.full && !a.held }

// oldest returns the earliest time at which any of the last read may have arrived, given
// that the read has a time. known are the kernel's counters since that read.
func (a *arrivals) oldest(at int64, known sock.Arrivals, told bool) int64 {
	a.asked, a.first = true, min(a.since, at)
	if told && a.stamped && !a.held && known.Segments > 0 && known.OutOfOrder == a.disorder && known.Segments-a.segments <= 1 {
		a.first = at
	}
	if told {
		a.count(known)
	}
	return a.first
}

// count takes the kernel's counters, if they cover no more than what was read.
func (a *arrivals) count(known sock.Arrivals) {
	if known.Bytes != a.bytes {
		return
	}
	// Segments out of order have been counted, and may not have been read.
	a.segments, a.ended = known.Segments-(known.OutOfOrder-a.disorder), 0
	a.disorder = known.OutOfOrder
}
