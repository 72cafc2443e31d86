package latency

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// Wherever in their ranges the values were, every figure lies within its bounds,
// and the figures are those of the values booked.
func TestBoundsHoldTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		booked, truth, plain := New(time.Minute), New(time.Minute), New(time.Minute)
		ns := rapid.Int64Range(0, 5e9)
		loose := 0
		for range rapid.IntRange(1, 300).Draw(t, "n") {
			v := ns.Draw(t, "booked")
			plain.Add(v)
			if rapid.Bool().Draw(t, "known") {
				booked.Add(v)
				truth.Add(v)
				continue
			}
			loose++
			low, high := rapid.Int64Range(0, v).Draw(t, "low"), v+ns.Draw(t, "high")
			booked.AddWithin(v, low, high)
			truth.Add(rapid.Int64Range(low, high).Draw(t, "truth"))
		}
		got, want := booked.Judge(false), truth.Judge(false)
		if (len(got.Bounds) > 0) != (loose > 0) {
			t.Fatalf("%d values in ranges: %v", loose, got.Bounds)
		}
		bare := got
		bare.Bounds = nil
		a, errA := json.Marshal(bare)
		b, errB := json.Marshal(plain.Judge(false))
		if errA != nil || errB != nil || string(a) != string(b) {
			t.Fatalf("figures %s, of the values booked %s", a, b)
		}
		if loose == 0 {
			return
		}
		for name, f := range map[string][2]Figure{
			"mean": {want.Mean, got.Mean}, "p50": {want.P50, got.P50}, "p90": {want.P90, got.P90}, "p99": {want.P99, got.P99},
			"p999": {want.P999, got.P999}, "max": {want.Max, got.Max},
		} {
			in, given := got.Bounds[name]
			if given == f[1].Refused() {
				t.Fatalf("%s is %v, its bounds are %v", name, f[1], in)
			}
			// Percentiles are of microseconds at three digits.
			const digits, us = 1e-3, 1e-3
			if given && (f[0] < in[0]*(1-digits)-us || f[0] > in[1]*(1+digits)+us || f[1] < in[0]-1e-9 || f[1] > in[1]+1e-9) {
				t.Fatalf("%s: the truth is %v and the figure %v, the bounds %v", name, f[0], f[1], in)
			}
		}
	})
}

func TestAddDoesNotAllocate(t *testing.T) {
	r := New(time.Hour)
	r.AddWithin(5e6, 0, 9e6) // makes room once
	if n := testing.AllocsPerRun(100, func() {
		r.Add(7e6)
		r.AddWithin(5e6, 0, 9e6)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
