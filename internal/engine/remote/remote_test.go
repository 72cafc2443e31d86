package remote

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWatchdog(t *testing.T) {
	const second = time.Second
	t.Run("silence in time", func(t *testing.T) {
		w := Watchdog{Interval: second, Bound: 30 * second}
		for range 29 {
			if w.Tick(0, second) {
				t.Fatal("lost before the bound")
			}
		}
		if !w.Tick(0, second) {
			t.Fatal("not lost at the bound")
		}
	})
	t.Run("our own lateness counts no more than one tick", func(t *testing.T) {
		w := Watchdog{Interval: second, Bound: 30 * second}
		w.Tick(0, second)
		for range 2 {
			if w.Tick(0, time.Hour) {
				t.Fatal("lost by our own lateness")
			}
		}
		if w.Silent != 3*second {
			t.Fatalf("silent %v", w.Silent)
		}
	})
	t.Run("any message starts over", func(t *testing.T) {
		w := Watchdog{Interval: second, Bound: 3 * second}
		for heard := range uint64(100) {
			for range 2 {
				if w.Tick(heard, second) {
					t.Fatal("lost while it talks")
				}
			}
		}
	})
}

// The estimate is never further from the truth than it says, whatever the
// delays there and back.
func TestClockBoundHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		truth := rapid.Int64Range(-1e15, 1e15).Draw(t, "offset")
		// Clocks drift apart within the bound.
		drift := rapid.Float64Range(-clockDrift/2, clockDrift/2).Draw(t, "drift")
		var c Clock
		now := int64(1e12)
		start := now
		at := func(t int64) int64 { return truth + int64(drift*float64(t-start)) }
		if c.Best(now).Known {
			t.Fatal("known before any sample")
		}
		for range rapid.IntRange(1, 200).Draw(t, "pings") {
			there := rapid.Int64Range(0, 1e9).Draw(t, "there")
			back := rapid.Int64Range(0, 1e9).Draw(t, "back")
			mid := now + there
			if !c.Add(now, mid+at(mid), mid+back) {
				t.Fatal("sample refused")
			}
			now = mid + back + rapid.Int64Range(0, 2e9).Draw(t, "pause")
			o := c.Best(now)
			if off := o.NS - at(now); !o.Known || max(off, -off) > o.Uncertain+1 {
				t.Fatalf("off by %d, uncertain %d", off, o.Uncertain)
			}
		}
	})
	if new(Clock).Add(10, 5, 9) {
		t.Error("an answer before its ping was believed")
	}
}

// A clock that was set is believed from its first word on, whatever the round trips before
// it were.
func TestClockIsSet(t *testing.T) {
	var c Clock
	now, offset := int64(1e12), int64(5e9)
	ask := func(rtt int64) {
		c.Add(now, now+rtt/2+offset, now+rtt)
		now += 1e9
	}
	for _, step := range []int64{3600e9, -7200e9, 20e6} {
		for range 10 {
			ask(1e5)
		}
		if o := c.Best(now); !o.Known || o.NS != offset {
			t.Fatalf("%+v, want %d", o, offset)
		}
		offset += step
		ask(5e6)
		if o := c.Best(now); !o.Known || o.NS != offset {
			t.Errorf("set by %d: %+v, want %d", step, o, offset)
		}
	}
}

func TestUnknownStampsStayEmpty(t *testing.T) {
	if (Offset{Known: true, NS: 5}).ToGateway(0) != 0 || (Offset{NS: 5}).ToGateway(9) != 0 {
		t.Error("a stamp was made up")
	}
	if got := (Offset{Known: true, NS: -5}).ToGateway(9); got != 14 {
		t.Errorf("got %d", got)
	}
}
