package cli

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// heapFloor is the size up to which the heap grows before the collector runs.
//
// A gateway that relays short requests holds a few megabytes and allocates a hundred in a
// second. At GOGC=100 it then collects ten times a second and more. A floor
// makes that rare and costs at most its own size. Above it the heap is collected as ever.
const heapFloor = 64 << 20

// The bounds of GOGC that the floor sets. The upper one bounds what the heap can grow to if
// what lives grows a lot between a collection and the next look.
const (
	plainGOGC = 100
	mostGOGC  = 400
)

// keepHeapFloor sets GOGC after each collection so that the heap has the floor. It does nothing
// if the operator has set GOGC.
var keepHeapFloor = sync.OnceFunc(func() {
	if _, set := os.LookupEnv("GOGC"); set {
		return
	}
	t := &heapTuner{floor: floorWithin(debug.SetMemoryLimit(-1), groupMemory()), samples: []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
	}, set: func(percent int) { debug.SetGCPercent(percent) }, percent: plainGOGC}
	t.collected()
})

// floorWithin returns the floor of a process whose memory has these limits: GOMEMLIMIT and the
// limit of its control group. It is at most a sixteenth of either.
func floorWithin(limits ...int64) int64 {
	floor := int64(heapFloor)
	for _, l := range limits {
		floor = min(floor, l/16)
	}
	return floor
}

// heapTuner sets GOGC after each collection.
type heapTuner struct {
	floor   int64
	samples []metrics.Sample
	set     func(percent int)
	percent int
	looks   atomic.Int64 // collections that it has seen
}

// sentinel is unreachable, so that its finalizer runs after each collection.
type sentinel struct{ t *heapTuner }

// collected is called after each collection, and once at the start.
func (t *heapTuner) collected() {
	t.looks.Add(1)
	metrics.Read(t.samples)
	t.tune(gogc(t.floor, read(t.samples[0]), read(t.samples[0])+read(t.samples[1])+read(t.samples[2])))
	runtime.SetFinalizer(&sentinel{t}, func(s *sentinel) { s.t.collected() })
}

func read(s metrics.Sample) int64 {
	if s.Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return int64(min(s.Value.Uint64(), math.MaxInt64))
}

// tune sets GOGC unless it is nearly that already: setting it stops the world.
func (t *heapTuner) tune(percent int) {
	if off := t.percent - percent; percent == plainGOGC && off == 0 || percent > plainGOGC && 10*max(off, -off) <= t.percent {
		return
	}
	t.percent = percent
	t.set(percent)
}

// gogc returns the GOGC by which a heap of which so much lives grows to the floor, or as ever
// if that is more. scanned is what the runtime takes the percentage of: stacks and globals too.
func gogc(floor, live, scanned int64) int {
	if scanned <= 0 {
		return plainGOGC
	}
	return int(min(max((floor-live)*100/scanned, plainGOGC), mostGOGC))
}

// groupMemory returns the memory limit of the process's control group.
func groupMemory() int64 {
	own, _ := os.ReadFile("/proc/self/cgroup") // on other systems there is none
	limit := int64(math.MaxInt64)
	for _, path := range memoryFiles(string(own)) {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 { // "max" is none
			limit = min(limit, n)
		}
	}
	return limit
}

// memoryFiles returns the files that may contain a group's memory limit, by /proc/self/cgroup. In
// a container its own group is the root.
func memoryFiles(own string) (paths []string) {
	for line := range strings.Lines(own) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) != 3:
		case parts[1] == "":
			paths = append(paths, "/sys/fs/cgroup"+parts[2]+"/memory.max", "/sys/fs/cgroup/memory.max")
		case parts[1] == "memory":
			paths = append(paths, "/sys/fs/cgroup/memory"+parts[2]+"/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
		}
	}
	return paths
}
