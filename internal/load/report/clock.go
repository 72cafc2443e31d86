package report

import "math"

// Offset brings the stamps of another clock onto the client's.
type Offset struct {
	// Add is added to stamps, in nanoseconds.
	Add int64 `json:"add_ns"`
	// Uncertain is the half-width of the possible range; 0 on the same clock.
	Uncertain int64 `json:"uncertain_ns"`
	// Contradicted reports whether no offset agrees with all requests: the clock was set
	// during the run.
	Contradicted bool `json:"contradicted,omitempty"`
	known        bool
}

// Clock holds the offsets of a run: the gateway's, and without a gateway the
// server's.
type Clock struct {
	Gateway Offset `json:"gateway"`
	Server  Offset `json:"server"`
}

func (o Offset) apply(stamp int64) int64 {
	if stamp == 0 {
		return 0
	}
	return stamp + o.Add
}

// bounds narrows an offset by what must be: the other side receives after this
// one sent, and sends before this one received.
type bounds struct {
	least, most int64
	any         bool
}

func newBounds() bounds { return bounds{least: math.MinInt64, most: math.MaxInt64} }

// after records that a stamp of the other clock cannot be before one of ours.
func (b *bounds) after(other, ours int64) {
	if other != 0 && ours != 0 {
		b.least, b.any = max(b.least, ours-other), true
	}
}

// before records that a stamp of the other clock cannot be after one of ours.
func (b *bounds) before(other, ours int64) {
	if other != 0 && ours != 0 {
		b.most, b.any = min(b.most, ours-other), true
	}
}

// offset returns no offset if the stamps agree as they are, and otherwise the middle of the
// possible range.
func (b *bounds) offset() Offset {
	switch {
	case !b.any:
		return Offset{}
	case b.least <= 0 && b.most >= 0:
		return Offset{known: true}
	case b.least == math.MinInt64:
		return Offset{Add: b.most, known: true}
	case b.most == math.MaxInt64:
		return Offset{Add: b.least, known: true}
	}
	mid := b.least + (b.most-b.least)/2
	return Offset{Add: mid, Uncertain: max(b.most-b.least, b.least-b.most) / 2, Contradicted: b.least > b.most, known: true}
}

// settle finds the offsets of a run's requests.
func settle(rows []Row) Clock {
	gateway, server := newBounds(), newBounds()
	same := true
	for i := range rows {
		r := &rows[i]
		if g := r.Gateway; g != nil {
			same = same && g.sameClock
			gateway.after(g.Arrival, r.Sent)
			// A write returns after the other kernel has its bytes. So the stamp before the
			// write is the one that cannot be after their arrival.
			gateway.before(g.FirstReceived, r.FirstContent)
			continue
		}
		server.after(epoch(r.Server.Received), r.Sent)
		server.before(epoch(r.Server.ResponseSent), r.FirstContent)
	}
	c := Clock{Server: server.offset()}
	if !same {
		c.Gateway = gateway.offset()
	}
	return c
}
