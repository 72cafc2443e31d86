package plane

import (
	"math"
	"sync"
	"testing"
	"time"
	"unsafe"
)

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
		g.GiveUp(true)
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

// Each stream keeps a generation.
func TestGenerationFillsASizeClass(t *testing.T) {
	const class = 192
	if size := unsafe.Sizeof(generation{}); size > class {
		t.Errorf("a generation has %d bytes, %d more than its class", size, size-class)
	}
}
