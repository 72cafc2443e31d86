package fleetsim

import (
	"context"
	"errors"
	"math"
	"sync"

	"weir/internal/workload/content"
)

// Saturation returns the highest speed at which the oracle's work in hand does not grow: a
// utilisation of 1. It is found by halving, to within 2 %.
func Saturation(ctx context.Context, o Options) (float64, error) {
	if !o.Plan.Open() {
		return 0, errors.New("a closed loop's users wait for their answers, so that it has no utilisation; say how many users it has")
	}
	o.Policy, o.Gateways, o.Age, o.Events, o.OnRequest = Oracle, 1, 0, nil, nil
	low, high := 0.0, math.Inf(1)
	for speed := 1.0; high > 1.02*low; {
		o.Speed = speed
		r, err := Run(ctx, o)
		if err != nil {
			return 0, err
		}
		if r.grows() {
			high = speed
		} else {
			low = speed
		}
		switch {
		case math.IsInf(high, 1):
			speed *= 2
		case low == 0:
			speed /= 2
		default:
			speed = math.Sqrt(low * high)
		}
		if speed > 1e6 || speed < 1e-6 {
			return 0, errors.New("the workload saturates the fleet at no speed; is it long enough?")
		}
	}
	return low, nil
}

// grows reports whether the engines fall behind by more than the search's resolution.
func (r *Report) grows() bool { return r.Behind > 0.02 }

// words is the vocabulary of engines whose options leave it out.
var words = sync.OnceValues(func() (*content.Words, error) {
	return content.New(1024, func(n uint32) ([]byte, bool) {
		return []byte{' ', 'a' + byte(n%26), 'a' + byte(n/26%26), 'a' + byte(n/676%26)}, true
	})
})
