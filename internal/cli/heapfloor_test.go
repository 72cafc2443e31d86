package cli

import (
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"testing"
	"time"
)

// A small heap grows to the floor, within the bound of GOGC, and a large one as ever.
func TestGOGC(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		live, scanned int64
		want          int
	}{
		{0, 0, plainGOGC}, {mb, mb, mostGOGC}, {8 * mb, 8 * mb, mostGOGC},
		{16 * mb, 16 * mb, 300}, {16 * mb, 20 * mb, 240}, {32 * mb, 32 * mb, plainGOGC},
		{48 * mb, 48 * mb, plainGOGC}, {500 * mb, 501 * mb, plainGOGC},
	} {
		if got := gogc(64*mb, c.live, c.scanned); got != c.want {
			t.Errorf("%d MB live of %d: GOGC %d, want %d", c.live/mb, c.scanned/mb, got, c.want)
		}
	}
}

// A process with little memory has a lower floor.
func TestFloorWithin(t *testing.T) {
	if got := floorWithin(math.MaxInt64, math.MaxInt64); got != heapFloor {
		t.Errorf("without limits: %d", got)
	}
	if got := floorWithin(math.MaxInt64, 256<<20); got != 16<<20 {
		t.Errorf("in a group of 256 MB: %d", got)
	}
	if got := floorWithin(128<<20, 256<<20); got != 8<<20 {
		t.Errorf("with GOMEMLIMIT=128MiB in a group of 256 MB: %d", got)
	}
}

func TestMemoryFiles(t *testing.T) {
	if got := memoryFiles("0::/a.slice/weir.service\n"); !slices.Equal(got, []string{"/sys/fs/cgroup/a.slice/weir.service/memory.max", "/sys/fs/cgroup/memory.max"}) {
		t.Error(got)
	}
	if got := memoryFiles("3:cpu,cpuacct:/x\n2:memory:/x\nnonsense\n"); !slices.Equal(got, []string{"/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
		t.Error(got)
	}
}

// The tuner looks after each collection, and sets GOGC only if it changes by much.
func TestHeapTuner(t *testing.T) {
	set := make(chan int, 100)
	tuner := &heapTuner{floor: math.MaxInt64 / 1000, percent: plainGOGC, set: func(p int) { set <- p },
		samples: []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}}}
	runtime.GC() // what lives is known from then on
	tuner.collected()
	for seen := tuner.looks.Load(); seen < 4; {
		runtime.GC()
		deadline := time.Now().Add(time.Minute)
		for tuner.looks.Load() == seen {
			if time.Now().After(deadline) {
				t.Fatalf("no look within a minute of collection %d", seen)
			}
			time.Sleep(time.Millisecond)
		}
		seen = tuner.looks.Load()
	}
	if got := <-set; got != mostGOGC {
		t.Errorf("GOGC %d, want %d", got, mostGOGC)
	}
	if len(set) > 0 {
		t.Errorf("it was set again, to %d", <-set)
	}
}
