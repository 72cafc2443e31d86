package admit

import (
	"sync"

	"weir/internal/infer"
)

// SmallBody is the size in bytes up to which a body is small.
const SmallBody = 64 << 10

// Bodies is the budget of the bytes of bodies that are in memory at once. A body
// enters before it is read, with the size that it declares, and one that declares none
// with what has arrived of it. An eighth of the budget is kept for small bodies, so
// that large ones, however slowly they come, never keep those out.
type Bodies struct {
	limit int64 // 0: no limit

	mu   sync.Mutex
	used int64
}

// NewBodies makes a budget; 0 is no limit.
func NewBodies(limit int64) *Bodies { return &Bodies{limit: limit} }

// Body is a body's share of the budget. It belongs to the goroutine that serves the
// request. The zero value has none.
type Body struct {
	bodies *Bodies
	size   int64
}

// Enter reserves room for a body, or refuses with CodeOverloaded. A body larger than
// the whole budget gets in alone.
func (b *Bodies) Enter(size int64) (Body, error) {
	s := Body{bodies: b}
	return s, s.Grow(size)
}

// Grow makes the share as large as size, if it is smaller.
func (s *Body) Grow(size int64) error {
	b := s.bodies
	if size <= s.size {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	limit := b.limit
	if size > SmallBody {
		limit -= limit / 8
	}
	used := b.used + size - s.size
	if b.limit > 0 && used > limit && b.used > s.size {
		e := infer.Errorf(infer.CodeOverloaded, "the bodies in flight have %d bytes, and %d more would pass the limit (--max-body-memory); try again later", b.used, size-s.size)
		e.RetryAfter = retryAfter
		return e
	}
	b.used, s.size = used, size
	return nil
}

// Leave gives the share back; only the first call counts.
func (s *Body) Leave() {
	if s.bodies == nil {
		return
	}
	b := s.bodies
	s.bodies = nil
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= s.size
}

// Used tells how many bytes are reserved now.
func (b *Bodies) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
