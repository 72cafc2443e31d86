package trace

import (
	"testing"
	"time"
)

// For any setting of the wall clock, the timeline's clock goes on, and stamps are reported in the
// wall time of the moment.
func TestWallClockIsSet(t *testing.T) {
	t.Cleanup(func() { settings.Store(nil) })
	for _, step := range []time.Duration{time.Hour, -time.Hour, 2 * time.Millisecond, -2 * time.Millisecond, 40 * 365 * 24 * time.Hour} {
		before := Now()
		// The time of the clock before it was set.
		now := read()
		settings.Store(&reading{now.at.Add(-step), now.mono})
		for _, stamp := range []int64{Now(), before, before - int64(10*time.Minute)} {
			want := time.Now().Add(time.Duration(stamp - Now()))
			if off := Wall(stamp).Round(0).Sub(want.Round(0)).Abs(); off >= time.Millisecond {
				t.Errorf("set by %v: a stamp is told %v off", step, off)
			}
			if off := Stamp(Wall(stamp)) - stamp; off != 0 {
				t.Errorf("set by %v: a wall time is stamped %d ns off", step, off)
			}
			// Deadlines made of it are the monotonic clock's.
			if off := time.Since(Wall(stamp)) - time.Duration(Now()-stamp); off.Abs() > time.Second {
				t.Errorf("set by %v: it is %v off the monotonic clock", step, off)
			}
		}
		if after := Now(); after < before || after-before > int64(time.Minute) {
			t.Errorf("set by %v: the timeline's clock went from %d to %d", step, before, after)
		}
	}
}

// While nobody sets it, a stamp has one wall time.
func TestWallStays(t *testing.T) {
	stamp := Now()
	want := Wall(stamp)
	for range 10_000 {
		if got := Wall(stamp); !got.Equal(want) {
			t.Fatalf("%v, and before %v", got, want)
		}
	}
}

func BenchmarkWall(b *testing.B) {
	for b.Loop() {
		Wall(12345)
	}
}
