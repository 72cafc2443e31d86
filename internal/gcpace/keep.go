package gcpace

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
)

// Keep sets this process's GOGC from now on. It does nothing if the operator has set GOGC.
// serving reports whether somebody waits for tokens; it is called after each collection and
// must not wait. A later call replaces it.
func Keep(serving func() bool) {
	current.Store(&serving)
	start()
}

// current is what the last Keep was called with.
var current atomic.Pointer[func() bool]

var start = sync.OnceFunc(func() {
	if _, set := os.LookupEnv("GOGC"); set {
		return
	}
	k := newKeeper(debug.SetGCPercent, func() bool { return (*current.Load())() },
		debug.SetMemoryLimit(-1), groupMemory(), machineMemory())
	k.collected()
})

// looks is how often the keeper looks while GOGC is above Go's own pace.
const looks = time.Second

// keeper looks after each collection, and each second where a collection may be far away.
type keeper struct {
	began   time.Time
	set     func(percent int) int
	serving func() bool
	read    func() Look // measures, but in tests

	mu      sync.Mutex
	pace    *Pace
	samples []metrics.Sample
	percent int
	timed   *time.Timer
}

func newKeeper(set func(int) int, serving func() bool, limits ...int64) *keeper {
	k := &keeper{began: time.Now(), set: set, serving: serving, percent: plainPercent, samples: []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}}
	k.read = k.measure
	k.timed = time.AfterFunc(time.Hour, k.look)
	k.timed.Stop()
	// The start's allocations tell nothing about those that follow.
	k.pace = New(k.read(), limits...)
	return k
}

// sentinel is unreachable, so that its finalizer runs after each collection.
type sentinel struct{ k *keeper }

// collected is called after each collection, and once at the start.
func (k *keeper) collected() {
	k.look()
	runtime.SetFinalizer(&sentinel{k}, func(s *sentinel) { s.k.collected() })
}

// look sets GOGC unless it is nearly that already: setting it stops the world.
func (k *keeper) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	percent := k.pace.Percent(k.read())
	if off := k.percent - percent; 8*max(off, -off) > k.percent {
		k.percent = percent
		k.set(percent)
	}
	if k.percent > plainPercent {
		k.timed.Reset(looks)
	} else {
		k.timed.Stop()
	}
}

// measure reads what the runtime reports.
func (k *keeper) measure() Look {
	metrics.Read(k.samples)
	number := func(i int) int64 {
		if k.samples[i].Value.Kind() != metrics.KindUint64 {
			return 0
		}
		return int64(min(k.samples[i].Value.Uint64(), math.MaxInt64))
	}
	return Look{At: time.Since(k.began), Allocated: number(0), Live: number(1), Roots: number(2) + number(3), Cycles: number(4), Serving: k.serving()}
}
