package sim

import "math"

// maxSpeculation bounds the ids a request gets in a step on average.
const maxSpeculation = 8

// drafts is the number of ids that a request may get in one step beyond the
// first.
func (o *Options) drafts() int {
	if o.Speculation <= 1 {
		return 0
	}
	return 2*int(math.Ceil(o.Speculation)) - 1
}

// acceptance holds the probabilities that a step brings more than 1, 2, ... ids: each draft
// is accepted with the same probability if those before it were. With nil a step brings one
// id.
type acceptance []float64

// newAcceptance returns the probabilities with the given mean.
func newAcceptance(mean float64) acceptance {
	o := Options{Speculation: mean}
	n := o.drafts()
	if n == 0 {
		return nil
	}
	a := make(acceptance, n)
	low, high := 0.0, 1.0
	for range 60 {
		p := (low + high) / 2
		sum, power := 1.0, 1.0
		for i := range a {
			power *= p
			a[i] = power
			sum += power
		}
		if sum < mean {
			low = p
		} else {
			high = p
		}
	}
	return a
}

// draw returns the number of ids of a step, from the hash of the ids so far, so
// that it is the same in every run.
func (a acceptance) draw(hash uint64) int {
	u := share(hash, 1)
	n := 1
	for n <= len(a) && u < a[n-1] {
		n++
	}
	return n
}
