package plane

import (
	"math"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestWatchdog(t *testing.T) {
	const second = time.Second
	t.Run("silence in time", func(t *testing.T) {
		w := watchdog{interval: second, bound: 30 * second}
		for range 29 {
			if w.tick(0, second) {
				t.Fatal("lost before the bound")
			}
		}
		if !w.tick(0, second) {
			t.Fatal("not lost at the bound")
		}
	})
	t.Run("our own lateness counts no more than one tick", func(t *testing.T) {
		w := watchdog{interval: second, bound: 30 * second}
		w.tick(0, second)
		for range 2 {
			if w.tick(0, time.Hour) {
				t.Fatal("lost by our own lateness")
			}
		}
		if w.silent != 3*second {
			t.Fatalf("silent %v", w.silent)
		}
	})
	t.Run("any message starts over", func(t *testing.T) {
		w := watchdog{interval: second, bound: 3 * second}
		for heard := range uint64(100) {
			for range 2 {
				if w.tick(heard, second) {
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
		var c clock
		now := int64(1e12)
		start := now
		at := func(t int64) int64 { return truth + int64(drift*float64(t-start)) }
		if c.best(now).known {
			t.Fatal("known before any sample")
		}
		for range rapid.IntRange(1, 200).Draw(t, "pings") {
			there := rapid.Int64Range(0, 1e9).Draw(t, "there")
			back := rapid.Int64Range(0, 1e9).Draw(t, "back")
			mid := now + there
			if !c.add(now, mid+at(mid), mid+back) {
				t.Fatal("sample refused")
			}
			now = mid + back + rapid.Int64Range(0, 2e9).Draw(t, "pause")
			o := c.best(now)
			if off := o.ns - at(now); !o.known || max(off, -off) > o.uncertain+1 {
				t.Fatalf("off by %d, uncertain %d", off, o.uncertain)
			}
		}
	})
	if new(clock).add(10, 5, 9) {
		t.Error("an answer before its ping was believed")
	}
}

func TestUnknownStampsStayEmpty(t *testing.T) {
	if (offset{known: true, ns: 5}).toGateway(0) != 0 || (offset{ns: 5}).toGateway(9) != 0 {
		t.Error("a stamp was made up")
	}
	if got := (offset{known: true, ns: -5}).toGateway(9); got != 14 {
		t.Errorf("got %d", got)
	}
}

func TestRetryWaits(t *testing.T) {
	r := retry{min: 100 * time.Millisecond, max: 5 * time.Second}
	upper := r.min
	for range 20 {
		if d := r.wait(0); d < upper/2 || d > upper {
			t.Fatalf("wait %v, want %v to %v", d, upper/2, upper)
		}
		upper = min(2*upper, r.max)
	}
	if d := r.wait(time.Minute); d > r.min {
		t.Fatalf("wait %v after a good session", d)
	}
}

func TestTableUnderContention(t *testing.T) {
	var tab table
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				var mine []*generation
				for range 5 {
					g := new(generation)
					if tab.seat(g) != seated {
						t.Error("no seat")
					}
					mine = append(mine, g)
				}
				for _, g := range mine {
					if tab.get(g.slot) != g {
						t.Error("somebody else in the slot")
					}
					tab.release(g)
					tab.release(g) // freed once
				}
			}
		})
	}
	wg.Wait()
	if tab.live() != 0 || tab.next > 40 {
		t.Errorf("%d live, %d slots ever", tab.live(), tab.next)
	}
}

func TestTableFull(t *testing.T) {
	var tab table
	for range maxSlots {
		g := new(generation)
		if tab.seat(g) != seated {
			t.Fatal("full too early")
		}
		g.phase.Store(uint32(abandoned))
	}
	if tab.seat(new(generation)) != tableFull || tab.abandoned() != maxSlots {
		t.Errorf("%d abandoned", tab.abandoned())
	}
	if tab.get(math.MaxUint32) != nil {
		t.Error("a slot beyond all")
	}
}

func TestOutboxBatches(t *testing.T) {
	o := newOutbox()
	for i := range uint32(maxAborts + 10) {
		o.abort(i, "x")
	}
	o.askPing()
	<-o.wake
	first, ping := o.take()
	second, again := o.take()
	third, _ := o.take()
	if len(first) != maxAborts || !ping || len(second) != 10 || again || len(third) != 0 {
		t.Errorf("%d, %d, %d aborts", len(first), len(second), len(third))
	}
	if second[9].GetSlot() != maxAborts+9 {
		t.Error("out of order")
	}
}
