package cost

import (
	"math"
	"sync/atomic"
)

// Unseen is how much of Wait is for what others do.
func (r *Rank) Unseen(now int64) float64 {
	unseen := 0.0
	if r.unseen.Load() != 0 {
		unseen = r.others(now)
	}
	if p := r.peers.Load(); p != nil {
		// Work that was not seen belongs to peers, until they are known to do more.
		unseen = max(unseen, float64(p.Drained-now)/millisecond)
	}
	return unseen
}

// Peers is what other gateways have booked on a rank.
type Peers struct {
	Drained  int64 // when their prefills are predicted to be done, one after another
	InFlight int64 // requests that decode there, or will
	Decoders int64 // of these, those that have their first token
	Held     int64 // tokens
}

// strangers is what is known of work that this gateway has not given to a rank.
type strangers struct {
	unseen   atomic.Uint64 // float64: ms that it was found to take
	unseenAt atomic.Int64  // when unseen was
	peers    atomic.Pointer[Peers]
}

// others is how long the work takes at time now that nobody has told of, in milliseconds.
func (s *strangers) others(now int64) float64 {
	u := math.Float64frombits(s.unseen.Load())
	if u == 0 {
		return 0
	}
	age := float64(max(now-s.unseenAt.Load(), 0))
	// Work that was waited for so long cannot be done in less time.
	return max(u*halved(age/unseenHalf), u-age/millisecond)
}

// found takes a share of what an interval had beyond the books, in milliseconds.
func (s *strangers) found(now int64, ms float64) {
	u := s.others(now)
	s.unseen.Store(math.Float64bits(u + 0.3*(max(ms, 0)-u)))
	s.unseenAt.Store(now)
}

// Books are what this gateway has booked on the rank, for its peers, at time now.
func (r *Rank) Books(now int64) Peers {
	booked, _, _ := r.queued(now)
	return Peers{
		Drained:  now + booked,
		InFlight: r.inFlight.Load() - int64(r.prefills.Load()),
		Decoders: r.decoders.Load(),
		Held:     r.own(),
	}
}

// SetPeers says what the others' books together are. It stands until it is set again.
func (r *Rank) SetPeers(p Peers) {
	more := p.InFlight
	r.mu.Lock()
	if old := r.peers.Swap(&p); old != nil {
		more -= old.InFlight
	}
	r.publish()
	r.mu.Unlock()
	r.model.theirs.Add(more)
}

// Others returns what SetPeers was given last.
func (r *Rank) Others() Peers {
	if p := r.peers.Load(); p != nil {
		return *p
	}
	return Peers{}
}

// unseenHalf is the half-life of the estimate of others' work.
const unseenHalf = 5e9

// waited notes that the engine began a prefill later than the books explain.
func (r *Rank) waited(now int64, b *Booking, began int64) {
	if max(b.at, r.last) <= r.stood || b.at <= r.silent {
		return
	}
	l := r.learned.Load()
	step := l.Decode + l.Decoder*float64(r.decoders.Load()-1)
	r.unexplained(now, float64(began-max(b.at, r.last))/millisecond-step)
}

// unexplained takes a share of what an interval had beyond the books.
func (r *Rank) unexplained(now int64, ms float64) {
	if r.Cold() {
		return
	}
	r.found(now, ms)
}
