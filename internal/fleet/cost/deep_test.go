package cost

import (
	"fmt"
	"testing"
)

// BenchmarkDeepQueue is what the books of a request cost with so many before it that wait at the
// same rank: the oldest has its first token and ends, and another one comes.
func BenchmarkDeepQueue(b *testing.B) {
	for _, n := range []int{1, 64, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r, now := NewModel(Typical).Join(0, 0), int64(1)
			var waiting []*Booking
			w := Work{New: DefaultBudget, Length: DefaultBudget, Output: 2} // a step each
			for range n {
				waiting = append(waiting, r.Book(now, w))
			}
			b.ReportAllocs()
			for b.Loop() {
				now += 20 * millisecond
				first := waiting[0]
				waiting = append(waiting[1:], r.Book(now, w))
				first.First(now, -1, 0)
				r.Tokens(now, 1)
				first.End(now, 2)
			}
		})
	}
}
