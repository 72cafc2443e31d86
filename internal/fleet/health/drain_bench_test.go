package health

import (
	"fmt"
	"testing"
)

// BenchmarkDrain drains ranks and takes them back, one by one, among a thousand of which the first
// hundred drain for good, as pods that end do.
func BenchmarkDrain(b *testing.B) {
	for _, down := range []int{0, 1} {
		b.Run(fmt.Sprintf("down=%d", down), func(b *testing.B) {
			f := NewFleet(Limits{}, 0)
			for i := range 1000 {
				r := f.Add(Member{Engine: fmt.Sprint(i), Rank: -1, Serves: []string{"llama", "llama-instruct"}})
				r.Joined(1, true)
			}
			for _, r := range f.ranks[:100] {
				r.Drain(1, "its pod is terminating")
			}
			for _, r := range f.ranks[500 : 500+down] {
				r.takeDown(1, "it refuses connections", true)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				r := f.ranks[600+i%400]
				r.Drain(int64(i), "its pod is not ready")
				r.Undrain(int64(i), "it is again")
				f.Changes()
			}
		})
	}
}
