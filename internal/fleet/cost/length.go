package cost

import (
	"iter"
	"math"
	"math/bits"
	"sync"
)

// Lengths learns how many tokens outputs have, of those of one model and one tenant.
// The zero value knows nothing.
type Lengths struct {
	mu     sync.Mutex
	weight [lengthBuckets]float64
	sum    [lengthBuckets]float64
	used   [(lengthBuckets + 63) / 64]uint64 // bits of the buckets that have a weight: few have
}

const (
	// Buckets are a quarter of a power of two wide.
	lengthBuckets = 4 * 24
	// lengthMemory is how much an output counts after the next one: the last few
	// hundred are what counts.
	lengthMemory = 0.997
	// Before there are outputs, a request is expected to have lengthPrior tokens, which
	// counts as priorWeight outputs.
	lengthPrior = 256
	priorWeight = 4
)

func lengthBucket(n int) int {
	n = max(n, 1)
	e := bits.Len(uint(n)) - 1
	if e < 2 {
		return n
	}
	return min(4*(e-1)+n>>(e-2)&3, lengthBuckets-1)
}

// Add records an output of n tokens that ended by itself or at its limit. Outputs that
// a hang-up ended are left out, because their full length is unknown.
func (l *Lengths) Add(n int) {
	b := lengthBucket(n)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used[b/64] |= 1 << (b % 64)
	for i := range l.buckets(0) {
		l.weight[i] *= lengthMemory
		l.sum[i] *= lengthMemory
	}
	l.weight[b]++
	l.sum[b] += float64(n)
}

// buckets yields those from first on that have a weight.
func (l *Lengths) buckets(first int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for w := first / 64; w < len(l.used); w++ {
			set := l.used[w]
			if w == first/64 {
				set &= ^uint64(0) << (first % 64)
			}
			for ; set != 0; set &= set - 1 {
				if !yield(64*w + bits.TrailingZeros64(set)) {
					return
				}
			}
		}
	}
}

// Expect is how many tokens an output is expected to have in all that has so many so
// far and may have at most limit.
func (l *Lengths) Expect(soFar, limit int) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	weight, sum := 0.0, 0.0
	if soFar < lengthPrior {
		weight, sum = priorWeight, priorWeight*min(lengthPrior, float64(limit))
	}
	first := 0
	if soFar > 0 {
		first = lengthBucket(soFar)
	}
	for i := range l.buckets(first) {
		if l.weight[i] == 0 { // it has become too little to be a number
			continue
		}
		mean := l.sum[i] / l.weight[i]
		if mean <= float64(soFar) {
			continue
		}
		weight += l.weight[i]
		sum += l.weight[i] * min(mean, float64(limit))
	}
	if weight == 0 {
		// Longer than all that were seen: as much again, as of anything that has lasted.
		return min(2*float64(max(soFar, 1)), math.Max(float64(limit), float64(soFar)))
	}
	return max(sum/weight, float64(soFar))
}
