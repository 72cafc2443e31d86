package fair

import (
	"time"

	"weir/internal/tenancy"
)

// presence is how long a tenant counts as present after it was there.
const presence = int64(time.Minute)

// Room divides among tenants a bounded amount that cannot be taken back, such as memory for bodies.
// The last eighth of it is for tenants with less than their share. So a tenant that fills the rest
// leaves room for the others, and the room that it gives back goes to them first. A tenant that is
// alone may have everything. It is alone if no other tenant was there for a minute.
type Room struct {
	bands  Bands
	users  map[key]*Holder
	list   []*present
	held   int64
	shares float64   // of the bands that are present
	there  int       // tenants that are present
	idle   []*Holder // those that hold nothing, or did when they were added

	caller *tenancy.Caller
	latest *Holder
}

// present is the tenants of a band that are present.
type present struct {
	named
	share  float64
	shares float64 // theirs
	there  int
}

// Holder is what one tenant of a band has.
type Holder struct {
	key   key
	band  *present
	share float64
	held  int64
	seen  int64
	idles bool // it is among those that idle
}

// NewRoom makes a Room that is empty.
func NewRoom(bands Bands) *Room { return &Room{bands: bands, users: map[key]*Holder{}} }

// Held is what all tenants hold.
func (r *Room) Held() int64 { return r.held }

// Holder returns the tenant of a caller, who is present now. It is valid for a minute, and as
// long as it holds something.
func (r *Room) Holder(who *tenancy.Caller, now int64) *Holder {
	if who == r.caller && len(r.idle) == 0 {
		r.latest.seen = now
		return r.latest
	}
	r.expire(now)
	h := r.users[keyOf(who)]
	if h == nil {
		h = &Holder{key: keyOf(who), band: r.band(who.Band), share: positive(who.Share)}
		r.users[h.key] = h
		r.there++
		if h.band.there++; h.band.there == 1 {
			r.shares += h.band.share
		}
		h.band.shares += h.share
		if r.there == 2 {
			for _, o := range r.users {
				r.rests(o)
			}
		}
	}
	if s := positive(who.Share); s != h.share {
		h.band.shares += s - h.share
		h.share = s
	}
	h.seen = now
	r.rests(h)
	r.caller, r.latest = who, h
	return h
}

func (r *Room) band(name string) *present {
	return ofBand(&r.list, name, func() *present { return &present{named: named(name), share: r.bands.Share(name)} })
}

// rests adds a tenant that holds nothing to those that may be forgotten.
func (r *Room) rests(h *Holder) {
	if h.held == 0 && !h.idles && r.there > 1 {
		h.idles = true
		r.idle = append(r.idle, h)
	}
}

// expire looks at two of those that idle, and forgets the ones that were there too long ago.
func (r *Room) expire(now int64) {
	for range min(2, len(r.idle)) {
		h := r.idle[0]
		r.idle[0] = nil
		r.idle = r.idle[1:]
		switch {
		case r.users[h.key] != h:
			continue // it was forgotten before
		case h.held > 0:
			h.idles = false
			continue
		case h.seen+presence > now:
			r.idle = append(r.idle, h)
			continue
		}
		h.idles = false
		delete(r.users, h.key)
		r.there--
		h.band.shares -= h.share
		if h.band.there--; h.band.there == 0 {
			r.shares -= h.band.share
			h.band.shares = 0
		}
		if r.latest == h {
			r.caller, r.latest = nil, nil
		}
	}
}

// Admits reports whether the tenant may have n more where there is so much.
func (r *Room) Admits(h *Holder, n, limit int64) bool {
	all := r.held + n
	switch {
	case all > limit:
		return false
	case r.there < 2 || h.held == 0 || all <= limit-max(1, limit/8):
		return true
	}
	fair := float64(limit) * h.band.share / r.shares * h.share / h.band.shares
	return float64(h.held+n) <= fair
}

// Hold has the tenant hold n more, or less.
func (r *Room) Hold(h *Holder, n int64) {
	r.held += n
	if h.held += n; h.held == 0 {
		r.rests(h)
	}
}
