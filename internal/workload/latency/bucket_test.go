package latency_test

import (
	"testing"

	"pgregory.net/rapid"

	"weir/internal/workload/latency"
)

// A quantile's bucket is the one in which the sorted values have it.
func TestBucket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counts := rapid.SliceOfN(rapid.Uint64Range(0, 3), 0, 12).Draw(t, "counts")
		hundredths := rapid.IntRange(0, 100).Draw(t, "hundredths")
		var values []int // each value is its bucket
		for i, c := range counts {
			for range c {
				values = append(values, i)
			}
		}
		got, ok := latency.Bucket(counts, float64(hundredths)/100)
		if ok != (len(values) > 0) {
			t.Fatalf("%v: ok is %v", counts, ok)
		}
		if !ok {
			return
		}
		rank := (len(values)*hundredths + 99) / 100 // of the sorted values, from 1
		if want := values[max(rank, 1)-1]; got != want {
			t.Fatalf("%v at %d %%: bucket %d, want %d", counts, hundredths, got, want)
		}
	})
}

func TestBucketOfOne(t *testing.T) {
	for _, share := range []float64{0, 0.5, 1} {
		if i, ok := latency.Bucket([]int64{0, 0, 1, 0}, share); i != 2 || !ok {
			t.Errorf("share %v: %d, %v", share, i, ok)
		}
	}
}
