package admission

import (
	"sync"
	"time"

	"weir/internal/infer"
	"weir/internal/tenancy"
	"weir/internal/tenancy/fair"
)

// SmallBody is the size in bytes up to which a body is small.
const SmallBody = 64 << 10

// Bodies is the budget of memory for bodies, in bytes. A body enters before it is
// read, with its declared size, or without one with the bytes that have arrived. An
// eighth of the budget is reserved for small bodies, so that large ones never keep
// them out, however slowly they arrive.
//
// A declared size alone costs no memory. A body that arrives too slowly therefore keeps
// its room only until another body needs it. It then keeps the part that it has filled,
// and must Grow again for the rest.
//
// Tenants have shares of the budget (fair.Room): the last eighth of what a body may have is for
// those with less than their share.
type Bodies struct {
	limit int64     // 0: no limit
	began time.Time // from which Room's times count: the wall clock may be set

	mu       sync.Mutex
	used     *fair.Room
	declared map[*share]struct{} // that have not arrived whole
}

// NewBodies makes a budget; 0 is no limit.
func NewBodies(limit int64, bands fair.Bands) *Bodies {
	return &Bodies{limit: limit, began: time.Now(), used: fair.NewRoom(bands), declared: map[*share]struct{}{}}
}

// Body is a body's share of the budget. It belongs to the goroutine that serves the
// request. The zero value has none.
type Body struct {
	bodies *Bodies
	*share
}

// share is what a body has of the budget.
type share struct {
	holder *fair.Holder
	size   int64
	// For a body whose size was declared:
	whole  int64
	pace   float64 // bytes a second, at least
	since  time.Time
	filled int64 // memory that was given out for it
	came   int64
}

// slack is how long a body may take to begin.
const slack = time.Second

// Enter reserves room for a body, or refuses with CodeOverloaded. A body larger than
// the whole budget gets in alone.
func (b *Bodies) Enter(who *tenancy.Caller, size int64, now time.Time) (Body, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Body{bodies: b, share: &share{holder: b.used.Holder(who, int64(now.Sub(b.began)))}}
	return s, b.grow(s.share, size)
}

// Declare is like Enter, for a body of which no bytes have arrived. The body must
// arrive at a pace in bytes per second to keep its room.
func (b *Bodies) Declare(who *tenancy.Caller, size int64, pace float64, now time.Time) (Body, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Body{bodies: b, share: &share{holder: b.used.Holder(who, int64(now.Sub(b.began))), whole: size, pace: pace, since: now}}
	err := b.growBy(s.share, size, now)
	if err == nil && size > SmallBody {
		b.declared[s.share] = struct{}{}
	}
	return s, err
}

// reclaim takes the room that slow bodies have not filled, and reports whether there
// was any.
func (b *Bodies) reclaim(now time.Time) (any bool) {
	for s := range b.declared {
		waited := now.Sub(s.since) - slack
		if keeps := max(s.filled, SmallBody); waited > 0 && float64(s.came) < s.pace*waited.Seconds() && s.size > keeps {
			b.used.Hold(s.holder, keeps-s.size)
			s.size, any = keeps, true
		}
	}
	return any
}

// Came records how many bytes of a declared body have arrived, and how much memory
// was allocated for it.
func (s *Body) Came(came, filled int64) {
	b := s.bodies
	if came == s.came {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.came, s.filled = came, min(filled, s.whole); came >= s.whole {
		delete(b.declared, s.share)
	}
}

// Grow makes the share as large as size, if it is smaller.
func (s *Body) Grow(size int64, now time.Time) error {
	b := s.bodies
	b.mu.Lock()
	defer b.mu.Unlock()
	if size <= s.size {
		return nil
	}
	if s.whole > size && b.grow(s.share, s.whole) == nil {
		return nil // all that was taken of it
	}
	return b.growBy(s.share, size, now)
}

// growBy is grow, if need be by what slow bodies have not filled.
func (b *Bodies) growBy(s *share, size int64, now time.Time) error {
	err := b.grow(s, size)
	if err != nil && b.reclaim(now) {
		err = b.grow(s, size)
	}
	return err
}

func (b *Bodies) grow(s *share, size int64) error {
	limit := b.limit
	if size > SmallBody {
		limit -= limit / 8
	}
	used := b.used.Held()
	if b.limit > 0 && used > s.size && !b.used.Admits(s.holder, size-s.size, limit) {
		e := infer.Errorf(infer.CodeOverloaded, "the bodies in flight have %d bytes, and %d more would pass the limit (--max-body-memory); try again later", used, size-s.size)
		e.RetryAfter, e.Reason = retryAfter, "max_body_memory"
		return e
	}
	b.used.Hold(s.holder, size-s.size)
	s.size = size
	return nil
}

// Leave returns the share to the budget. Only the first call counts.
func (s *Body) Leave() {
	if s.bodies == nil {
		return
	}
	b, of := s.bodies, s.share
	*s = Body{}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used.Hold(of.holder, -of.size)
	delete(b.declared, of)
}

// Used returns how many bytes are reserved now.
func (b *Bodies) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used.Held()
}
